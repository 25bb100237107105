"""Redis: a primary that keeps every write, and its replica; and quorums of independent servers.

Decides: which faults the pages on Redis and Redlock say that exclusion survives.
A server that loses what it has answered is not one of them, but for the minority of a quorum that forgets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, ClassVar

import redis

from tests.servers.proxy import Proxy
from tests.servers.server import HOST, Server
from tests.servers.waiting import until
from tests.torture.actors import LONGEST_TTL_S
from tests.torture.faults import Fault, Heal, nothing
from tests.torture.stores import Store

_KEEPS_ALL = ("--appendonly", "yes", "--appendfsync", "always")
_NOT_YET = (OSError, redis.RedisError)  # what a server says that is just starting


def connected_clients(server: Server) -> int:
    lines = server.command("INFO", "clients").decode().splitlines()
    return int(next(line.partition(":")[2] for line in lines if line.startswith("connected_clients:")))


class RedisStore(Store):
    """A failover is one that loses nothing: the primary takes no writes until its replica has all of them."""

    def start(self) -> None:
        self.primary, self.replica = (self.stack.enter_context(Server(*_KEEPS_ALL)) for _ in range(2))
        assert self.primary.command("CONFIG", "GET", "appendfsync")[1] == b"always"
        self.replica.follow(self.primary)
        self.add_server(self.primary)

    def url(self, route: int) -> str:
        return self.routes[route][0].url

    @property
    def straight(self) -> str:
        return self.primary.url

    def connections(self) -> int:
        return connected_clients(self.primary)

    def own_faults(self) -> Iterator[Fault]:
        yield Fault("server stopped", self._stop, 0.1, 4.0)
        yield Fault("server killed", self._kill, 0.0, 2.0)
        yield Fault("CLIENT KILL", self._kill_clients)
        yield Fault("SCRIPT FLUSH", self._flush_scripts)
        yield Fault("failover", self._fail_over)

    def _stop(self, random: Random) -> Heal:
        self.primary.pause()
        return self.primary.go_on

    def _kill(self, random: Random) -> Heal:
        return kill(self.primary)

    def _kill_clients(self, random: Random) -> Heal:
        kind = random.choice(("normal", "pubsub"))
        self.primary.command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
        return nothing

    def _flush_scripts(self, random: Random) -> Heal:
        self.primary.command("SCRIPT", "FLUSH")
        return nothing

    def _fail_over(self, random: Random) -> Heal:
        """Connections to the old primary stay, or are cut, as the load balancer in front of it has it."""
        until(lambda: self.replica.replicates, "the replica to follow its primary", despite=_NOT_YET)
        self.primary.command("FAILOVER", "TO", HOST, self.replica.port)
        until(lambda: self.replica.command("ROLE")[0] == b"master", "the replica to lead", despite=_NOT_YET)
        self._swap()
        if random.random() < 0.5:
            self._cut()
        until(lambda: self.replica.replicates, "the former primary to follow", despite=_NOT_YET)
        return nothing

    def _swap(self) -> None:
        self.primary, self.replica = self.replica, self.primary
        for route in self.routes:
            route[0].lead_to(self.primary)

    def _cut(self) -> None:
        for route in self.routes:
            route[0].cut()


class RedisFailoverStore(RedisStore):
    """With `replicas=1` a grant counts when the replica has it, so the primary may die at any moment."""

    options: ClassVar[dict[str, Any]] = {"replicas": 1}

    def own_faults(self) -> Iterator[Fault]:
        yield from super().own_faults()
        yield Fault("primary lost", self._lose_primary)

    def _lose_primary(self, random: Random) -> Heal:
        until(lambda: self.replica.replicates, "the replica to follow its primary", despite=_NOT_YET)
        self.primary.kill()
        self.replica.lead()
        self._swap()
        self.replica.restart(empty=True)
        self.replica.follow(self.primary)
        return nothing


def kill(server: Server) -> Heal:
    """It starts again at the same port, with what it had on disk."""
    server.kill_for_a_while()

    def start() -> None:
        server.start()

    return start


class RedlockStore(Store):
    """Some servers sync every write, a majority keeps nothing: their restarts are what the delayed rejoin is for."""

    size: ClassVar[int] = 3

    def start(self) -> None:
        keeping = self.size // 2
        args = [_KEEPS_ALL if number < keeping else () for number in range(self.size)]
        self.servers = [self.stack.enter_context(Server(*words)) for words in args]
        self.forgetful = self.servers[keeping:]
        for server in self.servers:
            self.add_server(server)

    def url(self, route: int) -> str:
        return self._url([wire.port for wire in self.routes[route]])

    @property
    def straight(self) -> str:
        return self._url([server.port for server in self.servers])

    def _url(self, ports: Sequence[int]) -> str:
        hosts = ",".join(f"{HOST}:{port}" for port in ports)
        return f"redlock://{hosts}/0?rejoin={LONGEST_TTL_S:g}"

    def connections(self) -> int:
        return sum(connected_clients(server) for server in self.servers if server.running)

    def own_faults(self) -> Iterator[Fault]:
        yield Fault("minority stopped", self._each(_stop), 0.1, 4.0)
        yield Fault("minority killed", self._each(kill, forget=False), 0.0, 3.0)
        yield Fault("restarted empty", self._restart_empty)
        yield Fault("majority stopped", self._each(_stop, more=1), 0.1, 2.0)
        yield Fault("CLIENT KILL", self._each(_kill_clients))
        yield Fault("SCRIPT FLUSH", self._each(_flush_scripts))

    def some_wires(self, random: Random) -> Sequence[Proxy]:
        """Each route loses a minority of its own; now and then a majority."""
        number = self.size // 2 + (random.random() < 0.15)
        return [wire for route in self.routes for wire in random.sample(route, number)]

    def _each(self, act: Callable[[Server], Heal], more: int = 0, forget: bool = True) -> Callable[[Random], Heal]:
        def begin(random: Random) -> Heal:
            those = self.servers if forget else [one for one in self.servers if one not in self.forgetful]
            heals = [act(server) for server in random.sample(those, min(len(those), self.size // 2 + more))]

            def heal() -> None:
                for each in heals:
                    each()

            return heal

        return begin

    def _restart_empty(self, random: Random) -> Heal:
        random.choice(self.forgetful).restart(empty=True)
        return nothing


class Redlock5Store(RedlockStore):
    size = 5


def _stop(server: Server) -> Heal:
    server.pause()
    return server.go_on


def _kill_clients(server: Server) -> Heal:
    server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    return nothing


def _flush_scripts(server: Server) -> Heal:
    server.command("SCRIPT", "FLUSH")
    return nothing
