"""A Redis server that stands still for a while (SIGSTOP) and then does all that it was asked meanwhile."""

from __future__ import annotations

import socket
from contextlib import suppress

import pytest

from holdfast import BackendUnavailable
from holdfast._time import boot_now
from holdfast.drivers.redis_wire import PATIENT
from holdfast.testing.awaited import AwaitedLock
from holdfast.testing.stage import Stage
from tests.adversity.redis_stage import OnAServer, request_of

pytestmark = pytest.mark.slow

WAIT = 0.3
OVER = 0.05  # seconds that a `wait` may be exceeded by


class TestStandsStill(OnAServer):
    async def _seconds_to_give_up(self, stage: Stage, name: str) -> float:
        locks = await self.ready(stage)
        self.server.pause()
        started = boot_now()
        with pytest.raises(BackendUnavailable):
            await locks.lock(name, ttl=60, wait=WAIT).take()
        took = boot_now() - started
        self.server.go_on()
        return took

    async def test_wait_is_kept_to_though_the_server_stands_still(self, stage: Stage) -> None:
        best = WAIT + 10.0
        for number in range(10):  # this machine may stand still too, but not each time
            best = min(best, await self._seconds_to_give_up(stage, f"x{number}"))
            if best <= WAIT + OVER:
                break
        assert best <= WAIT + OVER

    async def test_wait_is_kept_to_though_an_answer_breaks_off_in_the_middle(self, stage: Stage) -> None:
        best = WAIT + 10.0
        for number in range(10):
            locks = await self.ready(stage)
            self.proxy.break_off_reply(to=request_of("acquire"))
            self.proxy.delay = WAIT * 0.6
            best = min(best, await _refused_after(locks.lock(f"x{number}", wait=WAIT)))
            self.proxy.delay = 0.0
            if best <= WAIT + OVER:
                break
        assert WAIT / 2 < best <= WAIT + OVER

    async def test_wait_is_kept_to_though_each_answer_of_the_handshake_is_slow(self, stage: Stage) -> None:
        self.server.command("CONFIG", "SET", "requirepass", "secret")
        self._url = self.proxy.url.replace("redis://", "redis://:secret@")[:-1] + "3"
        self.proxy.delay, best = WAIT / 2, WAIT + 10.0
        for number in range(10):
            best = min(best, await _refused_after(stage.locks(patience=0.01).lock(f"x{number}", wait=WAIT)))
            if best <= WAIT + OVER:
                break
        self.proxy.delay = 0.0
        assert best <= WAIT + OVER

    async def test_wait_is_kept_to_by_one_that_stands_in_the_queue(self, stage: Stage) -> None:
        locks, best = await self.ready(stage), WAIT + 10.0
        held = await self.beside_the_wire(stage).lock("x", ttl=600).take()
        for _ in range(10):
            waiter = stage.start(_refused_after(locks.lock("x", wait=WAIT)))
            await self.waiting(stage, "x")
            self.server.pause()
            best = min(best, await waiter.result())
            self.server.go_on()
            await self.waiting(stage, "x", 0)
            if best <= WAIT + OVER:
                break
        assert best <= WAIT + OVER
        assert await held.release()

    async def test_what_the_server_does_late_leaves_no_orphan(self, stage: Stage) -> None:
        for number in range(5):
            await self._seconds_to_give_up(stage, f"x{number}")
        for number in range(5):
            await stage.until(self.free(stage, f"x{number}"), "the late grant to be taken back")

    async def test_a_holder_on_a_server_that_stood_still_past_the_ttl_has_lost_and_nobody_is_let_in_twice(
        self, stage: Stage
    ) -> None:
        locks, other = await self.ready(stage), await self.ready(stage)
        lease = await locks.lock("x", ttl=0.5).take()
        waiter = stage.start(other.lock("x", ttl=60).take())
        await self.waiting(stage, "x")
        self.server.pause()
        await stage.until(lambda: lease.lost)
        self.server.go_on()
        granted = await waiter.result()
        assert granted.fence > lease.fence
        assert not await lease.release()
        assert [holder.fence for holder in self.truth(stage, "x").holders] == [granted.fence]

    async def test_a_short_stop_is_ridden_out(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        lease = await locks.lock("x", ttl=1.5).take()
        self.server.pause()
        await stage.until(lambda: lease.remaining < 0.8)  # a renewal hangs by now
        self.server.go_on()
        await self.renewed(stage, lease)
        assert lease.held


class TestLeadsNowhere(OnAServer):
    async def test_a_connection_that_died_unnoticed_costs_a_part_of_wait_and_not_the_lock(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        self.proxy.forsake()
        started = boot_now()
        lease = await locks.lock("x", wait=3 * PATIENT).take()
        assert PATIENT <= boot_now() - started < 2 * PATIENT
        assert [holder.fence for holder in self.truth(stage, "x").holders] == [lease.fence]

    async def test_who_waits_has_the_kernel_watch_over_the_line_that_only_listens(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        await self.beside_the_wire(stage).lock("x").take()
        stage.start(locks.lock("x", wait=5).acquire())
        await self.waiting(stage, "x")
        wakes = locks.faults.inner._driver.wakes  # type: ignore[attr-defined]
        line = wakes._mailbox._line if hasattr(wakes, "_mailbox") else wakes.line
        assert line.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


async def _refused_after(lock: AwaitedLock) -> float:
    started = boot_now()
    with suppress(BackendUnavailable):
        assert await lock.acquire() is None
    return boot_now() - started
