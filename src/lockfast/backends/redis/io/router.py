"""Which server is asked, and what is done about an answer that says "not here": written once for both drivers.

Decides: the way of a request through NOSCRIPT, redirections and a cluster that changes.
Leaves to the wires of either world: one request to one server. Nothing that may have taken effect is repeated here.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from lockfast._model import Claim
from lockfast._time import boot_now
from lockfast.backends.redis.io.cluster import ClusterMap, address_in
from lockfast.backends.redis.io.endpoints import Address, ClusterEndpoint, RedisEndpoint
from lockfast.backends.redis.io.resp import (
    ASKING,
    ReplyError,
    Script,
    command,
    facts_in,
    kind_of,
    refusal,
    unavailable,
    version_and_role,
    whole,
)
from lockfast.backends.wakeups import Wakeups
from lockfast.errors import BackendUnavailable

_logger = logging.getLogger("lockfast")

MAX_REDIRECTIONS = 5  # redirections that one request may take
NODE_WITHIN_S = 1.0  # seconds that a node may take to tell of its cluster: there are others to ask
MAX_NAMES_PER_SCRIPT = 100  # names that one script renews; a server does nothing else meanwhile


_NO_SCRIPT = Script(b"", b"")


class Connections(Protocol):
    """The connections of one world. An address of None is the one server of a place that has one."""

    @property
    def wakeups(self) -> Wakeups: ...
    def ask_one(self, address: Address | None, request: bytes, within: float) -> Awaitable[Any]:
        """The reply, an error of the server's too. Raises BackendUnavailable."""
        ...

    async def ask(self, address: Address | None, request: bytes, replies: int, within: float) -> list[Any]: ...
    async def ask_each(
        self, requests: Sequence[tuple[Address | None, bytes, int]], within: float
    ) -> list[list[Any] | BackendUnavailable]:
        """Ask several servers at once; one that fails does not hold up the others."""
        ...

    async def expect(self, claim: Claim, address: Address | None, within: float) -> str:
        """As `wakeups.expect`, but makes the connection that wake-ups arrive by, if there is none."""
        ...

    def drop(self, address: Address | None) -> None:
        """Forget the connections to that server."""
        ...

    async def close(self) -> None: ...
    def after_fork(self) -> None: ...


class Call(NamedTuple):
    key: str
    request: bytes


