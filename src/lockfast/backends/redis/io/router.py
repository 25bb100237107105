"""Which server gets a request, and what follows a redirection: written once for both drivers.

Decides: the way of a request through NOSCRIPT, redirections and a cluster that changes.
Leaves to `Connections` of either world: one request to one server. No request that may have taken effect is repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
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
    unsent,
    version_and_role,
    wait_for_replicas,
    whole,
)
from lockfast.backends.wakeups import Wakeups
from lockfast.errors import BackendUnavailable

_logger = logging.getLogger("lockfast")

MAX_REDIRECTIONS = 5
NODE_WITHIN_S = 1.0  # for a node to report its cluster: there are others to ask
MAX_NAMES_PER_SCRIPT = 100  # that one script renews; the server does nothing else meanwhile
FIRST_REPLIES_RATIO = (
    0.75  # of the time of requests to several servers; the rest is to follow NOSCRIPT and redirections
)


_NO_SCRIPT = Script(b"", b"")


class Connections(Protocol):
    """The connections of one world. The address None is the server of an endpoint that has one server."""

    @property
    def wakeups(self) -> Wakeups: ...
    def ask_one(self, address: Address | None, request: bytes, within: float) -> Awaitable[Any]:
        """The reply, which may be an error reply. Raises BackendUnavailable."""
        ...

    async def ask(self, address: Address | None, request: bytes, replies: int, within: float) -> list[Any]: ...
    async def ask_each(
        self, requests: Sequence[tuple[Address | None, bytes, int]], within: float
    ) -> list[list[Any] | BackendUnavailable]:
        """Ask several servers at once; one that fails does not delay the others."""
        ...

    async def expect(self, claim: Claim, address: Address | None, within: float) -> str:
        """As `wakeups.expect`, but subscribes first if there is no subscription."""
        ...

    def keeps_order(self, address: Address | None, since: float) -> bool:
        """Whether a request that is sent now is carried out after all that were sent since that moment, and
        interrupted: the connection is the same."""
        ...

    def drop(self, address: Address | None) -> None:
        """Close the connections to that server."""
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
        self.now = now  # a test's clock, which is sent to the server
        self.endpoint = endpoint
        self.replicas = replicas
        self.names_per_script = 1 if endpoint.clustered else MAX_NAMES_PER_SCRIPT
        self._connections = connections
        self.wakeups = connections.wakeups
        self._ask_one = connections.ask_one
        self._map = ClusterMap(endpoint.seeds) if isinstance(endpoint, ClusterEndpoint) else None
        self._greeted = False
        # As `ask`, where it is greeted and the only server, whatever the key:
        self.ask_directly: Callable[[bytes, float], Awaitable[Any]] | None = None

    async def expect(self, claim: Claim, within: float) -> str:
        address = None if self._map is None else self._map.any()
        try:
            return await self._connections.expect(claim, address, within)
        except BackendUnavailable as error:
            self._lost_track(address)
            raise unsent(error) from error.__cause__

    async def run(self, script: Script, key: str, request: bytes, within: float) -> Any:
        """Run one script, on the server that has the key. Raises BackendUnavailable."""
        until = boot_now() + within
        answer = await self.ask(key, request, within)
        if answer.__class__ is ReplyError:
            answer = await self.settle(script, key, request, answer, max(0.01, until - boot_now()))
        return answer

    def ask(self, key: str, request: bytes, within: float) -> Awaitable[Any]:
        """The first half of `run`, without anything that costs time: the reply, or an error reply to `settle`."""
        directly = self.ask_directly
        return directly(request, within) if directly is not None else self._ask_node(key, request, within)

    def keeps_order(self, since: float) -> bool:
        """Whether the next request is carried out after all that were sent since that moment, and interrupted. In a
        cluster it may be sent to another node than they were."""
        return self._map is None and self._connections.keeps_order(None, since)

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
        """As `run`, and the number of replicas that have it too."""
        until = boot_now() + within
        within = await self._get_ready(within)
        address = None if self._map is None else self._map.node_of(key)
        wait = self._wait(within)
        try:
            answer, replicas = await self._connections.ask(address, request + wait, 2, within)
        except BackendUnavailable:
            self._lost_track(address)
            raise
        if answer.__class__ is ReplyError:
            left = max(0.01, until - boot_now())
            answer, replicas = await self._settle(script, request, answer, address, left, wait)
        if replicas.__class__ is ReplyError:
            raise self._refused(replicas, address)
        return answer, replicas

    def _wait(self, within: float) -> bytes:
        """Ask how many replicas have the writes of this connection."""
        return command("WAIT", self.replicas, max(1, int(wait_for_replicas(within) * 1000)))

    async def run_all(
        self, script: Script, calls: Sequence[Call], within: float, *, replicated: bool = False
    ) -> list[Any]:
        """Run many scripts on their servers; the result of one that is not known is a BackendUnavailable.

        If `replicated`, a write that too few replicas have counts as not known.
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
        # A server that hangs must leave the others their time.
        first = within if len(requests) == 1 else within * FIRST_REPLIES_RATIO
        for (address, indices), share in zip(
            shares.items(), await self._connections.ask_each(requests, first), strict=True
        ):
            confirmed = self._enough(share, address) if wait else share
            if isinstance(confirmed, BackendUnavailable):
                self._lost_track(address)
            for number, index in enumerate(indices):
                answer: Any = confirmed if isinstance(confirmed, BackendUnavailable) else confirmed[number]
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
        confirmed = self._enough(settled, address) if wait else settled
        return confirmed if isinstance(confirmed, BackendUnavailable) else confirmed[0]

    def _enough(self, share: Any, address: Address | None) -> Any:
        """The replies, if enough replicas have the writes; else a BackendUnavailable."""
        if isinstance(share, BackendUnavailable):
            return share
        if share[-1].__class__ is ReplyError:
            return self._refused(share[-1], address)
        return share if share[-1] >= self.replicas else self.too_few(share[-1])

    def too_few(self, replicas: int, *, transient: bool = True) -> BackendUnavailable:
        return unavailable(
            self.endpoint.name,
            f"has only {replicas} replicas that confirm the write, and {self.replicas} were asked for",
            transient=transient,
        )

    async def question(self, key: str, request: bytes, within: float, script: Script = _NO_SCRIPT) -> Any:
        """As `run`, for a request that only reads: repeated at once if the connection had ended unnoticed."""
        started = boot_now()
        try:
            return await self.run(script, key, request, within)
        except BackendUnavailable as error:
            left = within - (boot_now() - started)
            if not error.transient or left < within / 2:
                raise
            return await self.run(script, key, request, left)

    async def scan(self, pattern: str, within: float) -> list[bytes]:
        """All keys of that pattern, on every server that has any."""
        within = await self._get_ready(within)
        if self._map is not None:
            await self._learn(within)  # a node that is not in the map has keys too
        found: list[bytes] = []
        for address in (None,) if self._map is None else self._map.primaries():
            until = boot_now() + within
            await self._probe(address, within)
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

    async def _probe(self, address: Address | None, within: float) -> None:
        """Notice now if the connection has ended, so that the scan gets a new one."""
        with suppress(BackendUnavailable):
            await self._ask_one(address, command("PING"), within / 2)

    async def close(self) -> None:
        await self._connections.close()

    def after_fork(self) -> None:
        self._connections.after_fork()

    def __repr__(self) -> str:
        return f"redis at {self.endpoint.name}, db {self.endpoint.db}"

    # Error replies

    async def _settle(
        self, script: Script, request: bytes, answer: Any, address: Address | None, within: float, wait: bytes = b""
    ) -> list[Any]:
        """Follow an error reply that says where or how to ask instead: the request had no effect, so it is repeated."""
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
        raise unavailable(self.endpoint.name, "redirects from node to node without end")

    def _refused(self, answer: Any, address: Address | None) -> BackendUnavailable:
        error = refusal(str(address or self.endpoint.name), answer)
        if kind_of(answer) in ("READONLY", "CLUSTERDOWN", "LOADING", "MASTERDOWN"):
            self._connections.drop(address)  # the next connection finds the new primary
            self._lost_track(address)
        return error

    # The cluster

    async def _learn(self, within: float) -> Address:
        """Ask nodes for the map of the cluster; the node that knew it. Raises BackendUnavailable if none answers."""
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
            error = unavailable(str(address), f"does not report its cluster: {answer}", transient=answer == [])
        raise error or unavailable(self.endpoint.name, "did not answer in time")

    def _lost_track(self, address: Address | None) -> None:
        if self._map is not None:
            self._map.mark_in_doubt(address)

    # Before the first request

    async def _get_ready(self, within: float) -> float:
        """Learn what must be known before the first request; how much of the time is left."""
        if self._greeted and (self._map is None or not self._map.stale):
            return within
        until = boot_now() + within
        try:
            if not self._greeted:
                await self._greet(within)
            elif self._map is not None:
                await self._learn(within)
        except BackendUnavailable as error:
            raise unsent(error) from error.__cause__
        return max(0.01, until - boot_now())

    async def identify(self, within: float) -> tuple[str, str]:
        """Version and role of the server, or of a node of the cluster; empty where this user may not read INFO."""
        address = None if self._map is None else await self._learn(within)
        questions = command("INFO", "server") + command("INFO", "replication")
        return version_and_role(facts_in(await self._connections.ask(address, questions, 2, within)))

    async def _greet(self, within: float) -> None:
        """Once: read what kind of server this is. Raises BackendUnavailable for one that takes no writes."""
        address = None if self._map is None else await self._learn(within)
        questions = command("INFO", "memory") + command("INFO", "replication")
        facts = facts_in(await self._connections.ask(address, questions, 2, within))
        if facts.get("role") == "slave" and type(self.endpoint) is RedisEndpoint:
            self._connections.drop(address)  # in a failover the next connection may lead to the primary
            raise unavailable(self.endpoint.name, "is a read-only replica: locks are kept on the primary")
        policy = facts.get("maxmemory_policy", "noeviction")
        greeted = self._greeted  # another task may have, meanwhile
        self._greeted = True
        if self._map is None:
            self.ask_directly = partial(self._ask_one, None)
        if not greeted and facts.get("maxmemory", "0") != "0" and policy != "noeviction":
            _logger.warning(EVICTION_WARNING, self.endpoint.name, policy)


EVICTION_WARNING = (
    "the lock server %s evicts keys when its memory is full (maxmemory-policy %s), and locks with them: "
    "set noeviction, or keep locks on a server of their own"
)
