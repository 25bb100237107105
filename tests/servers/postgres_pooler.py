"""A pooler that stands between a client and a PostgreSQL server, as PgBouncer does, as far as a client can tell.

Decides: that a client sees another process number than the server's, that nothing is prepared, and, in transaction
mode, that no notification arrives. Leaves to the real one: to share server connections.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType

HOST = "127.0.0.1"
_KEY, _NOTIFICATION, _PARSE, _QUERY = b"K", b"A", b"P", b"Q"


class Pooler:
    def __init__(self, port: int, *, transactions: bool) -> None:
        self.prepared = 0  # statements that a client wanted to be kept
        self.queries: list[str] = []  # that clients have sent without parameters
        self._server = port
        self._transactions = transactions
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = [self._listener]
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Pooler:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._thread.join()

    def _accept(self) -> None:
        threads = []
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection((HOST, self._server))
                self._open += [client, server]
                for work in (self._to_server, self._to_client):
                    threads.append(threading.Thread(target=work, args=(client, server), daemon=True))
                    threads[-1].start()
        for thread in threads:
            thread.join()

    def _to_server(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            start = _exactly(client, 4)
            rest = _exactly(client, struct.unpack("!i", start)[0] - 4)
            if struct.unpack("!i", rest[:4])[0] in (80877103, 80877104):  # wants TLS or GSS: not here
                client.sendall(b"N")
                return self._to_server(client, server)
            server.sendall(start + rest)
            while True:
                kind, body = _message(client)
                if kind == _PARSE and not body.startswith(b"\0"):
                    self.prepared += 1
                if kind == _QUERY:
                    self.queries.append(body.rstrip(b"\0").decode())
                server.sendall(_whole(kind, body))
        _end(client, server)
        return None

    def _to_client(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                kind, body = _message(server)
                if kind == _NOTIFICATION and self._transactions:
                    continue
                if kind == _KEY:
                    body = struct.pack("!i", 1) + body[4:]
                client.sendall(_whole(kind, body))
        _end(client, server)


def _message(source: socket.socket) -> tuple[bytes, bytes]:
    kind = _exactly(source, 1)
    return kind, _exactly(source, struct.unpack("!i", _exactly(source, 4))[0] - 4)


def _whole(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def _exactly(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = source.recv(size - len(data))
        if not more:
            raise ConnectionResetError
        data += more
    return data


def _end(*sockets: socket.socket) -> None:
    for one in sockets:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
