"""A quorum of Redis servers for asyncio: one connection to each for all requests, and one for its wake-ups.

Decides: how the verbs of the nodes go on as replies arrive, with no task for any of them, and when an
unreachable server is connected to again.
Leaves to `redis.io.asyncio_connection`: how requests share a connection. Leaves to `rounds`: when enough servers have
answered.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from lockfast._model import Claim, Health
from lockfast._refusals import closed_driver
from lockfast._time import boot_now
from lockfast._worlds import Clock
from lockfast._worlds.asyncio_ import end_tasks
from lockfast.backends.connecting.single_flight import SingleFlight
from lockfast.backends.redis.io.asyncio_connection import AsyncioConnection
from lockfast.backends.redis.io.asyncio_wakeups import AsyncioSubscription
from lockfast.backends.redis.io.resp import new_channel, unavailable
from lockfast.backends.redlock.io.fanout import Enough, Late, NodeConnections, Verbs
from lockfast.backends.redlock.io.members import RETRY_MIN_S, Member, refuse_wrong
from lockfast.backends.redlock.io.rounds import Round
from lockfast.backends.redlock.io.stragglers import CleanUps
from lockfast.backends.wakeups import WAKE_ALL
from lockfast.backends.wakeups.asyncio_ import AsyncioWaiters
from lockfast.errors import BackendUnavailable

Connect = Callable[[int, float], Coroutine[Any, Any, None]]  # to one node, for requests or for wake-ups, in that time


class PendingReply:
    """A request of a round whose reply, or several, are still to come. A connection treats it as a future."""

    __slots__ = ("_asked_at", "_collected", "_done", "_node", "_replies", "_round")

    def __init__(self, round: Round, node: int, replies: int, asked_at: float) -> None:
        self._round = round
        self._node = node
        self._replies = replies  # 0: one, and not in a list
        self._asked_at = asked_at
        self._collected: list[Any] = []
        self._done = False

    def done(self) -> bool:
        return self._done

    def set_result(self, reply: Any) -> None:
        if self._replies:
            self._collected.append(reply)
            if len(self._collected) < self._replies:
                return
            reply = self._collected
        self._done = True
        member = self._round.members[self._node]
        if member.failures:
            member.answered(self._asked_at)
        self._round.on_reply(self._node, reply)

    def set_exception(self, error: BackendUnavailable) -> None:
        self._done = True
        self._round.members[self._node].failed()
        self._round.give_up(self._node, error)


class AsyncioNodeConnection(AsyncioConnection):
    used_since = math.inf  # nothing was sent on it before

    def put(self, round: Round, node: int, request: bytes, replies: int, within: float, asked_at: float) -> None:
        now = self._time()
        waiting: Any = PendingReply(round, node, replies, asked_at)
        self._send(request, [(waiting, now, now + within)] * (replies or 1), now + within)
        if not self.alive:
            self._fail("closed the connection")


class AsyncioNodeSubscription(AsyncioSubscription):
    def __init__(self, waiters: AsyncioWaiters, member: Member, ended: Callable[[], None]) -> None:
        super().__init__(waiters, member, None)
        self._ended = ended

    def connection_lost(self, error: Exception | None) -> None:
        self._ended()
        super().connection_lost(error)


class QuorumWaiters(AsyncioWaiters):
    """Where the waiting tasks sleep: any server wakes them, by one channel."""

    def __init__(self, clock: Clock | None) -> None:
        super().__init__(clock)
        self.address = new_channel(confirms=True)
        self._closed = False

    def expect(self, claim: Claim) -> str:
        self.add_waiter(claim)
        if self._closed:  # while its request was under way: no wake-up comes any more
            self.wake(claim.id)
        return self.address

    def close(self) -> None:
        self._closed = True
        self.wake(WAKE_ALL)

    def after_fork(self) -> None:
        self._closed = False
        self.address = new_channel(confirms=True)
        self.reset()


class AsyncioFanout:
    def __init__(self, members: Sequence[Member], clock: Clock | None, node_timeout: float) -> None:
        self.members = tuple(members)
        self.node_timeout = node_timeout
        self.now = boot_now
        self.wakeups = QuorumWaiters(clock)
        self.node_connections = tuple(
            NodeConnections(self.wakeups, member, partial(self._keeps_order, node))
            for node, member in enumerate(members)
        )
        self._clean_ups = CleanUps(self.members, self._retry_soon)
        self.retry_later = self._clean_ups.add
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._forget()

    def _forget(self) -> None:
        self._connections: list[AsyncioNodeConnection | None] = [None] * len(self.members)
        self._subscriptions: list[AsyncioNodeSubscription | None] = [None] * len(self.members)
        self._connecting: dict[tuple[Connect, int], SingleFlight[None]] = {}
        self._retries: dict[int, asyncio.TimerHandle] = {}  # by node: when its clean-ups are tried
        self._is_first = True  # no server has been connected to yet
        for connections in self.node_connections:
            connections.node_wakeups.subscribed = False

    def _belong_to(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._closed:
            raise closed_driver(self.members[0].name)
        if self.wakeups.is_new(loop):
            self._forget()
        self._loop = loop

    async def ask(
        self,
        verbs: Verbs,
        enough: Enough,
        *,
        within: float,
        claim: str = "",
        settled: Enough | None = None,
        new: bool = False,
        late: Late | None = None,
    ) -> list[Any]:
        round = Round(verbs, enough, self.members, claim, settled, late)
        try:
            self._belong_to(asyncio.get_running_loop())
            if self._is_first:
                within = await self._connect_to_all(within)
            if new:
                refuse_wrong(self.members)
            round.start(self, within, self.node_timeout)
            if not round.is_decided():
                await self._decision(round)
        except BaseException:
            round.drop()
            raise
        return round.close()

    async def _connect_to_all(self, within: float) -> float:
        """Before the first question: a server that turns out to have no vote is not asked for it. The time left."""
        self._is_first = False
        started = boot_now()
        tasks = [task for node in range(len(self.members)) if (task := self._task(self._dial, node)) is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=min(self.node_timeout, within / 2))
        return max(0.01, within - (boot_now() - started))

    async def _decision(self, round: Round) -> None:
        assert self._loop is not None
        loop, decision = self._loop, self._loop.create_future()
        timer: asyncio.TimerHandle | None = None
        timer_at = math.inf

        def changed() -> None:
            nonlocal timer, timer_at
            if decision.done():
                return
            if round.is_decided():
                decision.set_result(None)
            elif round.over_at <= round.late_at and round.over_at < timer_at:  # else the connections see to it
                if timer is not None:
                    timer.cancel()
                timer_at = round.over_at
                timer = loop.call_later(timer_at - boot_now(), check_again)

        def check_again() -> None:
            nonlocal timer_at
            timer_at = math.inf  # the loop's clock may be ahead of ours
            changed()

        round.on_change = changed
        if round.over_at <= round.late_at:
            changed()
        try:
            await decision
        finally:
            if timer is not None:
                timer.cancel()

    # The transport of a round

    def send(self, round: Round, node: int, request: bytes, replies: int, now: float) -> None:
        connection = self._connections[node]
        if connection is not None and connection.alive:
            connection.put(round, node, request, replies, self.node_timeout, now)
        else:
            self._after(self._dial, round, node, partial(self.send, round, node, request, replies, now))

    def subscribe(self, round: Round, node: int) -> None:
        self._after(self._listen, round, node, partial(round.on_reply, node, None))

    def _after(self, connect: Connect, round: Round, node: int, go_on: Callable[[], None]) -> None:
        """Let the round go on once it is connected, or fail it there; at once if the server is known as unreachable.

        The round waits no longer than for a reply, though to connect may take longer.
        """
        member, task = self.members[node], self._task(connect, node)
        if task is None or member.absent:
            round.fail(node, member.out_of_reach())
            return

        def is_late() -> None:
            task.remove_done_callback(connected)
            member.failed()
            round.fail(node, unavailable(member.name, "did not answer in time", sent=False))

        def connected(task: asyncio.Task[None]) -> None:
            timer.cancel()
            error = None if task.cancelled() else task.exception()
            if task.cancelled() or isinstance(error, BackendUnavailable):
                round.fail(node, error or unavailable(member.name, "was disconnected", sent=False))  # type: ignore[arg-type]
            elif round.verbs[node] is not None:
                go_on()

        timer = task.get_loop().call_later(self.node_timeout, is_late)
        task.add_done_callback(connected)

    # Connections

    def _task(self, connect: Connect, node: int) -> asyncio.Task[None] | None:
        """The task that connects; none while it is in vain, or if all is closed: a round may go on for a while then."""
        member = self.members[node]
        connecting = self._connecting.setdefault((connect, node), SingleFlight("lockfast-node"))
        if not connecting.under_way and (self._closed or (member.absent and not member.is_due())):
            return None
        return connecting.start(partial(self._connect, connect, node), self.node_timeout)

    async def _connect(self, connect: Connect, node: int, within: float) -> None:
        try:
            await connect(node, within)
        except Exception:
            self.members[node].failed()
            raise
        self.members[node].answered(boot_now())

    async def _dial(self, node: int, within: float) -> None:
        connection = AsyncioNodeConnection(self.members[node], None, asyncio.get_running_loop())
        await connection.connect(within)
        if self._closed:
            connection.close()
        connection.used_since = boot_now()
        self._connections[node] = connection
        self._clean_ups.start(node, self, within)

    def _keeps_order(self, node: int, since: float) -> bool:
        connection = self._connections[node]
        return connection is not None and connection.alive and connection.used_since < since

    async def _listen(self, node: int, within: float) -> None:
        wakeups = self.node_connections[node].node_wakeups

        def ended() -> None:
            wakeups.subscribed = False

        subscription = AsyncioNodeSubscription(self.wakeups, self.members[node], ended)
        await subscription.connect(within)
        try:
            await subscription.subscribe(self.wakeups.address, within)
        except BaseException:
            subscription.close()
            raise
        if self._closed:
            subscription.close()
        self._subscriptions[node] = subscription
        wakeups.subscribed = True

    # What could not be sent while a server was unreachable

    def _retry_soon(self, node: int) -> None:
        """Even if nothing else is asked of it: other claims may want what it keeps."""
        assert self._loop is not None
        if node not in self._retries and not self._closed:
            seconds = max(RETRY_MIN_S, self.members[node].try_at - boot_now())
            self._retries[node] = self._loop.call_later(seconds, self._retry, node)

    def _retry(self, node: int) -> None:
        del self._retries[node]
        connection = self._connections[node]
        if self._closed or not self._clean_ups.wait_for(node):
            return
        if connection is not None and connection.alive:
            self._clean_ups.start(node, self, max(1.0, self.node_timeout))
        else:
            self._task(self._dial, node)
            self._retry_soon(node)

    # The end

    async def check_up(self) -> list[Health]:
        within = max(1.0, self.node_timeout)
        return list(await asyncio.gather(*[member.check_up_async(within) for member in self.members]))

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        self._closed = True
        self.wakeups.close()
        connections = [one for one in (*self._connections, *self._subscriptions) if one is not None]
        connecting = [each.task for each in self._connecting.values()]
        for retry in self._retries.values():
            retry.cancel()
        self._forget()
        for connection in connections:
            connection.close()
        await end_tasks(connecting)
        for connection in connections:
            await connection.gone()

    def after_fork(self) -> None:
        """The connections are the parent's; they are forgotten."""
        self.wakeups.after_fork()
        self._loop = None
        self._closed = False
        self._forget()
