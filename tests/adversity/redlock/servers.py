"""Servers of a quorum for the stories of its trouble, each behind a proxy that can be cut."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType

import lockfast
from lockfast._model import LockInfo
from tests.servers.proxy import Proxy
from tests.servers.server import HOST, Server


class Quorum:
    def __init__(self, size: int) -> None:
        self._stack = ExitStack()
        self._size = size

    def url(self, options: str = "rejoin=0", *, past_the_proxies: bool = False) -> str:
        ends = self.servers if past_the_proxies else self.proxies
        return f"redlock://{','.join(f'{HOST}:{end.port}' for end in ends)}/0?{options}"

    def held_at(self, name: str, namespace: str = "lockfast") -> list[bool]:
        """What each server itself says, whatever happens to the connections."""
        return [bool(self.at(node, name, namespace).holders) for node in range(self._size)]

    def at(self, node: int, name: str, namespace: str = "lockfast") -> LockInfo:
        with lockfast.connect(self.servers[node].url, namespace=namespace) as locks:
            return locks.inspect(name)

    def __enter__(self) -> Quorum:
        self.servers = [self._stack.enter_context(Server()) for _ in range(self._size)]
        self.proxies = [self._stack.enter_context(Proxy(server)) for server in self.servers]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for server in self.servers:
            if server.running:
                server.go_on()
        self._stack.close()
