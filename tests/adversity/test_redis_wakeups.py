"""Wake-ups from a Redis server that do not arrive: whoever waits is late by a short bounded time, never for ever."""

from __future__ import annotations

import pytest

from holdfast._model import GRACE, patrol
from holdfast._time import boot_now
from holdfast.testing.awaited import AwaitedLease, AwaitedLocks
from holdfast.testing.stage import Actor, Stage
from tests.adversity.redis_stage import OnAServer

pytestmark = pytest.mark.slow

SOON = 0.5  # seconds: much less than any timer that could have done it instead
LATE = patrol(0) + GRACE  # what the first in line may have to wait when it was not told


class TestLostWakeUps(OnAServer):
    async def _held_and_waited_for(self, stage: Stage) -> tuple[AwaitedLease, Actor[tuple[AwaitedLease, float]]]:
        holder = await self.beside_the_wire(stage).lock("x").take()
        waiter = stage.start(_take_and_tell_when(await self.ready(stage)))
        await self.waiting(stage, "x")
        return holder, waiter

    async def test_a_wake_up_through_a_sound_wire_comes_at_once(self, stage: Stage) -> None:
        holder, waiter = await self._held_and_waited_for(stage)
        released = boot_now()
        assert await holder.release()
        lease, at = await waiter.result()
        assert at - released < SOON
        assert lease.held

    async def test_a_lost_wake_up_delays_the_first_in_line_by_its_own_patrol(self, stage: Stage) -> None:
        holder, waiter = await self._held_and_waited_for(stage)
        lost = self.proxy.swallow(b"$7\r\nmessage\r\n")
        released = boot_now()
        assert await holder.release()
        _, at = await waiter.result()
        assert lost.is_set()
        assert at - released < LATE + SOON

    async def test_a_subscription_that_is_dropped_is_noticed_and_made_again(self, stage: Stage) -> None:
        holder, waiter = await self._held_and_waited_for(stage)
        started = boot_now()
        for _ in range(3):
            assert self.server.command("CLIENT", "KILL", "TYPE", "pubsub") == 1
            await stage.until(lambda: b"cmd=subscribe" in self.server.command("CLIENT", "LIST", "TYPE", "pubsub"))
        released = boot_now()
        assert released - started < 2 * patrol(0), "at once, each time"
        assert await holder.release()
        _, at = await waiter.result()
        assert at - released < SOON, "it hears by the new one"

    async def test_a_wake_up_while_the_subscription_is_down_is_not_missed(self, stage: Stage) -> None:
        holder, waiter = await self._held_and_waited_for(stage)
        self.proxy.refuse()
        released = boot_now()
        assert await holder.release()
        self.proxy.heal()
        _, at = await waiter.result()
        assert at - released < LATE + SOON

    async def test_waiters_behind_a_black_hole_are_passed_over_and_come_back(self, stage: Stage) -> None:
        holder, waiter = await self._held_and_waited_for(stage)
        other = self.beside_the_wire(stage)
        self.proxy.black_hole()
        assert await holder.release()
        passed = await other.lock("x", wait=GRACE + LATE + SOON).take()
        self.proxy.heal()
        await passed.release()
        lease, _ = await waiter.result()
        assert lease.fence > passed.fence


async def _take_and_tell_when(locks: AwaitedLocks) -> tuple[AwaitedLease, float]:
    lease = await locks.lock("x").take()
    return lease, boot_now()
