"""A majority of a quorum whose connections are cut, fall silent or lose replies: the lock is kept, or lost in time."""

from __future__ import annotations

import asyncio

import pytest

from lockfast import LeaseLost
from lockfast._model import LockInfo
from lockfast._time import boot_now
from lockfast.backends.redlock.backend import QuorumBackend
from lockfast.testing.awaited import AwaitedLease, AwaitedLocks
from lockfast.testing.contract import needs
from lockfast.testing.stage import Stage
from tests.backends.redlock.stage import OnAQuorum, hasty
from tests.polling import HOUR
from tests.renewals import renewed
from tests.servers.server import Server

pytestmark = pytest.mark.slow

DRIFT = {"drift": QuorumBackend.capabilities.drift}  # the stage would leave it out
ALL = range(3)


class TestWires(OnAQuorum):
    async def test_renewal_rides_out_connections_that_are_cut_again_and_again(self, stage: Stage) -> None:
        losses: list[object] = []
        locks = await self.ready(stage)
        lease = await locks.lock("wanted", ttl=60, on_lost=losses.append).take()
        for _ in range(3):
            cut = [proxy.cut_instead_of_reply(to=b"wanted") for proxy in self.quorum.proxies]
            await renewed(stage, lease)
            await stage.until(lambda cut=cut: all(event.is_set() for event in cut), "all cuts")  # type: ignore[misc]
        assert lease.held
        assert losses == []
        assert await lease.release()

    async def test_a_holder_behind_black_holes_stops_believing_before_the_next_is_granted(self, stage: Stage) -> None:
        lost_at: list[float] = []
        locks, next_one = hasty(await self.ready(stage, capabilities=DRIFT)), self.beside_the_wires(stage)
        lease = await locks.lock("x", ttl=1, on_lost=lambda _: lost_at.append(boot_now())).take()
        waiter = stage.start(_take_and_note_when(next_one))
        await stage.until(lambda: waiter.done or any(self.at(stage, node, "x").waiters for node in ALL), "one to wait")
        for proxy in self.quorum.proxies[:2]:
            proxy.black_hole()
        granted, granted_at = await waiter.result()
        assert lease._deadline < granted_at, "from that moment on it did not believe"
        assert not lease.held
        assert granted.fence > lease.fence
        await stage.until(lambda: lost_at, "the loss to be reported to a body that never checks")
        assert lost_at[0] >= lease._deadline
        with pytest.raises(LeaseLost):
            lease.check()
        for proxy in self.quorum.proxies[:2]:
            proxy.heal()
        assert not await lease.release()
        assert await stage.fences("x") == [granted.fence]

    async def test_lost_replies_of_a_majority_to_an_acquire_are_asked_for_again_and_granted_once(
        self, stage: Stage
    ) -> None:
        locks = await self.ready(stage)
        lost = [proxy.cut_instead_of_reply(to=b"wanted") for proxy in self.quorum.proxies[:2]]
        lease = await locks.lock("wanted", ttl=HOUR).acquire(blocking=False)
        assert all(event.is_set() for event in lost)
        assert lease is not None
        (holder,) = (await stage.info("wanted")).holders
        assert (holder.claim_id, holder.fence) == (lease.claim_id, lease.fence)
        assert await lease.release()
        nothing = LockInfo("wanted")
        await stage.until(lambda: all(self.at(stage, node, "wanted") == nothing for node in ALL), "nothing to be left")

    @needs("cancellation")
    async def test_a_cancelled_acquire_leaves_no_orphan_though_its_locks_is_closed_before_the_servers_go_on(
        self, stage: Stage
    ) -> None:
        """The requests that abandon the claim are sent, but no client is left that would read a reply to them."""
        locks = self.beside_the_wires(stage)
        assert await (await locks.lock("ready").take()).release()
        before = locks.faults.calls["acquire"]
        for server in self.quorum.servers:
            server.command("CONFIG", "RESETSTAT")
            server.pause()
        asker = stage.start(locks.lock("x", ttl=HOUR).acquire())
        await stage.until(lambda: locks.faults.calls["acquire"] > before, "it to ask")
        asker.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asker.result()
        await locks.close()
        for server in self.quorum.servers:
            server.go_on()
        await stage.until(lambda: set(map(_connections, self.quorum.servers)) == {1}, "all to be carried out")
        for server in self.quorum.servers:
            assert b"cmdstat_evalsha:" in server.command("INFO", "commandstats"), "the acquire was"
        assert not any(self.quorum.held_at("x", stage.namespace))


def _connections(server: Server) -> int:
    """How many there are, with the one that asks."""
    lines: bytes = server.command("CLIENT", "LIST")
    return lines.count(b" cmd=")


async def _take_and_note_when(locks: AwaitedLocks) -> tuple[AwaitedLease, float]:
    lease = await locks.lock("x").take()
    return lease, boot_now()
