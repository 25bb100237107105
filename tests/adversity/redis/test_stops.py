"""A Redis server that stands still for a while (SIGSTOP) and then does all that it was asked meanwhile."""

from __future__ import annotations

import asyncio
import socket

import pytest

from lockfast import BackendUnavailable
from lockfast._time import boot_now
from lockfast.testing.awaited import AwaitedLocks
from lockfast.testing.contract import needs
from lockfast.testing.stage import Stage
from tests.adversity.redis.stage import OnAServer, request_of, sooner
from tests.patience import refused
from tests.polling import HOUR
from tests.renewals import renew_soon, renewal_state, renewed
from tests.servers.waiting import LIMIT_S

pytestmark = pytest.mark.slow

WAIT_S = 0.3


class TestStandsStill(OnAServer):
    """By how much a `wait` is exceeded is measured by `python -m bench --only promptness`."""

    async def _gives_up(self, stage: Stage, name: str) -> None:
        locks = await self.ready(stage)
        self.server.pause()
        with pytest.raises(BackendUnavailable):
            await locks.lock(name, ttl=60, wait=WAIT_S).take()
        self.server.go_on()

    async def test_wait_is_kept_to_though_the_server_stands_still(self, stage: Stage) -> None:
        await self._gives_up(stage, "x")

    async def test_wait_is_kept_to_though_an_answer_breaks_off_in_the_middle(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        broken = self.proxy.break_off_reply(to=request_of("acquire"))
        self.proxy.delay, started = WAIT_S * 0.6, boot_now()
        await refused(locks.lock("x", wait=WAIT_S))
        assert boot_now() >= started + WAIT_S / 2
        assert broken.is_set()
        self.proxy.delay = 0.0

    async def test_wait_is_kept_to_though_each_answer_of_the_handshake_is_slow(self, stage: Stage) -> None:
        self.server.configure("requirepass", "secret")
        self._url = self.proxy.url.replace("redis://", "redis://:secret@")[:-1] + "3"
        self.proxy.delay = WAIT_S / 2
        await refused(stage.locks(patience=0.01).lock("x", wait=WAIT_S))
        self.proxy.delay = 0.0

    async def test_wait_is_kept_to_by_one_that_stands_in_the_queue(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        held = await self.beside_the_wire(stage).lock("x", ttl=600).take()
        waiter = stage.start(refused(locks.lock("x", wait=1)))
        await stage.until(lambda: self.truth(stage, "x").waiters == 1 or waiter.done, "one to wait")
        self.server.pause()
        await waiter.result()
        self.server.go_on()
        await self.waiting(stage, "x", 0)
        assert await held.release()

    async def test_what_the_server_does_late_leaves_no_orphan(self, stage: Stage) -> None:
        for number in range(5):
            await self._gives_up(stage, f"x{number}")
        for number in range(5):
            await stage.until(self.free(stage, f"x{number}"), "the late grant to be taken back")

    @needs("cancellation")
    async def test_a_cancelled_acquire_leaves_no_orphan_though_its_locks_is_closed_before_the_server_goes_on(
        self, stage: Stage
    ) -> None:
        """The request that abandons the claim is sent, but no client is left that would read a reply to it."""
        locks = self.beside_the_wire(stage)
        assert await (await locks.lock("ready").take()).release()
        self.server.command("CONFIG", "RESETSTAT")
        self.server.pause()
        asker = stage.start(locks.lock("x", ttl=HOUR).acquire())
        await stage.until(lambda: locks.faults.calls["acquire"] == 2, "it to ask")
        asker.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asker.result()
        await locks.close()
        self.server.go_on()
        await stage.until(lambda: self.server.command("CLIENT", "LIST").count(b"id=") == 1, "all to be carried out")
        assert b"cmdstat_evalsha:" in self.server.command("INFO", "commandstats"), "the acquire was"
        assert self.free(stage, "x")()

    async def test_a_holder_on_a_server_that_stood_still_past_the_ttl_has_lost_and_no_two_claims_are_granted(
        self, stage: Stage
    ) -> None:
        locks, other = await self.ready(stage), await self.ready(stage)
        lease = await locks.lock("x", ttl=0.5).take()
        waiter = stage.start(other.lock("x", ttl=60).take())
        await stage.until(lambda: self.truth(stage, "x").waiters == 1 or waiter.done, "one to wait")
        self.server.pause()
        await stage.until(lambda: lease.lost, "the holder to stop believing")
        self.server.go_on()
        granted = await waiter.result()
        assert granted.fence > lease.fence
        assert not await lease.release()
        assert [holder.fence for holder in self.truth(stage, "x").holders] == [granted.fence]

    async def test_a_short_stop_is_ridden_out(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        lease = await locks.lock("x", ttl=60).take()
        self.server.pause()
        renew_soon(lease)
        await stage.until(lambda: renewal_state(lease).renewing, "a renewal to hang")
        self.server.go_on()
        await renewed(stage, lease)
        assert lease.held


class TestLeadsNowhere(OnAServer):
    """With a patience of an hour: a request that spends all of its time on a dead connection fails."""

    async def test_a_connection_that_died_unnoticed_costs_a_part_of_wait_and_not_the_lock(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        patience = sooner(monkeypatch)
        locks = await self.ready(stage, patience=HOUR)
        self.proxy.forsake()
        started = boot_now()
        lease = await locks.lock("x", wait=LIMIT_S).take()
        assert boot_now() >= started + patience
        assert [holder.fence for holder in self.truth(stage, "x").holders] == [lease.fence]

    async def test_connections_that_died_unnoticed_are_not_tried_one_after_another(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        locks = await self.ready(stage, patience=HOUR)
        await self._many_connections(stage, locks)
        sooner(monkeypatch, 0.1)
        self.proxy.forsake()
        asked = locks.faults.calls["acquire"]
        await locks.lock("x", wait=LIMIT_S).take()
        assert locks.faults.calls["acquire"] - asked == 2, "one on an old connection, one on a new one"

    async def _many_connections(self, stage: Stage, locks: AwaitedLocks, number: int = 8) -> None:
        """As many idle ones, where requests do not share one."""
        self.server.pause()
        takers = [stage.start(locks.lock(f"many{one}", ttl=HOUR).take()) for one in range(number)]
        await stage.until(lambda: locks.faults.on_the_way == number, "all to ask")
        self.server.go_on()
        for taker in takers:
            await (await taker.result()).release()

    async def test_a_renewal_that_meets_a_dead_connection_is_repeated_on_a_new_one(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        locks = await self.ready(stage, patience=HOUR)
        await self._many_connections(stage, locks)
        lease = await locks.lock("x", ttl=HOUR).take()
        sooner(monkeypatch, 0.1)
        self.proxy.forsake()
        asked = locks.faults.calls["renew"]
        await renewed(stage, lease)
        assert locks.faults.calls["renew"] - asked == 2

    async def test_a_server_that_is_only_slow_is_asked_once(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        locks = await self.ready(stage)
        sooner(monkeypatch, 0.1)
        asked, accepted = locks.faults.calls["acquire"], self.proxy.accepted
        self.server.pause()
        taker = stage.start(locks.lock("x", ttl=HOUR, wait=LIMIT_S).take())
        await stage.until(lambda: self.proxy.accepted > accepted, "a new connection to be tried")
        self.server.go_on()
        assert (await taker.result()).held
        assert locks.faults.calls["acquire"] - asked == 1, "the reply came on the old connection"

    async def test_the_kernel_probes_the_subscription_of_a_waiter(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        await self.beside_the_wire(stage).lock("x").take()
        stage.start(locks.lock("x", wait=LIMIT_S).acquire())
        await self.waiting(stage, "x")
        wakeups = locks.faults.inner._driver.wakeups  # type: ignore[attr-defined]
        subscribed = wakeups._inbox._connection if hasattr(wakeups, "_inbox") else wakeups.subscription
        assert subscribed.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
