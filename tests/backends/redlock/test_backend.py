"""What is true of a quorum of servers alone: what a late vote leaves, when a second round is needed."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import pytest

from lockfast import BackendUnavailable
from lockfast._model import Claim, Grant, LockInfo, Terms
from lockfast._time import boot_now
from lockfast.backends.redis.requests import script
from lockfast.backends.redlock.io import blocking, fanout, rounds
from lockfast.backends.redlock.io.fanout import PENDING, Suspended
from lockfast.testing.awaited import AwaitedLocks
from lockfast.testing.stage import Stage
from tests.backends.redlock.stage import OnAQuorum, backend_of, hasty
from tests.patience import impatient
from tests.polling import HOUR, never_poll
from tests.renewals import renew_soon
from tests.servers.waiting import LIMIT_S

pytestmark = pytest.mark.slow


class TestMinorities(OnAQuorum):
    async def test_a_missing_majority_is_not_reported_as_a_held_lock(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        held = await locks.lock("x", ttl=600).take()
        assert await locks.lock("x").acquire(blocking=False) is None
        for server in self.quorum.servers[:2]:
            server.kill()
        locks.raw._logic.engine.patience = 1.0  # when the story is over, there is no majority to release it
        with pytest.raises(BackendUnavailable, match="fewer than 2 of the 3 lock servers answer"):
            await locks.lock("y", wait=0.5).take()
        assert held.held, "until its deadline no other claim can hold it"

    async def test_a_server_that_hangs_costs_its_time_once(self, stage: Stage) -> None:
        """What it costs is measured by `python -m bench --only promptness`."""
        locks = hasty(await self.ready(stage))
        self.quorum.proxies[1].black_hole()
        member = backend_of(locks)._fanout.members[1]

        async def missed() -> bool:
            assert await (await locks.lock("x").take()).release()
            return bool(member.absent)

        await stage.until(missed, "its time to be over")
        hasty(locks, HOUR)  # so long a round that waited for it would wait now
        for _ in range(10):
            assert await (await locks.lock("x").take()).release()
        hasty(locks)
        self.quorum.proxies[1].heal()

    async def test_a_late_vote_is_no_orphan(self, stage: Stage) -> None:
        locks = hasty(await self.ready(stage))
        self.quorum.servers[2].pause()
        lease = await locks.lock("x", ttl=600).take()
        assert await lease.release()
        self.quorum.servers[2].go_on()  # now it does all that it was asked
        await stage.until(lambda: self.at(stage, 2, "x") == LockInfo("x"), "the late vote to be taken back")

    async def test_a_release_whose_answers_come_too_late_is_no_loss(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        lease = await locks.lock("x", ttl=600).take()
        await stage.until(lambda: all(self.at(stage, node, "x").locked for node in range(3)), "all votes")
        hasty(locks)
        slow = self.quorum.proxies[:2]
        for proxy in slow:
            proxy.delay = 0.6  # longer than the servers may take; only what is said first is late
            threading.Timer(0.2, setattr, (proxy, "delay", 0.0)).start()
        assert await lease.release()
        await stage.until(lambda: self.at(stage, 0, "x") == LockInfo("x"), "the release")

    async def test_a_release_that_a_server_missed_is_sent_when_it_is_back(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        lease = await locks.lock("x", ttl=600).take()
        await stage.until(lambda: bool(self.at(stage, 2, "x").holders), "all votes")
        self.quorum.proxies[2].refuse()
        assert await lease.release()
        assert self.at(stage, 2, "x").locked
        self.quorum.proxies[2].heal()

        async def works_on() -> bool:
            await (await locks.lock("y").take()).release()
            return self.at(stage, 2, "x") == LockInfo("x")

        await stage.until(works_on, "the release to reach the server")

    async def test_a_release_that_a_server_missed_is_sent_without_another_request(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        lease = await locks.lock("x", ttl=600).take()
        await stage.until(lambda: bool(self.at(stage, 2, "x").holders), "all votes")
        self.quorum.proxies[2].refuse()
        assert await lease.release()
        self.quorum.proxies[2].heal()
        await stage.until(lambda: self.at(stage, 2, "x") == LockInfo("x"), "the release to reach the server")

    async def test_a_server_that_becomes_a_replica_counts_as_gone(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        lease = await locks.lock("x", ttl=600).take()
        self.quorum.servers[2].keep_all()
        since = boot_now()
        self.quorum.servers[2].follow(self.quorum.servers[0])
        self.quorum.proxies[2].cut()
        member = backend_of(locks)._fanout.members[2]

        async def is_known() -> bool:
            await (await locks.lock("y", wait=LIMIT_S).take()).release()
            return member.wrong is not None

        await stage.until(is_known, "the replica to be found")
        await (await locks.lock("y", wait=LIMIT_S).take()).release()
        await lease.extend()
        assert await lease.release()
        self.quorum.servers[2].lead()

        async def is_back() -> bool:
            await (await locks.lock("y", wait=LIMIT_S).take()).release()
            return member.wrong is None

        await stage.until(is_back, "it to be one of them again")
        assert member._age._copied_at > since, "its data is that of another server"

    async def test_a_server_that_forgot_a_hold_votes_for_it_again(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        lease = await locks.lock("x", ttl=60).take()
        await stage.until(lambda: bool(self.at(stage, 1, "x").holders), "all votes")
        self.quorum.servers[1].command("FLUSHALL")
        await self.repaired(stage, 1, lease)
        assert self.at(stage, 1, "x").holders[0].fence == lease.fence
        assert lease.held
        assert await lease.release()
        await stage.until(lambda: self.at(stage, 1, "x") == LockInfo("x"), "the repaired hold to be released")

    async def test_extend_keeps_a_lease_that_only_a_minority_can_be_asked_about_and_says_why(
        self, stage: Stage
    ) -> None:
        locks = await self.ready(stage)
        lease = await locks.lock("x", ttl=600).take()
        for proxy in self.quorum.proxies[1:]:
            proxy.refuse()
        with impatient(locks), pytest.raises(BackendUnavailable, match="fewer than 2 of the 3 lock servers answer"):
            await lease.extend()
        assert lease.held
        for proxy in self.quorum.proxies[1:]:
            proxy.heal()
        await lease.extend(6000)
        assert lease.remaining > 600
        assert await lease.release()

    async def test_a_lease_that_a_majority_forgot_is_lost_and_not_repaired(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        lease = await locks.lock("x", ttl=60).take()
        await stage.until(lambda: all(self.at(stage, node, "x").locked for node in range(3)), "all votes")
        for server in self.quorum.servers[:2]:
            server.command("FLUSHALL")
        renew_soon(lease)
        await stage.until(lambda: lease.lost, "the loss")
        assert not self.at(stage, 0, "x").locked


class TestFences(OnAQuorum):
    async def test_fences_grow_over_any_sequence_of_majorities(self, stage: Stage) -> None:
        last = 0
        for round in range(6):
            away = self.quorum.proxies[round % 3]
            away.refuse()
            locks = stage.locks()
            lease = await locks.lock("x", wait=LIMIT_S).take()
            assert lease.fence > last
            last = lease.fence
            await lease.release()
            away.heal()

    async def test_a_client_whose_clock_is_behind_gets_a_higher_fence_and_learns(self, stage: Stage) -> None:
        ahead, behind = await self.ready(stage), await self.ready(stage)
        hour = 3_600_000_000
        backend_of(ahead)._ahead = hour
        first = await ahead.lock("x").take()
        await first.release()
        second = await behind.lock("x").take()
        assert second.fence > first.fence
        assert [self.at(stage, node, "x").holders[0].fence for node in range(3)].count(second.fence) >= 2
        assert backend_of(behind)._ahead >= hour - 60_000_000
        await second.release()

    async def test_a_late_request_changes_nothing_that_was_granted_since(self, stage: Stage) -> None:
        quorum = backend_of(await self.ready(stage))
        claim = Claim("0" * 32, Terms("x", "x", "me", 60.0))

        async def ask(verb: str, **options: Any) -> Any:
            verbs = [getattr(quorum._nodes[0], verb)(claim, within=LIMIT_S, **options), None, None]
            return (await quorum._fanout.ask(verbs, lambda results: results[0] is not PENDING, within=LIMIT_S))[0]

        def fence() -> int | None:
            (holder,) = self.quorum.at(0, "x").holders
            return holder.fence

        first = (await ask("vote", fence=100, order=1, enqueue=False)).fence
        assert await ask("record_fence", fence=first + 50, instead_of=first)
        assert await ask("record_fence", fence=first + 50, instead_of=first), "it may be said again"
        assert not await ask("record_fence", fence=first + 20, instead_of=first)
        await ask("give_back", up_to=first, order=1, enqueue=False)
        assert fence() == first + 50
        await ask("give_back", up_to=first + 50, order=1, enqueue=False)
        assert self.quorum.at(0, "x") == LockInfo("x")
        assert (await ask("vote", fence=100, order=1, enqueue=False)).fence == first + 51, "it leaves no tombstone"

    async def test_one_round_is_enough_where_all_servers_agree(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        await stage.until(lambda: self.at(stage, 2, "ready") == LockInfo("ready"), "the last release")
        recorded = 0
        for node in backend_of(locks)._nodes:
            record_fence = node.record_fence

            def counted(*args: object, record_fence: object = record_fence, **options: object) -> object:
                nonlocal recorded
                recorded += 1
                return record_fence(*args, **options)  # type: ignore[operator]

            node.record_fence = counted
        lease = await locks.lock("quiet").take()
        assert await lease.release()
        assert recorded == 0


class TestWaiting(OnAQuorum):
    async def test_waiters_are_served_by_their_order_and_a_vote_that_is_given_back_keeps_it(self, stage: Stage) -> None:
        quorum = backend_of(await self.ready(stage))

        async def ask(who: str, verb: str, **options: Any) -> Any:
            claim = Claim(who * 32, Terms("x", "x", who, 60.0))
            verbs = [getattr(quorum._nodes[0], verb)(claim, within=LIMIT_S, enqueue=True, **options), None, None]
            return (await quorum._fanout.ask(verbs, lambda results: results[0] is not PENDING, within=LIMIT_S))[0]

        held = await ask("a", "vote", fence=100, order=5)
        assert (await ask("b", "vote", fence=100, order=50)).position == 0
        assert (await ask("c", "vote", fence=100, order=10)).position == 0, "it came later, but its order is before"
        assert (await ask("b", "vote", fence=100, order=50)).position == 1
        await ask("a", "give_back", up_to=held.fence, order=5)
        again = await ask("a", "vote", fence=100, order=5)
        assert again.fence > held.fence, "it is the first in the queue, so it is served again"
        await ask("a", "give_back", up_to=again.fence, order=70)
        assert isinstance(await ask("c", "vote", fence=100, order=10), Grant)
        assert (await ask("b", "vote", fence=100, order=50)).position == 0
        assert (await ask("a", "vote", fence=100, order=70)).position == 1, (
            "it is still in the queue, without a request"
        )

    async def test_two_waiters_with_one_vote_each_do_not_swap_them_for_ever(self, stage: Stage) -> None:
        """One server is unreachable, so that both others are needed; each votes for another one, and both give back."""
        quorum = backend_of(await self.ready(stage))

        async def ask(node: int, who: str, verb: str, **options: Any) -> Any:
            claim, verbs = Claim(who * 32, Terms("x", "x", who, 60.0)), [None, None, None]
            order = {"a": 5, "b": 6}[who]
            verbs[node] = getattr(quorum._nodes[node], verb)(
                claim, order=order, within=LIMIT_S, enqueue=True, **options
            )
            return (await quorum._fanout.ask(verbs, lambda results: results[node] is not PENDING, within=LIMIT_S))[node]

        one, two = await ask(0, "a", "vote", fence=100), await ask(2, "b", "vote", fence=100)
        assert (await ask(0, "b", "vote", fence=100)).position == 0
        assert (await ask(2, "a", "vote", fence=100)).position == 0
        await ask(0, "a", "give_back", up_to=one.fence)
        await ask(2, "b", "give_back", up_to=two.fence)
        assert isinstance(await ask(0, "a", "vote", fence=200), Grant)
        assert isinstance(await ask(2, "a", "vote", fence=200), Grant), "both servers mean the same one"

    @pytest.mark.parametrize("away", range(3))
    async def test_any_server_wakes_a_waiter(self, stage: Stage, away: int, monkeypatch: pytest.MonkeyPatch) -> None:
        never_poll(monkeypatch)
        holder, locks = await self.ready(stage), await self.ready(stage)
        self.quorum.proxies[away].refuse()
        for _ in range(3):
            held = await holder.lock("x", ttl=HOUR).take()
            waiter = stage.start(locks.lock("x", ttl=HOUR).take())
            await stage.queue("x", 1)
            assert await held.release()
            granted = await waiter.result()
            assert await granted.release()

    async def test_waiters_for_many_names_share_one_subscription_at_each_server(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        never_poll(monkeypatch)
        holder, locks = await self.ready(stage), await self.ready(stage)
        held = [await holder.lock(f"x{number}", ttl=HOUR).take() for number in range(10)]
        waiters = []
        for number in range(10):  # one after the other
            waiters.append(stage.start(locks.lock(f"x{number}", ttl=HOUR).take()))
            await stage.queue(f"x{number}", 1)
        listed = [server.command("CLIENT", "LIST", "TYPE", "pubsub") for server in self.quorum.servers]
        assert [lines.count(b" cmd=") for lines in listed] == [1, 1, 1]
        for lease in held:
            assert await lease.release()
        assert all([(await waiter.result()).held for waiter in waiters])

    async def test_requests_per_hand_over_do_not_grow_with_the_waiters(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        never_poll(monkeypatch)
        locks, each = stage.locks(), []
        for waiters in (2, 16):
            held = await locks.lock("x", ttl=HOUR).take()
            actors = [stage.start(_take_and_release(locks)) for _ in range(waiters)]
            await stage.queue("x", waiters)
            before = locks.faults.calls["acquire"] + locks.faults.calls["release"]
            await held.release()
            for actor in actors:
                await actor.result()
            each.append((locks.faults.calls["acquire"] + locks.faults.calls["release"] - before) / waiters)
        assert each[1] < 4, "one acquire that is granted and one release, and little more"

    async def test_32_contenders_that_all_try_at_once_are_all_served(self, stage: Stage) -> None:
        clients = [stage.locks() for _ in range(4)]
        fences: list[int] = []

        async def work(locks: AwaitedLocks) -> None:
            for _ in range(3):
                lease = await locks.lock("hot", ttl=60).take()
                fences.append(lease.fence)
                await lease.release()

        for actor in [stage.start(work(clients[number % 4])) for number in range(32)]:
            await actor.result()
        assert len(fences) == 96
        assert fences == sorted(set(fences)), "no livelock, and each has its turn alone"


async def _take_and_release(locks: AwaitedLocks) -> None:
    await (await locks.lock("x", ttl=HOUR).take()).release()


class TestRequests(OnAQuorum):
    async def test_a_lock_that_is_found_held_is_asked_for_twice_at_each_server_and_not_more(self, stage: Stage) -> None:
        holder, locks = await self.ready(stage), await self.ready(stage)
        held = await holder.lock("x", ttl=600).take()
        await self.held_at_all(stage, "x")
        for proxy in self.quorum.proxies:
            proxy.sent.clear()
        assert await locks.lock("x").acquire(blocking=False) is None

        def asked(name: str) -> list[int]:
            return [proxy.sent.count(script(name).digest) for proxy in self.quorum.proxies]

        await stage.until(lambda: asked("acquire") == [1, 1, 1], "the second request")
        assert asked("redlock/vote_quick") == [1, 1, 1]
        assert await held.release()

    async def test_servers_that_forget_the_scripts_are_sent_them_again_once(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        for server in self.quorum.servers:
            server.command("SCRIPT", "FLUSH")
        assert await (await locks.lock("x").take()).release()
        for proxy in self.quorum.proxies:
            proxy.sent.clear()
        assert await (await locks.lock("y").take()).release()
        assert [proxy.sent.count(script("acquire").digest) for proxy in self.quorum.proxies] == [0, 0, 0]


class TestLists(OnAQuorum):
    async def test_the_time_of_a_server_is_for_each_request_of_a_list(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """There may be a million names, which are listed by thousands of requests."""
        locks = await self.ready(stage)
        await locks.lock("x", ttl=HOUR).take()
        passed = 0.0

        class Lasting(Suspended):
            def __init__(self, request: bytes, replies: int) -> None:
                nonlocal passed
                passed += LIMIT_S / 4  # so the three servers together take less than one of them may
                super().__init__(request, replies)

        monkeypatch.setattr(fanout, "Suspended", Lasting)
        for module in (rounds, blocking):
            monkeypatch.setattr(module, "boot_now", lambda: boot_now() + passed)
        assert [info.name for info in await locks.list()] == ["x"]
        assert passed > LIMIT_S


class TestPatience(OnAQuorum):
    options = f"rejoin=0&node_timeout={HOUR}"

    async def test_a_slow_server_delays_a_single_try_little(self, stage: Stage) -> None:
        locks, other = await self.ready(stage), await self.ready(stage)
        held = await other.lock("x").take()
        self.quorum.proxies[1].black_hole()
        for _ in range(3):
            assert await locks.lock("x").acquire(blocking=False) is None
        self.quorum.proxies[1].heal()
        assert await held.release()
        await stage.until(lambda: self.at(stage, 1, "x") == LockInfo("x"), "no vote to be left")

    async def test_a_slow_server_delays_a_claim_that_times_out_little_and_does_not_count_as_gone(
        self, stage: Stage
    ) -> None:
        locks, other = await self.ready(stage), await self.ready(stage)
        locks.raw._logic.engine.briefly = HOUR
        held = await other.lock("x").take()
        self.quorum.proxies[1].black_hole()
        with suppress(BackendUnavailable):  # if the machine stands still
            assert await locks.lock("x", wait=1.0).acquire() is None
        assert not backend_of(locks)._fanout.members[1].absent, "it had no time to answer"
        self.quorum.proxies[1].heal()
        assert await held.release()
        await stage.until(lambda: self.at(stage, 1, "x") == LockInfo("x"), "nothing to be left")


class TestFive(OnAQuorum):
    size = 5

    async def test_two_of_five_may_be_gone(self, stage: Stage) -> None:
        locks = hasty(await self.ready(stage))
        self.quorum.servers[0].kill()
        self.quorum.servers[3].pause()
        hasty(stage.observer)
        held = await locks.lock("x", wait=LIMIT_S).take()
        other = hasty(stage.locks())
        assert await other.lock("x").acquire(blocking=False) is None
        waiter = stage.start(other.lock("x").take())
        await stage.queue("x", 1)
        assert await held.release()
        granted = await waiter.result()
        assert granted.fence > held.fence
        assert await granted.release()
