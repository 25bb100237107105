"""Wake-ups from a Redis server that do not arrive: a waiter is late by a short bounded time, never for ever.

How late is measured by `python -m bench --only promptness`.
"""

from __future__ import annotations

import re

import pytest

from lockfast.backends.redis.io.resp import PING
from lockfast.testing.awaited import AwaitedLease, AwaitedLocks
from lockfast.testing.stage import Actor, Stage
from tests.adversity.redis.stage import OnAServer
from tests.polling import HOUR, expect_signs_of_life_soon, never_poll, poll_often
from tests.servers.waiting import LIMIT_S

pytestmark = pytest.mark.slow


class TestLostWakeUps(OnAServer):
    async def _held_and_waited_for(
        self, stage: Stage, ttl: float = 30
    ) -> tuple[AwaitedLease, Actor[AwaitedLease], AwaitedLocks]:
        holder = await self.beside_the_wire(stage).lock("x", ttl=HOUR).take()
        locks = await self.ready(stage)
        waiter = stage.start(locks.lock("x", ttl=ttl).take())
        await self.waiting(stage, "x")
        return holder, waiter, locks

    async def test_a_wake_up_through_a_sound_wire_comes_at_once(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        never_poll(monkeypatch)
        holder, waiter, _ = await self._held_and_waited_for(stage)
        assert await holder.release()
        assert (await waiter.result()).held

    async def test_a_lost_wake_up_delays_the_first_waiter_until_its_poll(self, stage: Stage) -> None:
        holder, waiter, locks = await self._held_and_waited_for(stage)
        lost = self.proxy.swallow(b"$7\r\nmessage\r\n")
        assert await holder.release()
        asked = locks.faults.calls["acquire"]
        assert (await waiter.result()).fence > holder.fence
        assert lost.is_set()
        assert locks.faults.calls["acquire"] - asked <= 1, "the first poll finds it free"

    async def test_a_message_without_a_claim_of_ours_is_ignored(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        never_poll(monkeypatch)
        holder, waiter, locks = await self._held_and_waited_for(stage)
        (channel,) = self.server.command("PUBSUB", "CHANNELS")
        asked = locks.faults.calls["acquire"]
        for text in (b"*", b"\xff"):
            assert self.server.command("PUBLISH", channel, text) == 1
        assert await holder.release()
        assert (await waiter.result()).held
        assert locks.faults.calls["acquire"] == asked, "it asked neither before it was woken nor then"

    async def test_a_subscription_that_is_dropped_is_noticed_and_made_again(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        never_poll(monkeypatch)
        holder, waiter, _ = await self._held_and_waited_for(stage)
        for _ in range(3):
            assert self.server.command("CLIENT", "KILL", "TYPE", "pubsub") == 1
            await stage.until(self._subscribes, "a new subscription")
        assert await holder.release()
        assert (await waiter.result()).held, "it is woken through the new one"

    async def test_a_subscription_that_leads_nowhere_is_noticed_and_made_again(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Behind a proxy that has lost the server and still answers the probes of the kernel."""
        expect_signs_of_life_soon(monkeypatch)
        poll_often(monkeypatch)  # in threads a waiter that polls looks after the subscription
        holder, waiter, _ = await self._held_and_waited_for(stage)
        (channel,) = self.server.command("PUBSUB", "CHANNELS")
        self.proxy.forsake()
        (doomed,) = re.findall(rb"id=(\d+)", self.server.command("CLIENT", "LIST", "TYPE", "pubsub"))
        await stage.until(lambda: doomed not in self._subscribers(), "the old subscription to be closed")
        await stage.until(lambda: len(self._subscribers()) == 1, "a new subscription")
        assert self.server.command("PUBSUB", "CHANNELS") == [channel]
        assert await holder.release()
        assert (await waiter.result()).held

    async def test_a_quiet_subscription_that_shows_signs_of_life_stays(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        expect_signs_of_life_soon(monkeypatch)
        poll_often(monkeypatch)
        holder, waiter, _ = await self._held_and_waited_for(stage)
        before = self._subscribers()
        pings = self.proxy.sent.count(PING)
        await stage.until(lambda: self.proxy.sent.count(PING) >= pings + 2, "the second, after an answer")
        assert self._subscribers() == before
        assert await holder.release()
        assert (await waiter.result()).held

    def _subscribers(self) -> list[bytes]:
        """The connections that the server sends wake-ups to, by their number."""
        return re.findall(rb"id=(\d+)", self.server.command("CLIENT", "LIST", "TYPE", "pubsub"))

    def _subscribes(self) -> bool:
        return b"cmd=subscribe" in self.server.command("CLIENT", "LIST", "TYPE", "pubsub")

    async def test_waiters_for_many_names_share_one_subscription(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        never_poll(monkeypatch)
        holder, locks = self.beside_the_wire(stage), await self.ready(stage)
        held = [await holder.lock(f"x{number}", ttl=HOUR).take() for number in range(10)]
        waiters = []
        for number in range(20):  # one after the other
            waiters.append(stage.start(_take_and_release(locks, f"x{number // 2}")))
            await self.waiting(stage, f"x{number // 2}", 1 + number % 2)
        assert self.server.command("CLIENT", "LIST", "TYPE", "pubsub").count(b" cmd=") == 1
        for lease in held:
            assert await lease.release()
        assert all([await waiter.result() for waiter in waiters])

    async def test_a_wake_up_while_the_subscription_is_down_is_not_missed(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        never_poll(monkeypatch)
        holder, waiter, _ = await self._held_and_waited_for(stage)
        self.proxy.refuse()
        assert await holder.release()
        self.proxy.heal()
        assert (await waiter.result()).fence > holder.fence

    async def test_waiters_behind_a_black_hole_cost_their_ttl_and_come_back(self, stage: Stage) -> None:
        holder, waiter, _ = await self._held_and_waited_for(stage, ttl=1)
        other = self.beside_the_wire(stage)
        self.proxy.black_hole()
        assert await holder.release()
        passed = await other.lock("x", wait=LIMIT_S).take()
        self.proxy.heal()
        await passed.release()
        assert (await waiter.result()).fence > passed.fence


async def _take_and_release(locks: AwaitedLocks, name: str) -> bool:
    return await (await locks.lock(name, ttl=HOUR).take()).release()
