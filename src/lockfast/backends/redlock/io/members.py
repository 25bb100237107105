"""One server of a quorum as one client sees it: where it is, and what is known of it.

Decides: what a server is asked on each new connection, and which servers are refused: replicas, one server under two
names, and servers that do not say what they are. When an unreachable server is tried again. That a server has all
scripts before it is asked for a vote: no round waits for the server that is slowest, so a request with a script that it
does not know would never be repeated there.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import redis

from lockfast._model import Health
from lockfast._time import boot_now
from lockfast.backends.redis.io.connections import hang_up, is_of_a_closed_connection
from lockfast.backends.redis.io.endpoints import Address, RedisEndpoint
from lockfast.backends.redis.io.resp import command, facts_in, unavailable, version_and_role
from lockfast.backends.redis.io.router import EVICTION_WARNING
from lockfast.backends.redlock.io.age import ServerAge
from lockfast.errors import BackendUnavailable

_logger = logging.getLogger("lockfast")

MIN_SERVERS: Final = 3  # with two, either of them could stop everything
RETRY_MIN_S: Final = 0.1  # after which a server that could not be reached is tried again, the first time
RETRY_MAX_S: Final = 3.0
_QUESTIONS: Final = ("server", "replication", "persistence", "memory")
_ANSWERS: Final = len(_QUESTIONS) + 1


class Member(RedisEndpoint):
    """One server of the quorum: where it is, and what is known of it."""

    def __init__(self, endpoint: RedisEndpoint, members: list[Member], scripts: Sequence[str]) -> None:
        vars(self).update(vars(endpoint))
        self._members = members  # all of the quorum
        self._scripts = scripts  # their texts
        self._questions = _questions(scripts)  # sent on every connection
        self.run_id = ""
        self.wrong: BackendUnavailable | None = None  # why it cannot be one of a quorum
        self.accepted = False  # it was right once: if it no longer is, it counts as unreachable
        self._trouble: BackendUnavailable | None = None  # why it could not be connected to when that was last tried
        self.facts: dict[str, str] = {}  # what it said of itself on the last connection
        self.mark_in_doubt: Callable[[str], None] = lambda claim: None  # a request of that claim may arrive late here
        self.failures = 0  # in a row, to connect or to answer in time
        self.try_at = 0.0  # on the boot clock: not connected to before, unless there is no majority without it
        self._failed_at = 0.0  # what it was asked before that does not show that it can be reached
        self._counted_at = 0.0  # when a failure was last counted
        self._age = ServerAge()

    @property
    def absent(self) -> bool:
        """It failed to answer lately, so no round waits for it."""
        return self.failures > 0

    def failed(self) -> None:
        """All failures before it is tried again have the same reason, and count once."""
        now = self._failed_at = boot_now()
        if now >= self.try_at or not self.failures:
            self.failures += 1
            self._counted_at = now
            self.try_at = now + min(RETRY_MAX_S, RETRY_MIN_S * 2.0 ** min(self.failures - 1, 10))

    def is_due(self) -> bool:
        """Whether to connect to it again: later and later, but soon if there is no majority without it."""
        present = sum([not member.failures for member in self._members])
        needed = 2 * present <= len(self._members)
        return boot_now() >= (min(self.try_at, self._counted_at + RETRY_MIN_S) if needed else self.try_at)

    def answered(self, asked_at: float) -> None:
        """A reply may have arrived long before it is read, and the server may have failed since."""
        if asked_at >= self._failed_at:
            self.failures = 0

    def age(self) -> float:
        """Seconds for which it has remembered every vote, as far as this client can know."""
        return self._age.at(boot_now())

    def out_of_reach(self) -> BackendUnavailable:
        """Why it cannot be asked while no connection to it is tried: nothing is sent."""
        if self._trouble is None:
            return unavailable(self.name, "cannot be reached just now", sent=False)
        return BackendUnavailable(str(self._trouble), transient=self._trouble.transient, sent=False)

    @contextmanager
    def _noting_trouble(self) -> Iterator[None]:
        """Remember why it could not be connected to, or that it could."""
        try:
            yield
        except BackendUnavailable as error:
            if not error.transient and (self._trouble is None or self._trouble.transient):
                _logger.warning("%s; in the quorum it counts as unreachable", error)
            self._trouble = error.with_traceback(None)
            raise
        self._trouble = None

    def dial(self, address: Address | None, within: float) -> Any:
        with self._noting_trouble():
            connection = super().dial(address, within)
            try:
                connection.send_packed_command([self._questions])
                *answers, known = [_reply(connection) for _ in range(_ANSWERS + 1)]
                self._greet(answers)
                missing = self._missing_scripts(known)
                connection.send_packed_command(missing)
                for _ in missing:
                    _reply(connection)
            except (redis.RedisError, OSError) as error:
                connection.disconnect()
                raise self.unreachable(address, error) from self.cause(error)
            except BaseException:
                connection.disconnect()
                raise
            return connection

    async def dial_async(self, address: Address | None, within: float) -> Any:
        until = boot_now() + within
        with self._noting_trouble():
            connection = await super().dial_async(address, within)
            try:
                async with asyncio.timeout(max(0.01, until - boot_now())):
                    await connection.send_packed_command([self._questions])
                    *answers, known = [await _reply_async(connection) for _ in range(_ANSWERS + 1)]
                    self._greet(answers)
                    missing = self._missing_scripts(known)
                    await connection.send_packed_command(missing)
                    for _ in missing:
                        await _reply_async(connection)
            except (redis.RedisError, OSError, RuntimeError) as error:
                hang_up(connection)
                if isinstance(error, RuntimeError) and not is_of_a_closed_connection(error):
                    raise
                raise self.unreachable(address, error) from self.cause(error)
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
        version, role = version_and_role(self.facts if error is None or error is self.wrong else {})
        return Health(
            self.name,
            reachable=error is None or error is self.wrong,
            latency=latency,
            version=version,
            role=role,
            error="" if error is None else str(error),
        )

    def _greet(self, answers: Sequence[Any]) -> None:
        """Raises BackendUnavailable if it cannot be one of a quorum."""
        *infos, fsync = answers
        facts = facts_in(infos)
        if "run_id" not in facts:
            raise self._unknown(infos[0])
        if not self.facts and facts.get("maxmemory", "0") != "0" and facts["maxmemory_policy"] != "noeviction":
            _logger.warning(EVICTION_WARNING, self.name, facts["maxmemory_policy"])
        self.facts = facts
        self.run_id = facts["run_id"]
        keeps_all = facts.get("aof_enabled") == "1" and isinstance(fsync, list) and fsync[1:] == [b"always"]
        # It counts how often the second has changed since it started, which may be one more than have passed.
        uptime = max(0.0, float(facts.get("uptime_in_seconds", 0)) - 1.0)
        is_replica = facts.get("role") == "slave"
        self._age.on_report(boot_now(), self.run_id, uptime, keeps_all=keeps_all, is_replica=is_replica)
        flaw = self._flaw(facts)
        self.wrong = unavailable(self.name, flaw, transient=False) if flaw else None
        if self.wrong is not None:
            raise self.wrong
        self.accepted = True

    def _missing_scripts(self, known: Any) -> list[bytes]:
        """Requests that load what the server does not have; all if it does not say what it has."""
        has = known if isinstance(known, list) else [0] * len(self._scripts)
        return [command("SCRIPT", "LOAD", text) for text, there in zip(self._scripts, has, strict=True) if not there]

    def _flaw(self, facts: dict[str, str]) -> str:
        """Why it cannot be one of a quorum; empty if it can."""
        for other in self._members:
            if other is not self and other.run_id == self.run_id:
                return f"is the same server as {other.name}: its vote would count twice"
        if facts.get("role") == "slave":
            return "is a replica: a quorum is of servers that know nothing of each other"
        if "cluster" in (facts.get("redis_mode"), facts.get("server_mode")):
            return "is a node of a cluster, which keeps a part of all names only"
        return ""

    def _unknown(self, error: object) -> BackendUnavailable:
        """Whether the vote of a server that does not say what it is may count cannot be known."""
        if not isinstance(error, redis.exceptions.NoPermissionError):
            return unavailable(self.name, f"does not say what it is: {error}")
        self.wrong = unavailable(
            self.name, f"does not say to this user what it is: {error}; a quorum needs +info", transient=False
        )
        return self.wrong


def _questions(scripts: Sequence[str]) -> bytes:
    facts = b"".join(command("INFO", section) for section in _QUESTIONS) + command("CONFIG", "GET", "appendfsync")
    digests = [hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest() for text in scripts]
    return facts + command("SCRIPT", "EXISTS", *digests)


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except redis.ResponseError as error:  # the user may not be allowed to ask
        return error


async def _reply_async(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except redis.ResponseError as error:
        return error


def members_of(endpoints: Sequence[RedisEndpoint], scripts: Sequence[str] = ()) -> list[Member]:
    """Each has the scripts with these texts as soon as it is connected to.

    Raises ValueError for too few of them, and for one that is named twice.
    """
    if len(endpoints) < MIN_SERVERS:
        raise ValueError(f"a quorum is of {MIN_SERVERS} lock servers at least, and not {len(endpoints)}")
    names = [endpoint.name for endpoint in endpoints]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} is named twice: its vote would count twice")
    for endpoint in endpoints:
        if type(endpoint) is not RedisEndpoint:
            raise ValueError(f"a quorum is of single servers, and {endpoint.name} is more than one")
    members: list[Member] = []
    members.extend(Member(endpoint, members, scripts) for endpoint in endpoints)
    return members


def refuse_wrong(members: Sequence[Member]) -> None:
    """Raises BackendUnavailable if one of them could never be one of a quorum."""
    for member in members:
        if member.wrong is not None and not member.accepted:
            raise member.wrong
