"""What a client of a quorum leaves behind: votes that nobody heard of, and what a server could not be told."""

from __future__ import annotations

import pytest

from holdfast._model import Claim, Grant, LockInfo, Terms
from holdfast._time import boot_now
from holdfast.testing.stage import Stage
from tests.backends.test_quorum import OnAQuorum, _backend

pytestmark = pytest.mark.slow


class TestServersThatMissSomething(OnAQuorum):
    async def test_a_try_in_vain_leaves_no_vote_that_was_not_heard_of(self, stage: Stage) -> None:
        self.quorum.proxies[2].refuse()
        held = await stage.locks().lock("wanted", ttl=600, wait=5).take()
        self.quorum.proxies[2].heal()
        locks = await self.ready(stage)
        lost = self.quorum.proxies[2].swallow_reply(b"wanted")
        assert await locks.lock("wanted", ttl=600).acquire(blocking=False) is None
        assert lost.is_set()
        await stage.until(lambda: self.at(stage, 2, "wanted") == LockInfo("wanted"), "the vote to be taken back")
        assert await held.release()

    async def test_a_release_that_was_lost_is_said_again_though_nobody_asks_anything(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        lease = await locks.lock("x-files", ttl=600).take()
        await stage.until(lambda: bool(self.at(stage, 2, "x-files").holders), "all votes")
        lost = self.quorum.proxies[2].lose(b"x-files")
        assert await lease.release()
        assert lost.is_set()
        await stage.until(lambda: self.at(stage, 2, "x-files") == LockInfo("x-files"), "the release to be said again")

    async def test_a_server_that_hangs_when_it_is_connected_to_costs_no_vote_of_the_others(self, stage: Stage) -> None:
        self.quorum.proxies[0].black_hole()
        claim = Claim("c" * 32, Terms("x", "x", "me", 60.0))
        answer = await _backend(stage.locks()).acquire(claim, enqueue=False, within=5.0)
        assert isinstance(answer, Grant)
        assert self.quorum.held_at("x") == [False, True, True]

    async def test_a_slow_server_costs_a_release_little(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        self.quorum.proxies[1].delay = 0.3
        best = 10.0
        for _ in range(5):
            lease = await locks.lock("x", ttl=600).take()
            started = boot_now()
            assert await lease.release()
            best = min(best, boot_now() - started)
        assert best < 0.1
        self.quorum.proxies[1].delay = 0.0
        await stage.until(lambda: self.at(stage, 1, "x") == LockInfo("x"), "the slow server to have heard of all")

    async def test_a_slow_server_that_forgot_everything_costs_no_lease(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        leases = [await locks.lock(f"x{number}", ttl=1.5).take() for number in range(60)]
        self.quorum.servers[1].command("FLUSHALL")
        self.quorum.proxies[1].delay = 0.05
        renewals = locks.faults.calls["renew"]
        await stage.until(lambda: locks.faults.calls["renew"] >= renewals + 5 or leases[-1].lost, "renewals")
        assert all(lease.held for lease in leases)

    async def test_whoever_waits_does_not_wait_for_a_subscription_at_a_server_that_is_gone(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        await locks.lock("x").take()
        waiter = stage.start(locks.lock("x", wait=60).take())
        await stage.queue("x", 1)
        self.quorum.proxies[2].black_hole()
        self.quorum.proxies[2].cut()
        best, claim = 10.0, Claim("c" * 32, Terms(f"{stage.namespace}\x1fx", "x", "me", 60.0))
        for _ in range(6):
            started = boot_now()
            await _backend(locks).acquire(claim, enqueue=True, within=5.0)
            best = min(best, boot_now() - started)
        assert best < 0.2, "its time is 0.4"
        assert not waiter.done
