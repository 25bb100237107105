"""The servers of a quorum as one client sees them: shared by both drivers.

Decides: how a verb of one server is stopped while its request is under way, so that one thread can ask many at once.
Leaves to `blocking` and `asyncio_`: connections, and the asking of all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, Final, Protocol

from lockfast._model import Claim, Health
from lockfast._worlds import Clock, World
from lockfast.backends.redis.io.endpoints import Address
from lockfast.backends.redlock.io.members import Member
from lockfast.backends.wakeups import Wakeups
from lockfast.errors import BackendUnavailable

Verb = Coroutine[Any, Any, Any]  # a verb of one node
Verbs = Sequence[Verb | None]  # of each node
Enough = Callable[[Sequence[Any]], bool]  # from what each node answered

PENDING: Final = object()  # in place of an answer: none yet, or none is waited for


def has_answered(results: Any) -> bool:
    """Whether it is an answer, and neither silence nor an error."""
    return results is not PENDING and results.__class__ is not BackendUnavailable


class Fanout(Protocol):
    """Asks all nodes at once. What comes back for each is its answer, its error, or PENDING: not waited for."""

    mark_in_doubt: Callable[[int, str], None]  # called with a node and a claim of which a request there may come late

    @property
    def connections(self) -> Sequence[NodeConnections]:
        """Of each node."""
        ...

    @property
    def wakeups(self) -> Wakeups: ...

    async def broadcast(
        self, request: bytes, wanted: bytes | int, *, within: float, claim: str, every: bool = False
    ) -> list[Any]:
        """One and the same request to all, until a majority gave the answer that is `wanted`, or none can any more.

        With `every` all are waited for, but not those that are known to be gone, and after a majority nobody for much
        longer than that took. The rest is dropped, as in `ask`.
        """
        ...

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
        """Let all run until `enough` is known, or until no node that is worth waiting for is left. Once it is `settled`
        what comes out, the others have a moment.

        The rest is dropped: a request that is under way takes its effect, and nobody hears the answer; whatever is
        asked for the same `claim` later comes after it. Or, with `finish`, the rest goes on in the background.
        Raises BackendUnavailable only for what is wrong with the quorum as a whole, and only to a `claim` that asks
        for something new.
        """
        ...

    def later(self, node: int, claim: str, ask: Callable[[], Verb], until: float) -> None:
        """As soon as the node can be reached again, before `until` on the boot clock."""
        ...

    async def check_up(self) -> list[Health]:
        """How each server is, whatever is known of it: all are connected to anew."""
        ...

    async def pause(self, seconds: float) -> None: ...

    async def close(self) -> None: ...
    def after_fork(self) -> None: ...


class Suspended:
    """What a verb waits for when it waits: a request for its node, or, without a request, its subscription."""

    __slots__ = ("replies", "request")

    def __init__(self, request: bytes, replies: int) -> None:
        self.request = request
        self.replies = replies  # 0: one, and not in a list

    def __await__(self) -> Generator[Suspended, Any, Any]:
        return (yield self)


class NodeWakeups:
    """The wakes of the whole fan-out as one node sees them: a claim that it grants may still wait for others."""

    def __init__(self, wakeups: Wakeups) -> None:
        self._wakeups = wakeups
        self.subscribed = False
        self.expect, self.expects = wakeups.expect, wakeups.expects
        self.wait, self.wake = wakeups.wait, wakeups.wake

    @property
    def address(self) -> str:
        return self._wakeups.address if self.subscribed else ""

    def forget(self, claim: Claim) -> None:
        """The fan-out does, when all are done with it."""

    def close(self) -> None:
        """The fan-out does."""

    def after_fork(self) -> None:
        self.subscribed = False


class NodeConnections:
    """The connections of one node, for its driver. Nothing is sent here: whoever runs the verb does."""

    def __init__(self, wakeups: Wakeups, member: Member) -> None:
        self.node_wakeups = NodeWakeups(wakeups)
        self._member = member

    @property
    def wakeups(self) -> Wakeups:
        return self.node_wakeups

    def ask_one(self, address: Address | None, request: bytes, within: float) -> Suspended:
        return Suspended(request, 0)

    async def ask(self, address: Address | None, request: bytes, replies: int, within: float) -> list[Any]:
        answers: list[Any] = await Suspended(request, replies)
        return answers

    async def ask_each(
        self, requests: Sequence[tuple[Address | None, bytes, int]], within: float
    ) -> list[list[Any] | BackendUnavailable]:
        results: list[list[Any] | BackendUnavailable] = []
        for address, request, replies in requests:
            try:
                results.append(await self.ask(address, request, replies, within))
            except BackendUnavailable as error:
                results.append(error)
        return results

    async def expect(self, claim: Claim, address: Address | None, within: float) -> str:
        if not self.node_wakeups.subscribed:
            await Suspended(b"", 0)
        return self.node_wakeups.expect(claim)

    def drop(self, address: Address | None) -> None:
        self._member.failed()

    async def close(self) -> None:
        """The fan-out does."""

    def after_fork(self) -> None:
        self.node_wakeups.after_fork()


def open_fanout(members: Sequence[Member], world: World, clock: Clock | None, node_timeout: float) -> Fanout:
    """The fan-out for that world."""
    if world.blocking:
        from lockfast.backends.redlock.io.blocking import BlockingFanout

        return BlockingFanout(members, clock, node_timeout)
    from lockfast.backends.redlock.io.asyncio_ import AsyncioFanout

    return AsyncioFanout(members, clock, node_timeout)
