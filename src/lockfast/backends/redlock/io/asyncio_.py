"""A quorum of Redis servers for asyncio: one connection to each for all requests, and one for its wake-ups.

Decides: how the verbs of the nodes go on as answers arrive, with no task for any of them, and when a server that is
gone is connected to again.
Leaves to `asyncio_`: how requests share a connection. Leaves to `fanout`: what a server must be.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from lockfast._model import Claim, Health
from lockfast._time import boot_now
from lockfast._worlds import Clock
from lockfast._worlds.asyncio_ import background_task, end_tasks
from lockfast.backends.redis.io.asyncio_ import AsyncioConnection, AsyncioSubscription
from lockfast.backends.redis.io.resp import (
    ReplyError,
    command,
    keep_alive,
    new_channel,
    no_connection,
    refusal,
    unavailable,
)
from lockfast.backends.redlock.io.fanout import Enough, NodeConnections, Suspended, Verb, Verbs
from lockfast.backends.redlock.io.members import SOONEST, Member, refuse_wrong
from lockfast.backends.redlock.io.rounds import Broadcast, Round
from lockfast.backends.wakeups import WAKE_ALL
from lockfast.backends.wakeups.asyncio_ import AsyncioWaiters
from lockfast.errors import BackendUnavailable

_CLEAN_UPS = 1000  # that are kept for a server that is gone


class _Reply:
    """As a future: what it is given, the verb that asked goes on with."""

    __slots__ = ("_answers", "_done", "_fanout", "_node", "_replies", "_round")

    def __init__(self, fanout: AsyncioFanout, round: Round | Broadcast, node: int, replies: int) -> None:
        self._fanout, self._round, self._node, self._replies = fanout, round, node, replies
        self._answers: list[Any] = []
        self._done = False

    def done(self) -> bool:
        return self._done

    def set_result(self, reply: Any) -> None:
        if self._replies:
            self._answers.append(reply)
            if len(self._answers) < self._replies:
                return
            reply = self._answers
        self._done = True
        self._fanout.members[self._node].answered()
        self._round.answer(self._node, reply)

    def set_exception(self, error: BackendUnavailable) -> None:
        self._done = True
        self._fanout.members[self._node].failed()
        if self._round.claim:
            self._fanout.mark_in_doubt(self._node, self._round.claim)
        self._round.fail(self._node, error)


class AsyncioNodeConnection(AsyncioConnection):
    def put(self, reply: _Reply, suspended: Suspended, within: float) -> None:
        now = self._time()
        waiting: Any = reply  # it has all of a future that a line asks for
        self._unanswered.extend([(waiting, now, now + within)] * (suspended.replies or 1))
        self._send(suspended.request, now + within)
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
        self.address = new_channel(clustered=False)

    def expect(self, claim: Claim) -> str:
        self.add_waiter(claim)
        return self.address

    def close(self) -> None:
        self.wake(WAKE_ALL)

    def after_fork(self) -> None:
        self.address = new_channel(clustered=False)
        self.reset()


class AsyncioFanout:
    def __init__(self, members: Sequence[Member], clock: Clock | None, node_timeout: float) -> None:
        self.members = tuple(members)
        self.node_timeout = node_timeout
        # Called with a claim of which a request may come late to that node.
        self.mark_in_doubt: Callable[[int, str], None] = lambda node, claim: None
        self.wakeups = QuorumWaiters(clock)
        self.connections = tuple(NodeConnections(self.wakeups, member) for member in members)
        self._clean_ups: list[dict[str, tuple[Callable[[], Verb], float]]] = [{} for _ in members]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._forget()

    def _forget(self) -> None:
        self._lines: list[AsyncioNodeConnection | None] = [None] * len(self.members)
        self._wake_lines: list[AsyncioNodeSubscription | None] = [None] * len(self.members)
        self._making: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._looks: dict[int, asyncio.TimerHandle] = {}  # by node: when it is tried for what could not be said
        self._strangers = True  # nobody has been connected to yet
        for connections in self.connections:
            connections.node_wakeups.subscribed = False

    def _belong_to(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._closed:
            raise BackendUnavailable.closed(self.members[0].name, transient=False)
        if self.wakeups.is_new(loop):
            self._forget()
        self._loop = loop

    # All at once

    async def broadcast(
        self, request: bytes, wanted: bytes | int, *, within: float, claim: str, every: bool = False
    ) -> list[Any]:
        broadcast = Broadcast(wanted, self.members, claim, every)
        await self._ask(broadcast, within, lambda within: self._say(broadcast, request, within), False, not every)
        return broadcast.results

    async def ask(
        self,
        verbs: Verbs,
        enough: Enough,
        *,
        within: float,
        finish: bool = False,
        claim: str = "",
        settled: Enough | None = None,
    ) -> list[Any]:
        round = Round(verbs, enough, self.members, min(within, self.node_timeout), claim, settled)
        round.begin = self._begin
        await self._ask(round, within, lambda within: round.start(), finish, bool(claim) and not finish)
        return list(round.results)

    async def _ask(
        self, round: Round | Broadcast, within: float, start: Callable[[float], None], finish: bool, new: bool
    ) -> None:
        timeout = min(within, self.node_timeout)
        try:
            self._belong_to(asyncio.get_running_loop())
            if self._strangers:
                await self._meet(timeout)
            if new:  # what was granted before is renewed and let go of all the same
                refuse_wrong(self.members)
            start(timeout)
            if not round.decided():
                await self._decision(round)
        except BaseException:
            round.drop()
            raise
        if not finish:
            round.drop()

    def _say(self, broadcast: Broadcast, request: bytes, within: float) -> None:
        suspended = Suspended(request, 0)
        for node, line in enumerate(self._lines):
            if line is not None and line.alive:
                line.put(_Reply(self, broadcast, node, 0), suspended, within)
            else:  # nobody who is asked in the same words as all others waits for a connection
                self._dialling(node)
                broadcast.fail(node, self.members[node].out_of_reach())

    async def _meet(self, within: float) -> None:
        """Before the first question, so that nobody is asked for a vote who turns out to have none."""
        self._strangers = False
        tasks = [task for node in range(len(self.members)) if (task := self._dialling(node)) is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=within)

    async def _decision(self, round: Round | Broadcast) -> None:
        assert self._loop is not None
        loop, decision = self._loop, self._loop.create_future()

        late: asyncio.TimerHandle | None = None

        def told() -> None:
            nonlocal late
            if decision.done():
                return
            if round.decided():
                decision.set_result(None)
            elif late is None and round.over_at < math.inf:
                late = loop.call_later(round.over_at - boot_now(), not_yet)

        def not_yet() -> None:
            nonlocal late
            late = None
            told()

        round.told = told
        try:
            await decision
        finally:
            if late is not None:
                late.cancel()

    def _begin(self, round: Round, node: int, suspended: Suspended) -> None:
        """A verb has stopped: send what it asks, as soon as there is a connection."""
        if not suspended.request:
            self._make("subscription", node, self._subscribe, round, suspended)
            return
        line = self._lines[node]
        if line is not None and line.alive:
            line.put(_Reply(self, round, node, suspended.replies), suspended, round.node_timeout)
        else:
            self._make("line", node, self._dial, round, suspended)

    # Connections

    def _make(
        self, what: str, node: int, make: Callable[[int], Coroutine[Any, Any, None]], round: Round, suspended: Suspended
    ) -> None:
        """Let the round go on when it is made, or has failed; not at all if the server is known to be gone."""
        member, task = self.members[node], self._task(what, node, make)
        assert self._loop is not None
        if task is None or member.absent:
            round.fail(node, member.out_of_reach())
            return
        late = self._loop.call_later(round.node_timeout, self._too_late, round, node)

        def go_on(task: asyncio.Task[None]) -> None:
            late.cancel()
            error = None if task.cancelled() else task.exception()
            if task.cancelled() or isinstance(error, BackendUnavailable):
                round.fail(node, error or unavailable(member.name, "was let go of"))  # type: ignore[arg-type]
            elif node in round.pending:
                if suspended.request:
                    self._begin(round, node, suspended)
                else:
                    round.answer(node, None)

        task.add_done_callback(go_on)

    def _task(
        self, what: str, node: int, make: Callable[[int], Coroutine[Any, Any, None]]
    ) -> asyncio.Task[None] | None:
        """The task that makes it; none while it is in vain, or if all is closed: a round may go on for a while then."""
        member, task = self.members[node], self._making.get((what, node))
        if task is None and not self._closed and (not member.absent or member.is_due()):
            task = self._making[what, node] = background_task(asyncio.get_running_loop(), make(node), "lockfast-node")
            task.add_done_callback(partial(self._made, what, node))
        return task

    def _dialling(self, node: int) -> asyncio.Task[None] | None:
        line = self._lines[node]
        return None if line is not None and line.alive else self._task("line", node, self._dial)

    def _too_late(self, round: Round, node: int) -> None:
        if node in round.pending:
            self.members[node].failed()
            round.fail(node, no_connection(self.members[node].url, "no answer in time"))

    def _made(self, what: str, node: int, task: asyncio.Task[None]) -> None:
        self._making.pop((what, node), None)
        if not task.cancelled():
            (self.members[node].failed if task.exception() else self.members[node].answered)()

    async def _dial(self, node: int) -> None:
        line = AsyncioNodeConnection(self.members[node], None, asyncio.get_running_loop())
        await line.connect(max(1.0, self.node_timeout))
        if self._closed:
            line.close()
        self._lines[node] = line
        self._clean_up(node)

    async def _subscribe(self, node: int) -> None:
        wakeups, within = self.connections[node].node_wakeups, max(1.0, self.node_timeout)

        def ended() -> None:
            wakeups.subscribed = False

        line = AsyncioNodeSubscription(self.wakeups, self.members[node], ended)
        await line.connect(within)
        keep_alive(line.socket)  # it is only ever read: of a cut that nobody tells it would never know
        try:
            answer = await line.ask(command("SUBSCRIBE", self.wakeups.address), within)
            if answer.__class__ is ReplyError:
                raise refusal(self.members[node].name, answer)
        except BaseException:
            line.close()
            raise
        if self._closed:
            line.close()
        self._wake_lines[node] = line
        wakeups.subscribed = True

    # What could not be said while a server was gone

    def later(self, node: int, claim: str, ask: Callable[[], Verb], until: float) -> None:
        if len(self._clean_ups[node]) >= _CLEAN_UPS:
            del self._clean_ups[node][next(iter(self._clean_ups[node]))]
        self._clean_ups[node][claim] = ask, until
        self._look_later(node)

    def _look_later(self, node: int) -> None:
        """Though nobody else may ask it anything: others may want what it keeps."""
        assert self._loop is not None
        if node not in self._looks and not self._closed:
            seconds = max(SOONEST, self.members[node].try_at - boot_now())
            self._looks[node] = self._loop.call_later(seconds, self._look_for, node)

    def _look_for(self, node: int) -> None:
        del self._looks[node]
        line, now = self._lines[node], boot_now()
        self._clean_ups[node] = {claim: one for claim, one in self._clean_ups[node].items() if one[1] > now}
        if not self._clean_ups[node] or self._closed:
            return
        if line is not None and line.alive:
            self._clean_up(node)
        else:
            self._dialling(node)
            self._look_later(node)

    def _clean_up(self, node: int) -> None:
        left, self._clean_ups[node] = self._clean_ups[node], {}
        for claim, (ask, until) in left.items():
            if until > boot_now():
                verbs = [ask() if each == node else None for each in range(len(self.members))]
                round = Round(verbs, lambda results: False, self.members, max(1.0, self.node_timeout), "")
                round.begin = self._begin
                round.told = partial(self._said, round, node, claim, ask, until)
                round.start()

    def _said(self, round: Round, node: int, claim: str, ask: Callable[[], Verb], until: float) -> None:
        answer = round.results[node]
        if answer.__class__ is BackendUnavailable and answer.transient:
            self.later(node, claim, ask, until)

    # The end

    async def check_up(self) -> list[Health]:
        within = max(1.0, self.node_timeout)
        return list(await asyncio.gather(*[member.check_up_async(within) for member in self.members]))

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        self._closed = True
        self.wakeups.close()
        lines = [line for line in (*self._lines, *self._wake_lines) if line is not None]
        making = list(self._making.values())
        for look in self._looks.values():
            look.cancel()
        self._forget()
        for line in lines:
            line.close()
        await end_tasks(making)
        for line in lines:
            await line.gone()

    def after_fork(self) -> None:
        """The connections are the parent's; they are forgotten."""
        self.wakeups.after_fork()
        self._loop = None
        self._closed = False
        self._forget()
