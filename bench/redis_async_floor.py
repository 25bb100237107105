"""The least that a thousand tasks can ask of Redis through one connection: one write for each tick of the loop.

The same requests as of the floor of `redis_uncontended`: SET NX PX, and a script that deletes. Replies are lines, which
are not parsed; a wrong one raises.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from bench.redis_async_peers import Cycle, Maker
from bench.redis_floor import DELETE_IF_OURS, OURS, packed, script_sha

_GRANTED, _DELETED = b"+OK", b":1"


@asynccontextmanager
async def floor(port: int, tasks: int) -> AsyncIterator[Maker]:
    loop = asyncio.get_running_loop()
    transport, coalesced = await loop.create_connection(_Coalesced, "127.0.0.1", port)
    await coalesced.ask(packed(b"SCRIPT", b"LOAD", DELETE_IF_OURS))  # two lines, of which the first is its length
    try:
        yield lambda name: _cycle(coalesced.ask, name.encode())
    finally:
        transport.close()


class _Coalesced(asyncio.Protocol):
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._requests: list[bytes] = []  # non-empty only while a flush is scheduled
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._rest = b""

    def connection_made(self, transport: Any) -> None:
        self._write = transport.write

    def ask(self, request: bytes) -> asyncio.Future[bytes]:
        if not self._requests:
            self._loop.call_soon(self._flush)
        self._requests.append(request)
        future = self._loop.create_future()
        self._waiting.append(future)
        return future

    def _flush(self) -> None:
        self._write(b"".join(self._requests))
        self._requests.clear()

    def data_received(self, data: bytes) -> None:
        *replies, self._rest = (self._rest + data).split(b"\r\n")
        for reply in replies:
            if not reply.startswith(b"$"):
                self._waiting.popleft().set_result(reply)


def _cycle(ask: Callable[[bytes], asyncio.Future[bytes]], name: bytes) -> Cycle:
    take = packed(b"SET", name, OURS, b"NX", b"PX", b"30000")
    give_back = packed(b"EVALSHA", script_sha(DELETE_IF_OURS), b"1", name, OURS)

    async def cycle() -> None:
        if await ask(take) != _GRANTED or await ask(give_back) != _DELETED:
            raise RuntimeError("the floor's lock was not free, or no longer its own")

    return cycle
