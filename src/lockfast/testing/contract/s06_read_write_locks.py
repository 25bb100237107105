"""Read/write locks: many readers or one writer, first come first served, and a way from writing to reading."""

from __future__ import annotations

import pytest

from lockfast._model import Grant
from lockfast.errors import BackendUnavailable, LeaseLost, NotHeld
from lockfast.testing.awaited import AwaitedLease, AwaitedLock
from lockfast.testing.clock import FakeClock
from lockfast.testing.contract.story import Promise, about, needs
from lockfast.testing.faults import ALWAYS
from lockfast.testing.stage import Actor, Stage


def _reader(stage: Stage) -> AwaitedLock:
    """Of a client of its own, as is each writer."""
    return stage.locks().rwlock("page", ttl=600).read()


def _writer(stage: Stage) -> AwaitedLock:
    return stage.locks().rwlock("page", ttl=600).write()


async def _line_up(stage: Stage, *locks: AwaitedLock) -> list[Actor[AwaitedLease]]:
    """Everybody waits for theirs, in that order."""
    already = (await stage.info("page")).waiters
    actors = []
    for number, lock in enumerate(locks):
        actors.append(stage.start(lock.take()))
        await stage.queue("page", already + number + 1)
    return actors


class ReadWriteLocks(Promise, about="store", needs=("shared",)):
    # Who may be inside

    async def test_readers_read_together(self, stage: Stage) -> None:
        readers = [await _reader(stage).take() for _ in range(5)]
        assert all(reader.held for reader in readers)
        assert [reader.mode for reader in readers] == ["shared"] * 5
        fences = [reader.fence for reader in readers]
        assert fences == sorted(set(fences))
        assert await stage.fences("page") == fences

    async def test_a_writer_writes_alone(self, stage: Stage) -> None:
        writer = await _writer(stage).take()
        assert writer.mode == "exclusive"
        assert await _reader(stage).acquire(blocking=False) is None
        assert await _writer(stage).acquire(blocking=False) is None
        await writer.release()
        await _reader(stage).take()
        assert await _writer(stage).acquire(blocking=False) is None

    async def test_a_writer_comes_in_when_the_last_reader_leaves(self, stage: Stage) -> None:
        first, second = await _reader(stage).take(), await _reader(stage).take()
        (writer,) = await _line_up(stage, _writer(stage))
        await first.release()
        await stage.queue("page", 1)
        assert not writer.done
        await second.release()
        assert (await writer.result()).held

    async def test_a_body_that_reads_is_never_beside_one_that_writes(self, stage: Stage) -> None:
        inside: list[str] = []
        seen: list[str] = []

        async def visit(kind: str) -> None:
            rwlock = stage.locks().rwlock("page")
            for _ in range(4):
                async with rwlock.read() if kind == "r" else rwlock.write():
                    inside.append(kind)
                    await stage.breathe()
                    seen.append("".join(inside))
                    inside.remove(kind)

        visitors = [stage.start(visit(kind)) for kind in "rwrrw"]
        for visitor in visitors:
            await visitor.result()
        assert len(seen) == 20
        assert all(bodies == "w" or "w" not in bodies for bodies in seen), seen

    async def test_a_lock_is_a_writer_of_its_name(self, stage: Stage) -> None:
        reader = await _reader(stage).take()
        assert await stage.locks().lock("page").acquire(blocking=False) is None
        await reader.release()
        await stage.locks().lock("page").take()
        assert await _reader(stage).acquire(blocking=False) is None

    @needs("expires")
    async def test_a_crashed_reader_keeps_writers_out_for_its_ttl_at_most(self, stage: Stage) -> None:
        dead = stage.claim("page", ttl=7.5, mode="shared")
        assert isinstance(await stage.observer.faults.acquire(dead, enqueue=False, within=5), Grant)
        (writer,) = await _line_up(stage, _writer(stage))
        assert await stage.sleep_through(writer) == pytest.approx(7.5)

    async def test_breaking_ends_every_reader_and_lets_a_writer_in(self, stage: Stage) -> None:
        readers = [await _reader(stage).take() for _ in range(3)]
        (waiting,) = await _line_up(stage, _writer(stage))
        await stage.observer.break_lock("page")
        writer = await waiting.result()
        assert writer.fence > max(reader.fence for reader in readers)
        for reader in readers:
            assert await reader.release() is False
        assert await stage.fences("page") == [writer.fence]

    # First come first served

    async def test_readers_that_keep_coming_do_not_starve_a_writer(self, stage: Stage) -> None:
        early = await _reader(stage).take()
        writer, late, later = await _line_up(stage, _writer(stage), _reader(stage), _reader(stage))
        assert await _reader(stage).acquire(blocking=False) is None  # though it would fit beside the early one
        await early.release()
        written = await writer.result()
        await stage.queue("page", 2)
        assert not late.done
        assert not later.done
        await written.release()
        assert (await late.result()).held
        assert (await later.result()).held

    async def test_writers_that_keep_coming_do_not_starve_a_reader(self, stage: Stage) -> None:
        early = await _writer(stage).take()
        reader, late, later = await _line_up(stage, _reader(stage), _writer(stage), _writer(stage))
        await early.release()
        read = await reader.result()
        await stage.queue("page", 2)
        assert not late.done
        await read.release()
        await (await late.result()).release()
        assert (await later.result()).held

    async def test_readers_between_two_writers_are_inside_at_the_same_time(self, stage: Stage) -> None:
        first = await _writer(stage).take()
        between = [_reader(stage) for _ in range(3)]
        *readers, second, late = await _line_up(stage, *between, _writer(stage), _reader(stage))
        await first.release()
        reading = [await reader.result() for reader in readers]
        assert sorted(await stage.fences("page")) == sorted(reader.fence for reader in reading)
        await stage.queue("page", 2)
        for reader in reading:
            assert not second.done
            await reader.release()
        written = await second.result()
        await stage.queue("page", 1)
        assert not late.done
        await written.release()
        assert (await late.result()).held

    async def test_a_writer_that_gives_up_no_longer_keeps_readers_out(self, stage: Stage) -> None:
        early = await _reader(stage).take()
        quitter = stage.start(_writer(stage).acquire(timeout=3))
        await stage.queue("page", 1)
        (late,) = await _line_up(stage, _reader(stage))
        stage.clock.advance(3)
        assert await quitter.result() is None
        assert (await late.result()).held
        assert early.held

    # From writing to reading

    async def test_a_downgrade_lets_no_waiting_writer_in_between(self, stage: Stage) -> None:
        lease = await _writer(stage).take()
        (writer,) = await _line_up(stage, _writer(stage))
        await lease.downgrade()
        await stage.queue("page", 1)
        assert not writer.done
        assert await stage.fences("page") == [lease.fence]
        assert await _reader(stage).acquire(blocking=False) is None  # the writer came before
        await lease.release()
        assert (await writer.result()).fence > lease.fence

    async def test_a_downgrade_lets_the_readers_at_the_head_of_the_queue_in_at_once(self, stage: Stage) -> None:
        lease = await _writer(stage).take()
        first, second, writer, late = await _line_up(
            stage, _reader(stage), _reader(stage), _writer(stage), _reader(stage)
        )
        await lease.downgrade()
        reading = [lease, await first.result(), await second.result()]
        assert sorted(await stage.fences("page")) == sorted(reader.fence for reader in reading)
        await stage.queue("page", 2)
        assert not writer.done
        assert not late.done
        for reader in reading:
            await reader.release()
        assert (await writer.result()).held

    async def test_a_downgrade_makes_room_for_readers_that_come_later(self, stage: Stage) -> None:
        lease = await _writer(stage).take()
        await lease.downgrade()
        assert (await _reader(stage).take()).held
        assert await _writer(stage).acquire(blocking=False) is None

    @about("engine")
    async def test_a_downgraded_lease_is_the_same_lease(self, stage: Stage) -> None:
        lease = await _writer(stage).take()
        before = (lease.fence, lease.claim_id, lease.holder, lease.name, lease.ttl)
        await lease.downgrade()
        assert (lease.fence, lease.claim_id, lease.holder, lease.name, lease.ttl) == before
        (reported,) = (await stage.info("page")).holders
        assert (lease.mode, reported.mode) == ("shared", "shared")
        assert (reported.fence, reported.claim_id) == before[:2]

    async def test_a_downgraded_lease_is_renewed_extended_and_released_as_ever(self, stage: Stage) -> None:
        lease = await stage.locks().rwlock("page", ttl=30).write().take()
        await lease.downgrade()
        await stage.asleep()
        await stage.pass_time(100)
        assert lease.held
        await lease.extend(60)
        assert await stage.fences("page") == [lease.fence]
        assert await lease.release()
        assert await stage.is_free("page")

    @about("engine")
    async def test_a_body_that_downgrades_releases_on_the_way_out(self, stage: Stage) -> None:
        async with _writer(stage) as lease:
            await lease.downgrade()
            other = await _reader(stage).take()
        assert await stage.fences("page") == [other.fence]

    @pytest.mark.parametrize("lost", ["request", "reply"])
    async def test_a_lost_message_of_a_downgrade_is_harmless(self, stage: Stage, lost: str) -> None:
        locks = stage.locks()
        lease = await locks.rwlock("page").write().take()
        lose = locks.faults.lose_request if lost == "request" else locks.faults.lose_reply
        lose("acquire")
        await stage.finish(lease.downgrade())
        assert lease.held
        assert lease.mode == "shared"
        assert await stage.fences("page") == [lease.fence]
        other = await _reader(stage).take()
        assert await lease.release()
        assert await stage.fences("page") == [other.fence]

    @about("engine")
    async def test_a_downgrade_that_is_not_answered_says_so_and_loses_nothing(self, stage: Stage) -> None:
        locks = stage.locks(patience=1)
        lease = await locks.rwlock("page").write().take()
        locks.faults.lose_request("acquire", ALWAYS)
        with pytest.raises(BackendUnavailable):
            await stage.finish(lease.downgrade())
        assert lease.held
        locks.faults.heal()
        await lease.downgrade()
        assert (await _reader(stage).take()).held

    async def test_after_a_downgrade_nobody_believes_longer_than_the_store(self, stage: Stage) -> None:
        """Though the lease was extended before, beyond the ttl that it was asked for with."""
        lease = await stage.locks().rwlock("page", ttl=30, renew=False).write().take()
        await lease.extend(100)
        stage.clock.advance(50)
        await lease.downgrade()
        stage.clock.advance(lease.remaining - 0.5)
        assert lease.held
        assert await stage.fences("page") == [lease.fence]

    @about("engine")
    async def test_a_downgrade_of_what_time_has_ended_asks_nobody(self, stage: Stage) -> None:
        locks = stage.locks()
        lease = await locks.rwlock("page", ttl=10, renew=False).write().take()
        stage.clock.advance(10)
        before = locks.faults.calls["acquire"]
        with pytest.raises(LeaseLost):
            await lease.downgrade()
        assert locks.faults.calls["acquire"] == before

    @needs("expires")
    @pytest.mark.parametrize("taken", [True, False])
    @pytest.mark.parametrize("end", ["expiry", "break"])
    async def test_a_downgrade_of_what_the_store_has_ended_touches_nobody(
        self, stage: Stage, end: str, taken: bool
    ) -> None:
        """Though the client's clock lags: only the store knows that it is over."""
        lagging = stage.locks(clock=FakeClock())
        lease = await lagging.rwlock("page", ttl=10, renew=False).write().take()
        if end == "break":
            await stage.observer.break_lock("page")
        else:
            stage.clock.advance(10)
        following = await _writer(stage).take() if taken else None
        assert lease.held  # as far as its own clock shows
        with pytest.raises(LeaseLost):
            await lease.downgrade()
        assert lease.lost
        assert await stage.fences("page") == ([following.fence] if following is not None else [])
        assert (await stage.info("page")).waiters == 0

    @needs("limits")
    async def test_a_downgrade_of_a_reader_or_a_permit_does_nothing(self, stage: Stage) -> None:
        locks = stage.locks()
        reader = await locks.rwlock("page").read().take()
        permit = await locks.semaphore("pool", 2).take()
        before = locks.faults.calls.copy()
        await reader.downgrade()
        await permit.downgrade()
        assert locks.faults.calls == before
        assert reader.held
        assert permit.held

    @about("engine")
    async def test_a_downgrade_of_what_was_released_is_refused(self, stage: Stage) -> None:
        lease = await _writer(stage).take()
        await lease.release()
        with pytest.raises(NotHeld):
            await lease.downgrade()
        assert await stage.is_free("page")
