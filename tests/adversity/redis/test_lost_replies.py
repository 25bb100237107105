"""Requests and replies that are lost, late or cut on their way to a Redis server."""

from __future__ import annotations

import asyncio
import random
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis.asyncio

import lockfast
import lockfast.aio
from lockfast import AcquireTimeout, BackendUnavailable
from lockfast._model import Claim
from lockfast.backends.redis.io import asyncio_connection as redis_asyncio
from lockfast.backends.redis.io.urls import endpoint_of_url
from lockfast.backends.redis.requests import script
from lockfast.testing.contract import needs
from lockfast.testing.stage import Stage
from tests.adversity.redis.stage import OnAServer, request_of, sooner
from tests.patience import impatient
from tests.polling import HOUR
from tests.renewals import renewed
from tests.servers.proxy import Proxy
from tests.servers.server import Server
from tests.servers.waiting import LIMIT_S, moment, until_async

pytestmark = pytest.mark.slow


class TestLostOnTheWire(OnAServer):
    async def test_a_lost_reply_to_an_acquire_is_asked_for_again_and_granted_once(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        lost = self.proxy.cut_instead_of_reply(to=request_of("acquire"))
        lease = await locks.lock("x", ttl=HOUR).acquire(blocking=False)
        assert lost.is_set()
        assert lease is not None
        (holder,) = self.truth(stage, "x").holders
        assert (holder.claim_id, holder.fence) == (lease.claim_id, lease.fence)
        assert await lease.release()
        assert self.free(stage, "x")()

    async def test_nothing_is_sent_twice_but_by_us(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        self.proxy.sent.clear()
        for number in range(3):
            lost = self.proxy.cut_instead_of_reply(to=request_of("acquire"))
            lease = await locks.lock(f"x{number}", renew=False).take()
            assert lost.is_set()
            assert await lease.release()
        assert self.proxy.sent.count(request_of("acquire")) == 2 * 3
        assert locks.faults.calls["acquire"] == 1 + 2 * 3

    async def test_an_acquire_that_is_never_answered_leaves_no_orphan(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        lost = [self.proxy.swallow_reply(to=request_of("acquire")) for _ in range(20)]  # more than it asks
        with pytest.raises(BackendUnavailable):
            await locks.lock("x", ttl=HOUR, wait=0.2).take()
        assert lost[0].is_set()
        await stage.until(self.free(stage, "x"), "what was granted without a reply to be cleaned up")

    async def test_an_acquire_that_was_never_sent_leaves_nothing_to_be_done(self, stage: Stage) -> None:
        """The server is silent when it is asked what kind of server it is, before all else."""
        locks = stage.locks()
        lost = [self.proxy.swallow_reply(to=b"INFO") for _ in range(20)]  # more than it asks
        with pytest.raises(BackendUnavailable) as caught:
            await locks.lock("x", ttl=HOUR, wait=0.2).take()
        assert lost[0].is_set()
        assert not caught.value.sent
        assert not locks.raw._logic.engine.unfinished

    async def test_a_lost_reply_to_a_release_is_not_taken_for_a_loss(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        lease = await locks.lock("x").take()
        lost = self.proxy.cut_instead_of_reply(to=request_of("release"))
        assert await lease.release()
        assert lost.is_set()
        assert self.free(stage, "x")()
        assert not lease.lost

    async def test_a_release_that_could_not_be_sent_can_be_tried_again(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        lease = await locks.lock("x", ttl=60, renew=False).take()
        self.proxy.refuse()
        with impatient(locks), pytest.raises(BackendUnavailable):
            await lease.release()
        self.proxy.heal()
        assert [holder.fence for holder in self.truth(stage, "x").holders] == [lease.fence]
        assert await lease.release()
        assert self.free(stage, "x")()

    async def test_a_lost_reply_to_a_renewal_is_no_loss(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        lease = await locks.lock("x", ttl=60).take()
        lost = self.proxy.cut_instead_of_reply(to=request_of("renew"))
        await renewed(stage, lease)
        assert lost.is_set()
        assert lease.held

    async def test_what_arrives_after_it_was_given_up_is_not_granted(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        self.proxy.black_hole()
        with pytest.raises(BackendUnavailable):
            await locks.lock("x", ttl=HOUR, wait=0.2).take()
        self.proxy.heal()  # now the request arrives, and all that was sent after it
        other = self.beside_the_wire(stage)
        lease = await other.lock("x", wait=LIMIT_S).take()  # much sooner than the ttl of what came late
        await lease.release()
        await stage.until(self.free(stage, "x"), "nothing to be left of it")

    @needs("cancellation")
    async def test_cancelled_acquires_leave_nothing_held(self, stage: Stage) -> None:
        locks, dice = await self.ready(stage), random.Random(4)
        cancelled = granted = 0
        longest = 0.0  # seconds until it is cancelled at most: so long that about half of them are granted
        while min(cancelled, granted) < 200:
            longest = max(0.0, longest + (0.0001 if cancelled > granted else -0.0001))
            asker = stage.start(locks.lock("x", ttl=60).acquire())
            await moment(dice.uniform(0, longest))
            asker.cancel()
            try:
                lease = await asker.result()
            except asyncio.CancelledError:
                cancelled += 1
                continue
            granted += 1
            assert lease is not None
            await lease.release()
        await stage.until(self.free(stage, "x"), "nothing to be left of it")

    @needs("cancellation")
    async def test_waiters_cancelled_as_the_lock_is_handed_to_them_leave_nothing_held(self, stage: Stage) -> None:
        locks, other, dice = await self.ready(stage), self.beside_the_wire(stage), random.Random(5)
        cancelled = 0
        while cancelled < 50:
            held = await other.lock("x", ttl=60).take()
            waiter = stage.start(locks.lock("x", ttl=60).acquire())
            await stage.queue("x", 1)
            release = stage.start(held.release())
            await moment(dice.uniform(0, 0.002))
            waiter.cancel()
            try:
                lease = await waiter.result()
                assert lease is not None
                await lease.release()
            except asyncio.CancelledError:
                cancelled += 1
            assert await release.result()
            await stage.until(self.free(stage, "x"), "nothing to be left of it")

    @pytest.mark.parametrize("blocking", [True, False])
    async def test_a_server_that_is_down_is_not_reported_as_a_held_lock(self, stage: Stage, blocking: bool) -> None:
        locks = await self.ready(stage)
        holder = await self.beside_the_wire(stage).lock("x", ttl=HOUR).take()
        assert await locks.lock("x").acquire(blocking=False) is None
        with pytest.raises(AcquireTimeout):
            async with locks.lock("x", wait=0):
                raise AssertionError
        assert await holder.release()
        self.proxy.refuse()
        with impatient(locks), pytest.raises(BackendUnavailable, match=str(self.proxy.port)):
            await locks.lock("x").acquire(blocking)
        self.proxy.heal()
        await stage.until(self.free(stage, "x"), "nothing to be left of it, and of those that gave up before")


def test_a_line_that_falls_silent_is_given_up_though_an_older_answer_came_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else later requests would wait for ever behind the lost one."""
    sooner(monkeypatch, 0.1)
    monkeypatch.setattr(redis_asyncio, "_SILENCE_S", 0.1)

    async def story() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            loop = asyncio.get_running_loop()
            line = redis_asyncio.AsyncioConnection(endpoint_of_url(urlsplit("redis://nowhere")), None, loop)
            line._transport, _ = await loop.create_connection(lambda: line, sock=ours)
            line.alive = True
            first, second = line.ask(b"1", 60), line.ask(b"2", 60)
            theirs.send(b"+OK\r\n")
            assert await first == b"OK"
            with pytest.raises(BackendUnavailable, match="was disconnected"):
                await asyncio.wait_for(second, LIMIT_S)
            assert not line.alive

    asyncio.run(story())


@pytest.mark.parametrize("replaced", ["as it is cancelled", "before it is abandoned"])
def test_a_cancelled_request_on_a_connection_that_was_replaced_leaves_no_orphan(
    monkeypatch: pytest.MonkeyPatch, replaced: str
) -> None:
    """It may arrive after the request that cleans up, which is sent on the new connection."""
    sooner(monkeypatch, 0.1)
    with Server() as server, Proxy(server) as proxy, lockfast.connect(server.url) as others:

        async def story() -> None:
            async with lockfast.aio.connect(proxy.url) as locks:
                engine: Any = locks._logic.engine
                connections = engine.backend._driver._connections
                first = others.lock("x", ttl=HOUR).acquire()
                waiter = asyncio.create_task(locks.lock("x", ttl=HOUR).acquire())
                await until_async(lambda: others.inspect("x").waiters == 1, "it to wait")
                silent = connections._connections[None]
                close, abandon = silent.close, engine.backend.abandon

                def close_and_cancel() -> None:
                    close()
                    waiter.cancel()

                async def abandon_later(claim: Claim, *, within: float) -> None:
                    await until_async(lambda: not silent.alive, "the connection to be replaced")
                    await abandon(claim, within=within)

                kept = proxy.keep_back(script("acquire").digest)
                (channel,) = server.command("PUBSUB", "CHANNELS")
                if replaced == "as it is cancelled":
                    monkeypatch.setattr(silent, "close", close_and_cancel)
                else:
                    monkeypatch.setattr(engine.backend, "abandon", abandon_later)
                server.command("PUBLISH", channel, *engine.waiting)  # so it asks again
                if replaced == "before it is abandoned":
                    await until_async(kept.is_set, "it to ask again")
                    waiter.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiter
                assert kept.is_set()
                await until_async(lambda: others.inspect("x").waiters == 0 and not engine.unfinished, "its end")
                assert first is not None
                first.release()
                server.command("CONFIG", "RESETSTAT")
                proxy.let_pass()
                late = lambda: b"cmdstat_evalsha:" in server.command("INFO", "commandstats")  # noqa: E731
                await until_async(late, "the late request to be carried out")
                assert not others.inspect("x").locked

        asyncio.run(story())


def test_a_connection_that_ends_in_the_handshake_is_one_error_in_every_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endpoint = endpoint_of_url(urlsplit("redis://nowhere"))

    def dial(error: Exception) -> None:
        async def connect(_: object) -> None:
            raise error

        monkeypatch.setattr(redis.asyncio.Connection, "connect", connect)
        asyncio.run(endpoint.dial_async(None, 1.0))

    with pytest.raises(BackendUnavailable, match="cannot reach") as refused:
        dial(RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed"))
    assert refused.value.transient
    with pytest.raises(RuntimeError, match="something else"):
        dial(RuntimeError("something else"))
