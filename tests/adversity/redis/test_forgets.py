"""A Redis server that forgets: its data, its scripts, or all of it with a restart."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lockfast import LeaseLost
from lockfast.testing.stage import Stage
from tests.adversity.redis.stage import OnAServer
from tests.polling import HOUR
from tests.renewals import renew_soon, renewed

pytestmark = pytest.mark.slow


class TestForgetful(OnAServer):
    def _forget(self, how: str) -> None:
        ways: dict[str, Callable[[], object]] = {
            "flushed": lambda: self.server.command("FLUSHALL"),
            "restarted": lambda: self.server.restart(empty=True),
        }
        ways[how]()

    @pytest.mark.parametrize("how", ["flushed", "restarted"])
    async def test_a_holder_learns_that_the_server_has_forgotten_it(self, stage: Stage, how: str) -> None:
        lost: list[object] = []
        locks = await self.ready(stage)
        lease = await locks.lock("x", ttl=60, on_lost=lost.append).take()
        self._forget(how)
        renew_soon(lease)
        await stage.until(lambda: lost, "the loss to be reported, by its next renewal")
        assert not lease.held
        with pytest.raises(LeaseLost):
            lease.check()
        assert not await lease.release()
        again = await locks.lock("x").take()
        assert again.fence > lease.fence, "though the server knows nothing of the first"
        assert await again.release()

    @pytest.mark.parametrize("how", ["flushed", "restarted"])
    async def test_a_body_whose_lock_was_forgotten_ends_with_the_loss(self, stage: Stage, how: str) -> None:
        locks = await self.ready(stage)

        async def work() -> None:
            async with locks.lock("x", ttl=60) as lease:
                self._forget(how)
                renew_soon(lease)
                await stage.until(lambda: lease.lost, "the loss")

        with pytest.raises(LeaseLost):
            await work()

    @pytest.mark.parametrize("how", ["flushed", "restarted"])
    async def test_waiters_go_on_when_the_server_has_forgotten_them(self, stage: Stage, how: str) -> None:
        first, second, third = await self.ready(stage), await self.ready(stage), await self.ready(stage)
        lease = await first.lock("x", ttl=HOUR).take()
        waiters = []
        for number, locks in enumerate((second, third), 1):
            waiters.append(stage.start(locks.lock("x", ttl=60).take()))
            await self.waiting(stage, "x", number)
        self._forget(how)
        await stage.until(lambda: any(waiter.done for waiter in waiters), "one of them, long before the ttl is over")
        winner = waiters[0] if waiters[0].done else waiters[1]
        granted = await winner.result()
        assert granted.fence > lease.fence
        assert await granted.release()
        others = [waiter for waiter in waiters if waiter is not winner]
        assert (await others[0].result()).fence > granted.fence

    async def test_scripts_that_were_forgotten_are_sent_again(self, stage: Stage) -> None:
        locks, other = await self.ready(stage), await self.ready(stage)
        lease = await locks.lock("x", ttl=60).take()
        waiter = stage.start(other.lock("x").take())
        await self.waiting(stage, "x")
        self.server.command("SCRIPT", "FLUSH")
        await renewed(stage, lease)
        self.server.command("SCRIPT", "FLUSH")
        assert await lease.release()
        self.server.command("SCRIPT", "FLUSH")
        assert (await waiter.result()).fence > lease.fence

    async def test_ten_times_forgotten_and_the_fence_still_grows(self, stage: Stage) -> None:
        locks, fences = await self.ready(stage), []
        for number in range(10):
            self._forget("restarted" if number % 3 == 0 else "flushed")
            lease = await locks.lock("x").take()
            fences.append(lease.fence)
            await lease.release()
        assert fences == sorted(set(fences))


class TestDurable(OnAServer):
    server_args = ("--appendonly", "yes", "--appendfsync", "always")

    async def test_a_server_that_keeps_what_it_has_gives_nothing_away_by_a_restart(self, stage: Stage) -> None:
        locks, other = await self.ready(stage), await self.ready(stage)
        lease = await locks.lock("x", ttl=HOUR).take()
        waiter = stage.start(other.lock("x").take())
        await self.waiting(stage, "x")
        self.server.restart()
        await lease.extend(HOUR)
        assert not waiter.done
        assert await lease.release()
        assert (await waiter.result()).fence > lease.fence
