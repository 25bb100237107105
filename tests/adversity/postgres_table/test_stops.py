"""The lock table on a PostgreSQL server that stands still (SIGSTOP), or that has no room for one more connection."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from lockfast._time import boot_now
from lockfast.backends.postgres_table.io import asyncio_
from lockfast.backends.postgres_table.io.session import SILENT_S
from lockfast.testing.awaited import AwaitedLocks
from lockfast.testing.contract import needs
from lockfast.testing.stage import Stage
from tests.adversity.postgres_table.stage import OnTable
from tests.patience import refused, refused_for
from tests.polling import HOUR
from tests.renewals import renew_soon, renewal_state, renewed
from tests.servers.waiting import LIMIT_S, moment

WAIT_S = 0.3


class FullSocket:
    """libpq's connection, whose socket does not take at once what is sent behind another request."""

    def __init__(self, pg: Any) -> None:
        self._pg = pg
        self.pipeline_syncs = 0
        self.was_full = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pg, name)

    def pipeline_sync(self) -> None:
        self.pipeline_syncs += 1
        self._pg.pipeline_sync()

    def flush(self) -> int:
        flushed: int = self._pg.flush()
        if self.pipeline_syncs < 2 or self.was_full:
            return flushed
        self.was_full = True
        return 1


class TestStandsStill(OnTable):
    """By how much a `wait` is exceeded is measured by `python -m bench --only promptness`."""

    async def test_wait_is_kept_to_by_one_that_is_connected(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        self.server.pause()
        started = boot_now()
        await refused(locks.lock("x", wait=WAIT_S))
        assert boot_now() >= started + WAIT_S / 2
        self.server.go_on()

    async def test_wait_is_kept_to_by_one_that_has_to_connect(self, stage: Stage) -> None:
        self.server.pause()
        await refused(stage.locks(patience=0.01).lock("x", wait=WAIT_S))
        self.server.go_on()

    async def test_wait_is_kept_to_by_one_that_stands_in_the_queue(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        await stage.locks().lock("x", ttl=600).take()
        waiter = stage.start(refused(locks.lock("x", wait=1)))
        await stage.until(self.queued(stage, waiter), "one to wait")
        await self.pause(stage)
        await waiter.result()
        self.server.go_on()
        await stage.queue("x", 0)

    async def test_what_the_server_does_late_leaves_no_orphan(self, stage: Stage) -> None:
        for number in range(3):
            locks = await self.ready(stage)
            self.server.pause()
            await refused(locks.lock(f"x{number}", ttl=600, wait=0.1))
            self.server.go_on()
        for number in range(3):
            await stage.until(self.free(stage, f"x{number}"), "the late grant to be taken back")

    @needs("cancellation")
    async def test_a_cancelled_acquire_of_locks_that_are_closed_before_the_server_goes_on_leaves_no_orphan(
        self, stage: Stage
    ) -> None:
        locks = await self.ready(stage)
        for cancelled_after_s in (0.0, SILENT_S):  # later, the connection counts as dead
            held = self.held()
            self.server.pause()
            asker = stage.start(locks.lock(f"x{cancelled_after_s}", ttl=HOUR).take())
            await stage.until(partial(self.under_way, locks), "the request to be sent")
            await moment(cancelled_after_s)
            asker.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asker.result()
            await locks.close()
            self.server.go_on()
            await stage.until(lambda: self.ours() == 0, "the server to have done what it was asked")
            assert self.held() == held
            locks = await self.ready(stage)

    def under_way(self, locks: AwaitedLocks) -> bool:
        return any(connection.batch for connection in self.driver(locks)._busy)

    def driver(self, locks: AwaitedLocks) -> Any:
        return locks.faults.inner._driver  # type: ignore[attr-defined]

    @needs("cancellation")
    async def test_what_takes_back_a_cancelled_acquire_is_answered_to_no_other_request(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Even if the socket takes it only later: it is sent behind a large statement to a server that stands still."""
        monkeypatch.setattr(asyncio_, "MAX_CONNECTIONS", 1)
        monkeypatch.setattr(asyncio_, "MAX_SPARE", 0)
        locks = await self.ready(stage)
        both = [stage.start(locks.lock(name).take()) for name in ("x", "y")]
        for actor in both:
            await (await actor.result()).release()
        (connection,) = self.driver(locks)._idle
        full = connection.session.pg = FullSocket(connection.session.pg)
        self.server.pause()
        cancelled, other = (stage.start(locks.lock(name, ttl=HOUR).take()) for name in ("x", "y"))
        await stage.until(lambda: self.under_way(locks), "the requests to be sent")
        cancelled.cancel()
        await stage.until(lambda: full.was_full, "the cancelled request to be taken back")
        assert connection.session.used_up  # its replies could be taken for those to other requests
        self.server.go_on()
        assert (await other.result()).held
        assert await (await locks.lock("z").take()).release()
        with pytest.raises(asyncio.CancelledError):
            await cancelled.result()
        await stage.until(self.free(stage, "x"), "the cancelled one to be taken back")

    async def test_a_holder_on_a_server_that_stood_still_past_the_ttl_has_lost_and_no_lock_is_granted_twice(
        self, stage: Stage
    ) -> None:
        lease = await (await self.ready(stage)).lock("x", ttl=0.5).take()
        waiter = stage.start((await self.ready(stage)).lock("x", ttl=600).take())
        await stage.until(self.queued(stage, waiter), "one to wait")
        self.server.pause()
        await stage.until(lambda: lease.lost, "the holder to stop believing")
        self.server.go_on()
        granted = await waiter.result()
        assert granted.fence > lease.fence
        assert not await lease.release()
        assert await stage.fences("x") == [granted.fence]

    async def test_a_short_stop_is_ridden_out(self, stage: Stage) -> None:
        lease = await (await self.ready(stage)).lock("x", ttl=60).take()
        self.server.pause()
        renew_soon(lease)
        await stage.until(lambda: renewal_state(lease).renewing, "a renewal to hang")
        self.server.go_on()
        await renewed(stage, lease)
        assert lease.held


class TestFull(OnTable):
    settings = {"max_connections": "4", "superuser_reserved_connections": "1", "max_wal_senders": "0"}  # noqa: RUF012

    def _as_guest(self) -> None:
        """Not as a superuser, for whom there is always room."""
        self.ask(self.guest)
        self.ask(
            "GRANT ALL ON ALL TABLES IN SCHEMA public TO guest; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO guest"
        )
        self.where = self.where.replace("lockfast@", "guest@")

    async def test_a_full_server_is_reported_and_asked_again_and_costs_no_lease(self, stage: Stage) -> None:
        self._as_guest()
        filling = [await self.ready(stage) for _ in range(3)]
        lease = await filling[0].lock("kept").take()
        late = stage.locks()
        await stage.until(lambda: refused_for(late, "x", "connection slots"), "the reason to be reported")
        patient = stage.start(late.lock("x", wait=LIMIT_S).take())
        await filling[2].close()
        assert (await patient.result()).held
        await lease.extend()

    async def test_one_that_finds_no_room_to_be_woken_by_is_served_when_there_is(self, stage: Stage) -> None:
        self._as_guest()
        filling = [await self.ready(stage) for _ in range(3)]
        holder = await filling[0].lock("x").take()
        waiter = stage.start(filling[1].lock("x", wait=LIMIT_S).take())
        await stage.until(lambda: filling[1].faults.calls["acquire"] > 2, "a second try to find room")
        await filling[2].close()
        await holder.release()
        assert (await waiter.result()).fence > holder.fence
