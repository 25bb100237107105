"""The lock table, and connections that lead nowhere since they were last used, as when a NAT has forgotten them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import lockfast
import lockfast.aio
from lockfast._time import boot_now
from lockfast.backends.connecting.arrived import has_arrived
from lockfast.backends.postgres_table.io import connections_asyncio, session
from lockfast.backends.postgres_table.io.batching import MAX_CONNECTIONS, MAX_SPARE
from lockfast.testing.awaited import AwaitedLease, AwaitedLocks
from lockfast.testing.contract import needs
from lockfast.testing.stage import Actor, Stage
from tests.adversity.postgres_table.stage import OnTable
from tests.patience import impatient
from tests.polling import HOUR, never_poll
from tests.servers.proxy import Proxy
from tests.servers.waiting import LIMIT_S, until, until_async


def _idle(locks: Any) -> set[Any]:
    """Its connections that are not in use."""
    backend = locks.faults.inner if hasattr(locks, "faults") else locks._logic.engine.backend
    driver = backend._driver
    lists = [driver._idle] if hasattr(driver, "_idle") else [driver._free, driver._spare]
    return {connection for each in lists for connection in each if connection is not None}


def _is_idle(locks: Any) -> bool:
    """Whether none of its connections is in use or being made."""
    driver = locks.faults.inner._driver
    if hasattr(driver, "_free"):
        return len(driver._free) == MAX_CONNECTIONS and len(driver._spare) == MAX_SPARE
    return not driver._busy and not driver._dialling


def _forsaken(wire: Proxy, locks: Any) -> set[Any]:
    """Its connections lead nowhere from now on, and have been idle for an hour: those that are so."""
    wire.forsake()
    return _long_idle(locks)


def _long_idle(locks: Any) -> set[Any]:
    """Its connections have been idle for an hour."""
    idle = _idle(locks)
    for connection in idle:
        connection.idle_since -= HOUR
    return idle


class TestSlowLink(OnTable):
    """Connections that lead somewhere, over a link so slow that a quarter of a short wait is no time for a probe."""

    SHORT = 0.9
    DELAY = 0.3

    async def test_a_request_with_little_time_is_sent_without_a_probe(self, stage: Stage) -> None:
        with self.wire() as wire:
            locks = await self.ready(stage)
            before, accepted = _long_idle(locks), wire.accepted
            wire.delay = self.DELAY
            lease = await locks.lock("x", wait=self.SHORT).take()
            assert _idle(locks) == before
            assert wire.accepted == accepted
            wire.heal()
            await lease.release()

    def test_a_request_with_little_time_closes_no_connection_of_others(self) -> None:
        async def story(wire: Proxy) -> None:
            async with lockfast.aio.connect(self.where) as locks:
                async with locks.lock("ready"):
                    pass
                before = _long_idle(locks)
                wire.delay = self.DELAY
                hasty = asyncio.create_task(locks.lock("x", wait=self.SHORT).acquire())
                patient = asyncio.create_task(locks.lock("y", wait=LIMIT_S).acquire())
                assert await patient is not None
                assert b"SELECT 1\0" in wire.sent
                assert all(connection.alive for connection in before)
                wire.heal()
                await asyncio.wait([hasty])

        with self.wire() as wire:
            asyncio.run(story(wire))

    async def test_a_connection_that_was_idle_while_the_machine_slept_is_probed(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with self.wire() as wire:
            locks = await self.ready(stage)
            for module in (session, connections_asyncio):
                monkeypatch.setattr(module, "boot_now", lambda: boot_now() + HOUR)
            before = len(wire.sent)
            lease = await locks.lock("x", wait=LIMIT_S).take()
            assert wire.sent[before:].count(b"SELECT 1\0") == 1
            await lease.release()


class TestIdle(OnTable):
    async def test_the_first_request_has_time_left_for_a_new_connection(self, stage: Stage) -> None:
        with self.wire() as wire:
            locks = await self.ready(stage)
            _forsaken(wire, locks)
            before = locks.faults.calls["acquire"]
            lease = await locks.lock("x", wait=LIMIT_S).take()
            assert locks.faults.calls["acquire"] == before + 1, "the first was answered"
            await lease.release()

    async def test_a_lease_is_renewed_over_a_new_connection(self, stage: Stage) -> None:
        with self.wire() as wire:
            locks = await self.ready(stage)
            lease = await locks.lock("x", ttl=12).take()
            _forsaken(wire, locks)
            await lease.extend(12)
            assert lease.held
            await lease.release()

    async def test_a_request_is_not_sent_over_a_connection_that_is_suspected(self, stage: Stage) -> None:
        """It might arrive after all, when its claim has long been given up."""
        with self.wire() as wire:
            locks = await self.ready(stage)
            _forsaken(wire, locks)
            before = len(wire.sent)
            lease = await locks.lock("x", wait=LIMIT_S).take()
            sent = bytes(wire.sent[before:])
            assert sent.index(b"SELECT 1\0") < sent.index(b"lockfast_acquire")
            assert sent.count(lease.claim_id.encode()) == 1
            await lease.release()


class TestSiblings(OnTable):
    """If one connection leads nowhere, no request has to find that out of the next one."""

    def test_all_that_were_idle_as_long_are_closed_with_it(self) -> None:
        with self.wire() as wire, lockfast.connect(self.where) as locks:
            with self.stuck() as other:
                takers = [threading.Thread(target=locks.lock(f"x{number}").acquire) for number in range(2)]
                for taker in takers:
                    taker.start()
                until(lambda: self.ours("wait_event_type = 'Lock'") == 2, "two connections to be in use")
                other.rollback()
            until(lambda: len(_idle(locks)) >= 2, "both to be idle")
            before = _forsaken(wire, locks)
            assert locks.lock("y", wait=LIMIT_S).acquire() is not None
            assert not before & _idle(locks)

    def test_all_that_were_idle_as_long_are_closed_with_it_in_a_loop(self) -> None:
        async def story(wire: Proxy) -> None:
            async with lockfast.aio.connect(self.where) as locks:
                with self.stuck() as other:
                    first = asyncio.create_task(locks.lock("x1").acquire())
                    await until_async(lambda: self.ours("wait_event_type = 'Lock'") == 1, "one to be in use")
                    second = asyncio.create_task(locks.lock("x2").acquire())
                    await until_async(lambda: self.ours("wait_event_type = 'Lock'") == 2, "two to be in use")
                    other.rollback()
                await asyncio.gather(first, second)
                driver: Any = locks._logic.engine.backend._driver  # type: ignore[attr-defined]
                await until_async(lambda: len(_idle(locks)) >= 2 and not driver._dialling, "all to be idle")
                before = _forsaken(wire, locks)
                assert await locks.lock("y", wait=LIMIT_S).acquire() is not None
                assert not before & _idle(locks)

        with self.wire() as wire:
            asyncio.run(story(wire))

    async def _waits(self, stage: Stage, locks: AwaitedLocks) -> tuple[AwaitedLease, Actor[AwaitedLease], set[str]]:
        """The holder of "x", one of `locks` that waits for it, and who listens; the connections of `locks` are idle."""
        with self.straight():
            holder = await stage.locks().lock("x", ttl=HOUR).take()
        waiter = stage.start(locks.lock("x").take())
        with self.straight():
            await stage.queue("x", 1)
        await stage.until(lambda: len(self.listeners()) == 1, "the waiter to listen")
        await stage.until(lambda: _is_idle(locks), "its connections to be idle")
        return holder, waiter, self.listeners()

    async def test_the_one_for_wakeups_is_made_anew(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        with self.wire() as wire:
            never_poll(monkeypatch)
            locks = await self.ready(stage)
            holder, waiter, before = await self._waits(stage, locks)
            _forsaken(wire, locks)
            other = await locks.lock(
                "y", wait=LIMIT_S
            ).take()  # and in doing so it learns that connections lead nowhere
            await stage.until(lambda: bool(self.listeners() - before), "it to listen anew")
            await holder.release()
            await (await waiter.result()).release()
            await other.release()

    async def test_a_request_that_is_never_answered_makes_all_suspect_that_have_received_nothing_since(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with self.wire() as wire:
            never_poll(monkeypatch)
            locks = await self.ready(stage)
            holder, waiter, before = await self._waits(stage, locks)
            wire.forsake()  # all were in use just now, so that none is probed
            with impatient(locks, 1.2):
                other = await locks.lock("y", wait=LIMIT_S).take()
            await stage.until(lambda: bool(self.listeners() - before), "it to listen anew")
            await holder.release()
            await (await waiter.result()).release()
            await other.release()


class TestUnread(OnTable):
    """What has arrived on a connection, and is not read yet, shows that it is sound: the process stood still."""

    async def test_a_connection_for_wake_ups_with_a_message_that_is_not_read_yet_is_kept(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        driver: Any = locks.faults.inner._driver  # type: ignore[attr-defined]
        await driver.expect(stage.claim("x"), LIMIT_S)  # from here on no thread polls, and no loop runs
        wakeups = driver.wakeups
        session = getattr(wakeups, "_session", None) or wakeups._inbox._session
        drop = getattr(wakeups, "drop_session", None) or wakeups.drop_inbox
        self.ask(f"SELECT pg_notify('{wakeups.address.split()[0]}', 'nothing of ours')")
        until(lambda: has_arrived(session.pg.socket), "the message to arrive")
        drop(boot_now())
        assert wakeups.address
        session.notifications()  # it is read now
        drop(boot_now())
        assert not wakeups.address, "nothing has arrived since"

    @needs("asyncio")
    async def test_a_connection_whose_probe_is_answered_and_not_read_yet_is_kept(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        driver: Any = locks.faults.inner._driver  # type: ignore[attr-defined]
        await stage.until(lambda: _is_idle(locks), "no request to be under way")
        (connection,) = _idle(locks)
        driver._idle.remove(connection)
        driver._busy.append(connection)
        connection.probe()
        until(lambda: has_arrived(connection._number), "the answer to arrive")
        driver._end_probe(connection, connection.since)
        connection.since -= HOUR
        driver._give_up_the_silent()
        assert connection.alive
        await stage.until(lambda: _idle(locks) == {connection}, "the answer to be read")
