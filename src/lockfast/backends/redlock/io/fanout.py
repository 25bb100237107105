"""The servers of a quorum as one client sees them: shared by both drivers.

Decides: how a verb of one server is stopped while its request is under way, so that one thread can ask many at once.
Leaves to `rounds`: when enough servers have answered. Leaves to `blocking` and `asyncio_`: connections.
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

Verb = Coroutine[Any, Any, Any] | bytes  # of one node; bytes are a single request, whose reply is the result
# Of each node. A function makes each where an interrupt finds it: none is left behind that never begins.
Verbs = Sequence[Verb | None] | Callable[[int], Verb | None]
Enough = Callable[[Sequence[Any]], bool]  # from the results of all nodes
Late = Callable[[int, Any], None]  # called with a node and the result that it gave too late

PENDING: Final = object()  # in place of a result: none yet, or none is waited for


def has_answered(result: Any) -> bool:
    """Whether it is an answer, and neither silence nor an error."""
    return result is not PENDING and result.__class__ is not BackendUnavailable


def were_sent(results: Sequence[Any]) -> bool:
    """Whether any of the requests may have reached its server."""
    return any(one.__class__ is not BackendUnavailable or one.sent for one in results)


def all_of_them(results: Sequence[Any]) -> bool:
    """Less is never enough: no verb may be left to wait for."""
    return False


class Fanout(Protocol):
    """Asks all nodes at once. The result of each is its answer, its error, or PENDING: not waited for."""

    @property
    def wakeups(self) -> Wakeups: ...

    def now(self) -> float: ...

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
        """Run all verbs until `enough` is known, or until no node that is worth waiting for is left. Once the outcome
        is `settled`, the other nodes have a moment.

        The remaining verbs are dropped: a request that is under way takes effect, and its reply is not read; a later
        request for the same `claim` comes after it. Or, with `late`, they go on in the background and report there.
        Raises BackendUnavailable only for what is wrong with the quorum as a whole, and only if the question is `new`:
        what was granted before is renewed and released all the same.
        """
        ...

    def retry_later(self, node: int, claim: str, verb: Callable[[], Verb], until: float) -> None:
        """Run it as soon as the node can be reached, unless that is after `until`."""
        ...

    async def check_up(self) -> list[Health]:
        """How each server is, whatever is known of it: a new connection asks."""
        ...

    async def pause(self, seconds: float) -> None: ...

    async def close(self) -> None: ...
    def after_fork(self) -> None: ...


class Suspended:
    """What a suspended verb waits for: the replies to a request, or, without a request, its node's subscription."""

    __slots__ = ("replies", "request")

    def __init__(self, request: bytes, replies: int) -> None:
        self.request = request
        self.replies = replies  # 0: one, and not in a list

    def __await__(self) -> Generator[Suspended, Any, Any]:
        return (yield self)


class NodeWakeups:
    """The wake-ups of the whole quorum as one node sees them: a claim that it grants may still wait for others."""

    def __init__(self, wakeups: Wakeups) -> None:
        self._wakeups = wakeups
        self.subscribed = False
        self.expect, self.expects = wakeups.expect, wakeups.expects
        self.wait, self.wake = wakeups.wait, wakeups.wake

    @property
    def address(self) -> str:
        return self._wakeups.address if self.subscribed else ""

    def forget(self, claim: Claim) -> None:
        """The quorum does, when all nodes are done with it."""

    def close(self) -> None:
        """The fan-out does."""

    def after_fork(self) -> None:
        self.subscribed = False


class NodeConnections:
    """The connections of one node, for its driver. Nothing is sent here: the round that runs the verb does."""

    def __init__(
        self, wakeups: Wakeups, member: Member, keeps_order: Callable[[float], bool] = lambda since: False
    ) -> None:
        """`keeps_order`: whether the next request arrives after all that were sent since that moment."""
        self.node_wakeups = NodeWakeups(wakeups)
        self._member = member
        self._keeps_order = keeps_order

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

    def keeps_order(self, address: Address | None, since: float) -> bool:
        return self._keeps_order(since)

    def drop(self, address: Address | None) -> None:
        self._member.failed()

    async def close(self) -> None:
        """The fan-out does."""

    def after_fork(self) -> None:
        self.node_wakeups.after_fork()


class OpenFanout(Fanout, Protocol):
    """One that has connections, for the drivers of its nodes."""

    @property
    def node_connections(self) -> Sequence[NodeConnections]: ...


def open_fanout(members: Sequence[Member], world: World, clock: Clock | None, node_timeout: float) -> OpenFanout:
    """The fan-out for that world."""
    if world.blocking:
        from lockfast.backends.redlock.io.blocking import BlockingFanout

        return BlockingFanout(members, clock, node_timeout)
    from lockfast.backends.redlock.io.asyncio_ import AsyncioFanout

    return AsyncioFanout(members, clock, node_timeout)
