"""The servers of a quorum as one client sees them: shared by both drivers.

Decides: what is looked at when a server is connected to, and which ones are refused: replicas, and one server under two
names. How a verb of one server is stopped while its request is under way, so that one thread can ask many at once.
Leaves to `redis_quorum_blocking` and `redis_quorum_asyncio`: connections, and the asking of all at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, TypeAlias

import hiredis
import redis

from holdfast._model import Claim, Health
from holdfast._time import boot_now
from holdfast._worlds import Clock, World
from holdfast.drivers.redis_places import Address, Place, hang_up
from holdfast.drivers.redis_wire import Script, command, unavailable
from holdfast.drivers.wakes import Wakes
from holdfast.errors import BackendUnavailable

logger = logging.getLogger("holdfast")

FEWEST: Final = 3  # with two, either of them could stop everything
SOONEST: Final = 0.1  # seconds after which a server that could not be reached is tried again, the first time
LATEST: Final = 3.0  # and at most
_QUESTIONS: Final = ("server", "replication", "persistence")
_ANSWERS: Final = len(_QUESTIONS) + 1

Ask = Coroutine[Any, Any, Any]  # a verb of one node
Asks: TypeAlias = "Sequence[Ask | None] | Turn"  # of each node, or one request that all are sent
Enough = Callable[[Sequence[Any]], bool]  # from what each node answered

PENDING: Final = object()  # in place of an answer: none yet, or none is waited for


def has_answered(heard: Any) -> bool:
    """Whether it is an answer, and neither silence nor an error."""
    return heard is not PENDING and heard.__class__ is not BackendUnavailable


class Crew(Protocol):
    """Asks all nodes at once. What comes back for each is its answer, its error, or PENDING: not waited for."""

    doubt: Callable[[int, str], None]  # called with a node and a claim of which a request there may come late

    @property
    def wires(self) -> Sequence[NodeWires]:
        """Of each node."""
        ...

    @property
    def wakes(self) -> Wakes: ...

    async def ask(
        self, asks: Asks, enough: Enough, *, within: float, finish: bool = False, claim: str = ""
    ) -> list[Any]:
        """Let all run until `enough` is known, or until no node that is worth waiting for is left.

        The rest is dropped: a request that is under way takes its effect, and nobody hears the answer; whatever is
        asked for the same `claim` later comes after it. Or, with `finish`, the rest goes on in the background.
        Raises BackendUnavailable only for what is wrong with the quorum as a whole.
        """
        ...

    def later(self, node: int, claim: str, ask: Callable[[], Ask], until: float) -> None:
        """As soon as the node can be reached again, before `until` on the boot clock."""
        ...

    async def check_up(self) -> list[Health]:
        """How each server is, whatever is known of it: all are connected to anew."""
        ...

    async def pause(self, seconds: float) -> None: ...

    async def close(self) -> None: ...
    def after_fork(self) -> None: ...


class Turn:
    """What a verb waits for when it waits: a request for its node, or, without a request, its subscription."""

    __slots__ = ("replies", "request")

    def __init__(self, request: bytes, replies: int) -> None:
        self.request = request
        self.replies = replies  # 0: one, and not in a list

    def __await__(self) -> Generator[Turn, Any, Any]:
        return (yield self)


class NodeWakes:
    """The wakes of the whole crew as one node sees them: a claim that it grants may still wait for others."""

    def __init__(self, wakes: Wakes) -> None:
        self._wakes = wakes
        self.subscribed = False
        self.expect, self.expects = wakes.expect, wakes.expects
        self.wait, self.wake = wakes.wait, wakes.wake

    @property
    def address(self) -> str:
        return self._wakes.address if self.subscribed else ""

    def forget(self, claim: Claim) -> None:
        """The crew does, when all are done with it."""

    def close(self) -> None:
        """The crew does."""

    def after_fork(self) -> None:
        self.subscribed = False


class NodeWires:
    """The connections of one node, for its driver. Nothing is sent here: whoever runs the verb does."""

    def __init__(self, wakes: Wakes, member: Member) -> None:
        self.node_wakes = NodeWakes(wakes)
        self._member = member

    @property
    def wakes(self) -> Wakes:
        return self.node_wakes

    def ask_one(self, address: Address | None, request: bytes, within: float) -> Turn:
        return Turn(request, 0)

    async def ask(self, address: Address | None, request: bytes, replies: int, within: float) -> list[Any]:
        answers: list[Any] = await Turn(request, replies)
        return answers

    async def ask_each(
        self, requests: Sequence[tuple[Address | None, bytes, int]], within: float
    ) -> list[list[Any] | BackendUnavailable]:
        heard: list[list[Any] | BackendUnavailable] = []
        for address, request, replies in requests:
            try:
                heard.append(await self.ask(address, request, replies, within))
            except BackendUnavailable as error:
                heard.append(error)
        return heard

    async def expect(self, claim: Claim, address: Address | None, within: float) -> str:
        if not self.node_wakes.subscribed:
            await Turn(b"", 0)
        return self.node_wakes.expect(claim)

    def drop(self, address: Address | None) -> None:
        self._member.failed()

    async def close(self) -> None:
        """The crew does."""

    def after_fork(self) -> None:
        self.node_wakes.after_fork()


class Member(Place):
    """One server of the quorum: where it is, and what is known of it."""

    def __init__(self, place: Place, members: list[Member]) -> None:
        vars(self).update(vars(place))
        self._members = members  # all of the quorum
        self.preload: Sequence[bytes] = ()  # said with every connection: the scripts that nobody waits to be told of
        self.run_id = ""
        self.wrong: BackendUnavailable | None = None  # why it cannot be one of a quorum
        self.facts: dict[str, str] = {}  # what it told of itself when it was last connected to
        self.failures = 0  # in a row, to connect or to answer in time
        self.try_at = 0.0  # on the boot clock: not connected to before, unless nobody waits for it
        self._born_at = 0.0  # on the boot clock, or earlier: since when it remembers everything

    @property
    def absent(self) -> bool:
        """It failed to answer lately, so nobody waits for it."""
        return self.failures > 0

    def failed(self) -> None:
        self.failures += 1
        self.try_at = boot_now() + min(LATEST, SOONEST * 2.0 ** min(self.failures - 1, 10))

    def answered(self) -> None:
        self.failures = 0

    def age(self) -> float:
        return boot_now() - self._born_at

    def dial(self, address: Address | None, within: float) -> Any:
        connection = super().dial(address, within)
        try:
            connection.send_packed_command([_questions(), *self.preload])
            self._greet([_reply(connection) for _ in range(_ANSWERS + len(self.preload))])
        except (redis.RedisError, OSError) as error:
            connection.disconnect()
            raise self.unreachable(address, error) from error
        except BaseException:
            connection.disconnect()
            raise
        return connection

    async def dial_async(self, address: Address | None, within: float) -> Any:
        connection = await super().dial_async(address, within)
        try:
            await connection.send_packed_command([_questions(), *self.preload])
            self._greet([await _reply_async(connection) for _ in range(_ANSWERS + len(self.preload))])
        except (redis.RedisError, OSError) as error:
            hang_up(connection)
            raise self.unreachable(address, error) from error
        except BaseException:
            hang_up(connection)
            raise
        return connection

    def check_up(self, within: float) -> Health:
        try:
            connection = self.dial(None, within)
        except BackendUnavailable as error:
            return self._health(error)
        try:
            started = boot_now()
            connection.send_packed_command([command("PING")])
            connection.read_response()
            return self._health(latency=boot_now() - started)
        except (redis.RedisError, OSError) as error:
            return self._health(self.unreachable(None, error))
        finally:
            connection.disconnect()

    async def check_up_async(self, within: float) -> Health:
        try:
            async with asyncio.timeout(within):
                connection = await self.dial_async(None, within)
        except BackendUnavailable as error:
            return self._health(error)
        except TimeoutError as error:
            return self._health(self.unreachable(None, error))
        try:
            async with asyncio.timeout(within):
                started = boot_now()
                await connection.send_packed_command([command("PING")])
                await connection.read_response()
            return self._health(latency=boot_now() - started)
        except (redis.RedisError, OSError) as error:
            return self._health(self.unreachable(None, error))
        finally:
            hang_up(connection)

    def _health(self, error: BackendUnavailable | None = None, latency: float | None = None) -> Health:
        facts = self.facts if error is None or error is self.wrong else {}
        return Health(
            self.name,
            reachable=error is None or error is self.wrong,
            latency=latency,
            version=facts.get("valkey_version") or facts.get("redis_version", ""),
            role={"master": "primary", "slave": "replica"}.get(facts.get("role", ""), ""),
            error="" if error is None else str(error),
        )

    def _greet(self, answers: Sequence[Any]) -> None:
        """Raises BackendUnavailable if it cannot be one of a quorum."""
        *told, fsync = answers[:_ANSWERS]
        facts: dict[str, str] = {}
        for answer in told:
            if isinstance(answer, bytes):  # to some users it is not told
                facts |= dict(line.split(":", 1) for line in answer.decode().splitlines() if ":" in line)
        self.facts = facts
        self.run_id = facts.get("run_id", "")
        keeps_all = facts.get("aof_enabled") == "1" and isinstance(fsync, list) and fsync[1:] == [b"always"]
        # It counts how often the second has changed since it started, which may be one more than have passed.
        age = max(0.0, float(facts.get("uptime_in_seconds", 0)) - 1.0)
        self._born_at = 0.0 if keeps_all or not facts else boot_now() - age
        self.wrong = None
        if facts.get("role") == "slave":
            self.wrong = unavailable(
                self.name, "is a replica: a quorum is of servers that know nothing of each other", transient=False
            )
        for other in self._members:
            if other is not self and self.run_id and other.run_id == self.run_id:
                self.wrong = unavailable(
                    self.name, f"is the same server as {other.name}: its vote would count twice", transient=False
                )
        if self.wrong is not None:
            raise self.wrong


def _questions() -> bytes:
    return b"".join(command("INFO", section) for section in _QUESTIONS) + command("CONFIG", "GET", "appendfsync")


def _reply(connection: Any) -> Any:
    with suppress(redis.ResponseError):  # not everybody may ask for everything
        return connection.read_response()


async def _reply_async(connection: Any) -> Any:
    with suppress(redis.ResponseError):
        return await connection.read_response()


def members_of(places: Sequence[Place]) -> list[Member]:
    """Raises ValueError for too few of them, and for one that is named twice."""
    if len(places) < FEWEST:
        raise ValueError(f"a quorum is of {FEWEST} lock servers at least, and not {len(places)}")
    names = [place.name for place in places]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} is named twice: its vote would count twice")
    for place in places:
        if type(place) is not Place:
            raise ValueError(f"a quorum is of single servers, and {place.name} is more than one")
    members: list[Member] = []
    members.extend(Member(place, members) for place in places)
    return members


def open_crew(members: Sequence[Member], world: World, clock: Clock | None, node_timeout: float) -> Crew:
    """The crew for that world."""
    if world.blocking:
        from holdfast.drivers.redis_quorum_blocking import BlockingCrew

        return BlockingCrew(members, clock, node_timeout)
    from holdfast.drivers.redis_quorum_asyncio import AsyncioCrew

    return AsyncioCrew(members, clock, node_timeout)


def refuse_wrong(members: Sequence[Member]) -> None:
    """Raises BackendUnavailable if one of them cannot be one of a quorum."""
    for member in members:
        if member.wrong is not None:
            raise member.wrong


def source_of(script: Script) -> str:
    """The text of a script, as it was before it was packed."""
    reader = hiredis.Reader()
    reader.feed(b"*2\r\n" + script.text)
    _, source = reader.gets()
    return str(source.decode())