class RedisDriver:
    def __init__(
        self, endpoint: RedisEndpoint, connections: Connections, now: Callable[[], float] | None, replicas: int = 0
    ) -> None:
        self.now = now  # a test's clock, which the server is told
        self.endpoint = endpoint
        self.replicas = replicas
        self.names_per_script = 1 if endpoint.clustered else MAX_NAMES_PER_SCRIPT
        self._connections = connections
        self._ask_one = connections.ask_one
        self._map = ClusterMap(endpoint.seeds) if isinstance(endpoint, ClusterEndpoint) else None
        self._greeted = False
        self._direct = False  # greeted, and there is one server

    @property
    def wakeups(self) -> Wakeups:
        return self._connections.wakeups

    async def expect(self, claim: Claim, within: float) -> str:
        address = None if self._map is None else self._map.any()
        try:
            return await self._connections.expect(claim, address, within)
        except BackendUnavailable:
            self._lost_track(address)
            raise

    async def run(self, script: Script, key: str, request: bytes, within: float) -> Any:
        """Run one script, on the server that has the key. Raises BackendUnavailable."""
        answer = await self.ask(key, request, within)
        return await self.settle(script, key, request, answer, within) if answer.__class__ is ReplyError else answer

    def ask(self, key: str, request: bytes, within: float) -> Awaitable[Any]:
        """The first half of `run`: the answer, or an error to `settle`. Nothing stands between it and the wire."""
        return self._ask_one(None, request, within) if self._direct else self._ask_node(key, request, within)

    async def settle(self, script: Script, key: str, request: bytes, error: Any, within: float) -> Any:
        address = None if self._map is None else self._map.node_of(key)
        (answer,) = await self._settle(script, request, error, address, within)
        return answer

    async def _ask_node(self, key: str, request: bytes, within: float) -> Any:
        within = await self._get_ready(within)
        address = None if self._map is None else self._map.node_of(key)
        try:
            return await self._ask_one(address, request, within)
        except BackendUnavailable:
            self._lost_track(address)
            raise

    async def run_replicated(self, script: Script, key: str, request: bytes, within: float) -> tuple[Any, int]:
        """As `run`, and how many replicas have it too."""
        within = await self._get_ready(within)
        address = None if self._map is None else self._map.node_of(key)
        wait = self._wait(within)
        try:
            answer, replicas = await self._connections.ask(address, request + wait, 2, within)
        except BackendUnavailable:
            self._lost_track(address)
            raise
        if answer.__class__ is ReplyError:
            answer, replicas = await self._settle(script, request, answer, address, within, wait)
        if replicas.__class__ is ReplyError:
            raise self._refused(replicas, address)
        return answer, replicas

    def _wait(self, within: float) -> bytes:
        """Ask how many replicas have what this connection wrote, for as long as they may take."""
        return command("WAIT", self.replicas, max(1, int(min(within / 2, 1.0) * 1000)))

    async def run_all(
        self, script: Script, calls: Sequence[Call], within: float, *, replicated: bool = False
    ) -> list[Any]:
        """Run many, on whichever servers; for those that cannot be known the answer is a BackendUnavailable.

        If `replicated`, what too few replicas have counts as not known.
        """
        until = boot_now() + within
        within = await self._get_ready(within)
        answers: list[Any] = [None] * len(calls)
        shares: dict[Address | None, list[int]] = {}
        for index, call in enumerate(calls):
            try:
                address = None if self._map is None else self._map.node_of(call.key)
                shares.setdefault(address, []).append(index)
            except BackendUnavailable as error:
                answers[index] = error
        wait = self._wait(within) if replicated and self.replicas else b""
        requests = [
            (address, b"".join([calls[index].request for index in indices]) + wait, len(indices) + bool(wait))
            for address, indices in shares.items()
        ]
        for (address, indices), share in zip(
            shares.items(), await self._connections.ask_each(requests, within), strict=True
        ):
            told = self._enough(share, address) if wait else share
            if isinstance(told, BackendUnavailable):
                self._lost_track(address)
            for number, index in enumerate(indices):
                answer: Any = told if isinstance(told, BackendUnavailable) else told[number]
                if answer.__class__ is ReplyError:
                    answer = await self._settle_one(script, calls[index], answer, address, until, wait)
                answers[index] = answer
        return answers

    async def _settle_one(
        self, script: Script, call: Call, answer: Any, address: Address | None, until: float, wait: bytes
    ) -> Any:
        left = until - boot_now()
        if left <= 0:
            return unavailable(self.endpoint.name, "did not answer in time")
        try:
            settled = await self._settle(script, call.request, answer, address, left, wait)
        except BackendUnavailable as error:
            return error
        told = self._enough(settled, address) if wait else settled
        return told if isinstance(told, BackendUnavailable) else told[0]

    def _enough(self, share: Any, address: Address | None) -> Any:
        """What was answered, if enough replicas have it."""
        if isinstance(share, BackendUnavailable):
            return share
        if share[-1].__class__ is ReplyError:
            return self._refused(share[-1], address)
        return share if share[-1] >= self.replicas else self.too_few(share[-1])

    def too_few(self, replicas: int, *, transient: bool = True) -> BackendUnavailable:
        return unavailable(
            self.endpoint.name,
            f"has only {replicas} replicas that confirm what it was told, and {self.replicas} were asked for",
            transient=transient,
        )

    async def question(self, key: str, request: bytes, within: float, script: Script = _NO_SCRIPT) -> Any:
        """As `run`, for what changes nothing: asked again at once if the connection had ended unnoticed."""
        started = boot_now()
        try:
            return await self.run(script, key, request, within)
        except BackendUnavailable as error:
            left = within - (boot_now() - started)
            if not error.transient or left < within / 2:
                raise
            return await self.run(script, key, request, left)

    async def scan(self, pattern: str, within: float) -> list[bytes]:
        """All keys like that, on every server that has any."""
        within = await self._get_ready(within)
        if self._map is not None:
            await self._learn(within)  # a node that we do not know of has keys too
        found: list[bytes] = []
        for address in (None,) if self._map is None else self._map.primaries():
            until = boot_now() + within
            await self._wake_up(address, within)
            cursor = b"0"
            while True:
                request = command("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
                answer = await self._ask_one(address, request, max(0.01, until - boot_now()))
                until = boot_now() + within  # there may be a million names
                if answer.__class__ is ReplyError:
                    raise self._refused(answer, address)
                cursor, keys = answer
                found += keys
                if cursor == b"0":
                    break
        return found

    async def _wake_up(self, address: Address | None, within: float) -> None:
        """Find out now if the connection has ended unnoticed."""
        with suppress(BackendUnavailable):
            await self._ask_one(address, command("PING"), within / 2)

    async def close(self) -> None:
        await self._connections.close()

    def after_fork(self) -> None:
        self._connections.after_fork()

    def __repr__(self) -> str:
        return f"redis at {self.endpoint.name}, db {self.endpoint.db}"  # two of them are one store if this is the same

    # Answers that are none

    async def _settle(
        self, script: Script, request: bytes, answer: Any, address: Address | None, within: float, wait: bytes = b""
    ) -> list[Any]:
        """Follow an error that says how to ask instead. What it refused has not happened, so it may be asked again."""
        until = boot_now() + within
        asking = b""
        for _ in range(MAX_REDIRECTIONS):
            kind, *rest = str(answer).split(" ")
            if kind == "NOSCRIPT":  # at the node that was asked last, in the same way
                request = whole(script, request)
            elif kind == "MOVED" and self._map is not None:
                address, asking = self._map.moved(int(rest[0]), rest[1], address), b""
            elif kind == "ASK" and self._map is not None:
                address, asking = address_in(rest[1], address), ASKING
            else:
                raise self._refused(answer, address)
            left = max(0.01, until - boot_now())
            replies = bool(asking) + 1 + bool(wait)
            answers = (await self._connections.ask(address, asking + request + wait, replies, left))[bool(asking) :]
            answer = answers[0]
            if answer.__class__ is not ReplyError:
                return answers
        raise unavailable(self.endpoint.name, "sends us from node to node")

    def _refused(self, answer: Any, address: Address | None) -> BackendUnavailable:
        error = refusal(str(address or self.endpoint.name), answer)
        if kind_of(answer) in ("READONLY", "CLUSTERDOWN", "LOADING", "MASTERDOWN"):
            self._connections.drop(address)  # the next connection finds the new primary
            self._lost_track(address)
        return error

    # The cluster

    async def _learn(self, within: float) -> Address:
        """Ask any node who has what, and tell which one knew. Raises BackendUnavailable if none answers."""
        assert self._map is not None
        until = boot_now() + within
        error: BackendUnavailable | None = None
        for address in self._map.candidates():
            left = until - boot_now()
            if left <= 0:
                break
            try:
                each = min(NODE_WITHIN_S, max(0.05, left / 3))
                answer = await self._ask_one(address, command("CLUSTER", "SLOTS"), each)
            except BackendUnavailable as failure:
                self._lost_track(address)
                error = failure
                continue
            if answer.__class__ is not ReplyError and self._map.read(answer, address):
                return address
            error = unavailable(str(address), f"does not tell of its cluster: {answer}", transient=answer == [])
        raise error or unavailable(self.endpoint.name, "did not answer in time")

    def _lost_track(self, address: Address | None) -> None:
        if self._map is not None:
            self._map.mark_in_doubt(address)

    # Good manners

    async def _get_ready(self, within: float) -> float:
        """Whatever must be known before anything is asked; how much of the time is left."""
        if self._greeted and (self._map is None or not self._map.stale):
            return within
        until = boot_now() + within
        if not self._greeted:
            await self._greet(within)
        elif self._map is not None:
            await self._learn(within)
        return max(0.01, until - boot_now())

    async def identify(self, within: float) -> tuple[str, str]:
        """Version and role of the server, or of a node of the cluster; empty where it does not tell this user."""
        address = None if self._map is None else await self._learn(within)
        questions = command("INFO", "server") + command("INFO", "replication")
        return version_and_role(facts_in(await self._connections.ask(address, questions, 2, within)))

    async def _greet(self, within: float) -> None:
        """Once: look at what kind of server this is. Raises BackendUnavailable for one that takes no writes."""
        address = None if self._map is None else await self._learn(within)
        questions = command("INFO", "memory") + command("INFO", "replication")
        facts = facts_in(await self._connections.ask(address, questions, 2, within))
        if facts.get("role") == "slave" and type(self.endpoint) is RedisEndpoint:
            raise unavailable(
                self.endpoint.name, "is a read-only replica: locks are kept on the primary", transient=False
            )
        policy = facts.get("maxmemory_policy", "noeviction")
        told, self._greeted, self._direct = self._greeted, True, self._map is None  # others may have asked meanwhile
        if not told and facts.get("maxmemory", "0") != "0" and policy != "noeviction":
            _logger.warning(EVICTION_WARNING, self.endpoint.name, policy)


EVICTION_WARNING = (
    "the lock server %s evicts keys when its memory is full (maxmemory-policy %s), and locks with them: "
    "set noeviction, or keep locks on a server of their own"
)
