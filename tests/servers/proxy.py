"""A wire that can be cut: a TCP proxy between the clients and a server.

Decides: what happens to what passes. All faults begin and end when the test says so; nothing happens by chance.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any

from tests.servers.server import HOST, Server, free_port
from tests.servers.waiting import LIMIT_S

_CHUNK = 65536


class _Trigger:
    """Once: what shall happen when these bytes pass on one of the connections."""

    def __init__(self, payload: bytes, fate: str) -> None:
        self.payload = payload
        self.fate = fate
        self.fired = threading.Event()


class _Pair:
    """One client's connection and the one to the server that goes with it."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._writers = (client, server)
        # "silence" keeps the server's next words from the client, "half" all but their first half; "nothing" keeps
        # the client's words, too; "later" keeps these for a while; "end" cuts.
        self.fate = ""
        self.let_pass = asyncio.Event()  # what was kept back has arrived

    def cut(self) -> None:
        for writer in self._writers:
            if not writer.transport.is_closing():
                writer.transport.abort()


class Proxy:
    """Listens at a port of its own; `url` is the server's through it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.port = free_port()
        self.delay = 0.0  # seconds that each piece of the server's answers is late
        self.sent = bytearray()  # all that clients have said
        self.accepted = 0  # connections of clients, open or ended
        self._pairs: set[_Pair] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_request: list[_Trigger] = []
        self._on_reply: list[_Trigger] = []
        self._loop = asyncio.new_event_loop()
        self._open: asyncio.Event = asyncio.Event()  # cleared: nothing passes, either way
        self._open.set()
        self._refuses = False
        self._unanswered = 0
        self._kept_back: list[tuple[_Pair, asyncio.StreamWriter, bytes]] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._listener: asyncio.Server = self._do(asyncio.start_server(self._serve, HOST, self.port))

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    # Faults

    def cut(self) -> None:
        """Every connection ends, with a reset; new ones are welcome."""
        self._do(self._cut())

    def refuse(self) -> None:
        """Every connection ends, and so does each new one at once."""
        self.refuse_others()
        self.cut()

    def refuse_others(self) -> None:
        """Each new connection ends at once; existing ones stay."""
        self._refuses = True

    def black_hole(self) -> None:
        """Everything is still taken and nothing passes, either way; it is kept, and passes after `heal`."""
        self._do(self._set(False))

    def lead_to(self, server: Server) -> None:
        """New connections lead to that server, as behind a load balancer; existing ones stay where they are."""
        self._server = server

    def forsake(self) -> None:
        """Existing connections lead nowhere from now on, without notice to either end; new ones are accepted."""
        self._do(self._forsake())

    def leave_unanswered(self, connections: int) -> None:
        """So many of the next connections are accepted, and lead nowhere."""
        self._unanswered = connections

    def heal(self) -> None:
        """As if nothing had happened; what is on its way arrives."""
        self._refuses, self.delay = False, 0.0
        self._do(self._set(True))

    def disarm(self) -> None:
        """What was to happen once, and has not happened yet, does not happen any more."""
        self._do(self._disarm())

    def swallow_reply(self, to: bytes) -> threading.Event:
        """Once: a request with these bytes is carried out; from there on its connection stays silent for ever."""
        return self._when(self._on_request, to, "silence")

    def break_off_reply(self, to: bytes) -> threading.Event:
        """Once: a request with these bytes is carried out; half of the reply arrives, and nothing after it."""
        return self._when(self._on_request, to, "half")

    def cut_instead_of_reply(self, to: bytes) -> threading.Event:
        """Once: a request with these bytes is carried out; in place of the reply its connection ends."""
        return self._when(self._on_request, to, "end")

    def lose(self, request: bytes) -> threading.Event:
        """Once: a request with these bytes, and all that follows on its connection, gets lost."""
        return self._when(self._on_request, request, "nothing")

    def keep_back(self, request: bytes) -> threading.Event:
        """Once: a request with these bytes, and all that follows on its connection, arrives after `let_pass`."""
        return self._when(self._on_request, request, "later")

    def let_pass(self) -> None:
        """What was kept back arrives, whether a client waits for it or not."""
        self._do(self._let_pass())

    def swallow(self, reply: bytes) -> threading.Event:
        """Once: a piece of the server's answers with these bytes never arrives; what comes later does."""
        return self._when(self._on_reply, reply, "silence")

    # How it works

    def _when(self, where: list[_Trigger], payload: bytes, fate: str) -> threading.Event:
        trigger = _Trigger(payload, fate)
        self._do(self._add(where, trigger))
        return trigger.fired

    async def _add(self, where: list[_Trigger], trigger: _Trigger) -> None:
        where.append(trigger)

    async def _disarm(self) -> None:
        self._on_request.clear()
        self._on_reply.clear()

    async def _cut(self) -> None:
        self._cut_now()

    def _cut_now(self) -> None:
        for pair in list(self._pairs):
            pair.cut()

    async def _let_pass(self) -> None:
        kept_back, self._kept_back = self._kept_back, []
        for pair, writer, data in kept_back:
            if pair.fate == "nothing":  # it was forsaken meanwhile
                continue
            pair.fate = ""
            writer.write(data)
            pair.let_pass.set()

    async def _forsake(self) -> None:
        for pair in self._pairs:
            pair.fate = "nothing"

    async def _set(self, passes: bool) -> None:
        (self._open.set if passes else self._open.clear)()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self._refuses:
            writer.transport.abort()
            return
        self._tasks.add(task := asyncio.current_task())  # type: ignore[arg-type]
        try:
            if self._unanswered:
                self._unanswered -= 1
                await reader.read(-1)
                return
            await self._open.wait()
            with suppress(OSError):
                there, back = await asyncio.open_connection(HOST, self._server.port)
                await self._join(_Pair(writer, back), (reader, back), (there, writer))
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _join(
        self,
        pair: _Pair,
        up: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        down: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._pairs.add(pair)
        ways = [asyncio.ensure_future(self._up(pair, *up)), asyncio.ensure_future(self._down(pair, *down))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self._pairs.discard(pair)
            pair.cut()

    async def _up(self, pair: _Pair, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK):
            await self._open.wait()
            self.sent += data
            if not pair.fate and (trigger := _fires(self._on_request, data)):  # what has lost bytes never recovers
                pair.fate = trigger.fate
                pair.let_pass.clear()
            if pair.fate == "later":
                self._kept_back.append((pair, writer, data))
            elif pair.fate != "nothing":
                writer.write(data)
        if pair.fate == "later":  # the client is gone; what it said is still on its way, and so is its end
            await pair.let_pass.wait()
            writer.write_eof()
            await asyncio.Event().wait()  # until the server has closed it too

    async def _down(self, pair: _Pair, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK):
            await self._open.wait()
            if self.delay:
                await asyncio.sleep(self.delay)
            if pair.fate == "end":
                return
            if pair.fate == "half":
                writer.write(data[: len(data) // 2])
                pair.fate = "silence"
            elif pair.fate in ("", "later") and not _fires(self._on_reply, data):
                writer.write(data)

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LIMIT_S)

    async def _end(self) -> None:
        await stop_listening(self._listener)
        self._cut_now()
        ended: set[asyncio.Task[None]] = set()
        while asyncio.all_tasks() - {asyncio.current_task()}:  # a client that was accepted just now gets its task first
            for task in self._tasks - ended:
                task.cancel()
                ended.add(task)
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # what was aborted is closed

    def close(self) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


async def stop_listening(listener: asyncio.Server) -> None:
    """Accept no other connection, and close it. Closed before a client has its transport, it would leave that open."""
    for listening in listener.sockets:
        listener.get_loop().remove_reader(listening.fileno())
    await asyncio.sleep(0)  # an accepted connection has a transport now
    listener.close()


def _fires(triggers: list[_Trigger], data: bytes) -> _Trigger | None:
    for trigger in triggers:
        if trigger.payload in data:
            triggers.remove(trigger)
            trigger.fired.set()
            return trigger
    return None
