"""The lock table, and connections that end in the middle: terminated, or cut with an answer on its way."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

import lockfast
from lockfast._time import boot_now
from lockfast.backends.postgres_table.io.batching import MAX_CONNECTIONS, MAX_SPARE
from lockfast.errors import BackendUnavailable
from lockfast.testing.awaited import AwaitedLease, AwaitedLocks
from lockfast.testing.history import Hold, judge
from lockfast.testing.stage import Actor, Stage
from tests.adversity.postgres_table.stage import OnTable
from tests.polling import HOUR, never_poll
from tests.renewals import renewed
from tests.scale import by_scale
from tests.servers.waiting import LIMIT_S, join, until

ROUNDS = by_scale(8, soak=40)  # in which all connections are ended under fire
AT_WORK = "state = 'active' AND wait_event_type = 'Lock'"


class TestTerminated(OnTable):
    async def test_a_request_whose_backend_is_terminated_is_asked_again_and_granted_once(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        for number in range(3):
            with self.stuck() as other:
                asker = stage.start(locks.lock(f"x{number}").take())
                ended: set[str] = set()  # which are to be seen for a moment more
                for _ in range(2):
                    await stage.until(self.at_work_but(ended), "the request to be under way")
                    (pid,) = self.pids(AT_WORK) - ended
                    assert self.end_ours(f"pid = {pid}") == 1
                    ended.add(pid)
                other.rollback()
                lease = await asker.result()
            assert await stage.fences(f"x{number}") == [lease.fence]
        assert self.held() == 3

    async def test_a_lease_is_kept_though_all_connections_are_terminated_again_and_again(self, stage: Stage) -> None:
        lease = await (await self.ready(stage)).lock("x", ttl=60).take()
        for _ in range(4):
            assert self.end_ours() >= 1
            await renewed(stage, lease)
        assert lease.held
        assert await stage.fences("x") == [lease.fence]

    def at_work_but(self, ended: set[str]) -> Callable[[], bool]:
        return lambda: bool(self.pids(AT_WORK) - ended)

    def two_but(self, before: set[str]) -> Callable[[], bool]:
        """Whether two listen that are none of those."""
        return lambda: len(self.listeners() - before) == 2

    async def test_a_waiter_whose_connections_are_terminated_keeps_its_place(self, stage: Stage) -> None:
        locks = [await self.ready(stage) for _ in range(2)]
        holder = await stage.locks().lock("x", ttl=HOUR).take()
        first = stage.start(locks[0].lock("x").take())
        await stage.queue("x", 1)
        second = stage.start(locks[1].lock("x").take())
        await stage.queue("x", 2)
        for _ in range(3):
            before = self.listeners()
            assert len(before) == 2
            assert self.end_ours(f"pid IN ({', '.join(before)})") == 2
            await stage.until(self.two_but(before), "both to listen again")
        await holder.release()
        lease = await first.result()
        await lease.release()
        assert (await second.result()).fence > lease.fence


class TestAnswersThatAreLost(OnTable):
    async def test_a_lost_answer_to_an_acquire_is_asked_for_again_and_granted_once(self, stage: Stage) -> None:
        with self.wire() as wire:
            locks = await self.ready(stage)
            lost = wire.cut_instead_of_reply(to=b"lockfast_acquire")
            lease = await locks.lock("x", ttl=HOUR).acquire(blocking=False)
            assert lost.is_set()
            assert lease is not None
            (holder,) = (await stage.info("x")).holders
            assert (holder.claim_id, holder.fence) == (lease.claim_id, lease.fence)
            assert await lease.release()

    async def test_a_lost_answer_to_a_release_is_no_loss(self, stage: Stage) -> None:
        with self.wire() as wire:
            lease = await (await self.ready(stage)).lock("x").take()
            lost = wire.cut_instead_of_reply(to=b"lockfast_release")
            assert await lease.release()
            assert lost.is_set()
            assert not lease.lost
            assert self.held() == 0

    async def test_a_lost_answer_to_a_renewal_is_no_loss(self, stage: Stage) -> None:
        with self.wire() as wire:
            lease = await (await self.ready(stage)).lock("x", ttl=60).take()
            lost = wire.cut_instead_of_reply(to=b"lockfast_renew")
            await renewed(stage, lease)
            assert lost.is_set()
            assert lease.held
            await lease.release()

    async def test_an_acquire_that_is_never_answered_leaves_no_orphan(self, stage: Stage) -> None:
        with self.wire() as wire:
            locks = await self.ready(stage)
            lost = wire.swallow_reply(to=b"lockfast_acquire")
            with pytest.raises(BackendUnavailable):
                await locks.lock("x", ttl=HOUR, wait=0.2).take()
            assert lost.is_set()
            await stage.until(self.free(stage, "x"), "what was granted without a reply to be cleaned up")

    async def test_what_arrives_after_it_was_given_up_is_not_granted(self, stage: Stage) -> None:
        with self.wire() as wire:
            locks = await self.ready(stage)
            wire.black_hole()
            with pytest.raises(BackendUnavailable):
                await locks.lock("x", ttl=HOUR, wait=0.2).take()
            wire.heal()  # now the request arrives, and whatever was sent after it
            with self.straight():
                lease = await stage.locks().lock("x", wait=LIMIT_S).take()
            await lease.release()
            await stage.until(self.free(stage, "x"), "nothing to be left of it")


class TestNotificationsThatAreLost(OnTable):
    """How late they are then is measured by `python -m bench --only promptness`."""

    async def _held_and_waited_for(self, stage: Stage) -> tuple[AwaitedLease, Actor[AwaitedLease], AwaitedLocks]:
        with self.straight():
            holder = await stage.locks().lock("x", ttl=HOUR).take()
        locks = await self.ready(stage)
        waiter = stage.start(locks.lock("x").take())
        with self.straight():
            await stage.queue("x", 1)
        await stage.until(lambda: len(self.listeners()) == 1, "the waiter to listen")
        return holder, waiter, locks

    async def test_a_notification_over_a_sound_wire_comes_at_once(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        never_poll(monkeypatch)
        with self.wire():
            holder, waiter, _ = await self._held_and_waited_for(stage)
            await holder.release()
            lease = await waiter.result()
            await lease.release()

    async def test_a_lost_notification_costs_no_more_than_one_poll(self, stage: Stage) -> None:
        with self.wire() as wire:
            holder, waiter, locks = await self._held_and_waited_for(stage)
            lost = wire.swallow(b"lockfast_")  # the channel's name is in nothing else that the server says now
            await holder.release()
            asked = locks.faults.calls["acquire"]
            lease = await waiter.result()
            assert lost.is_set()
            assert locks.faults.calls["acquire"] - asked <= 1, "the first poll finds it free"
            await lease.release()

    @pytest.mark.parametrize("waiters", [4, 40])
    async def test_one_connection_listens_however_many_wait_for_however_many_names(
        self, stage: Stage, waiters: int
    ) -> None:
        other, locks = await self.ready(stage), await self.ready(stage)
        held = [await other.lock(f"x{number}").take() for number in range(waiters // 2)]
        actors = [stage.start(_take_and_give_back(locks, f"x{number // 2}")) for number in range(waiters)]
        waiting = "SELECT count(*) FROM lockfast_queue WHERE kind = 'w'"
        await stage.until(lambda: int(self.ask(waiting)) == waiters, "all to wait")
        assert self.ours("query LIKE 'LISTEN %'") == 1
        assert self.ours() <= 1 + 1 + MAX_CONNECTIONS + MAX_SPARE
        for lease in held:
            await lease.release()
        assert len({await actor.result() for actor in actors}) == waiters


async def _take_and_give_back(locks: AwaitedLocks, name: str) -> int:
    async with locks.lock(name) as lease:
        fence: int = lease.fence
    return fence


@pytest.mark.slow
class TestUnderFire(OnTable):
    def test_a_lock_is_not_granted_twice_while_connections_are_terminated_all_the_time(self) -> None:
        holds: list[Hold] = []
        ends, terminated = threading.Event(), 0

        def work(number: int) -> None:
            with lockfast.connect(self.server.url, patience=LIMIT_S) as locks:
                while not ends.is_set():
                    with locks.lock("x", wait=LIMIT_S) as lease:
                        begin = boot_now()
                        lease.check()
                        holds.append(Hold("x", str(number), lease.fence, begin, boot_now()))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for number in range(1, ROUNDS + 1):
            until(lambda number=number: len(holds) > 10 * number, "more holds")  # type: ignore[misc]
            terminated += self.end_ours()
        ends.set()
        join(*threads)
        assert terminated > ROUNDS
        assert judge(holds) == []
        assert self.held() == 0
