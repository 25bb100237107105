"""What may stand between a client and PostgreSQL: a pooler, as far as a client can tell.

Decides: nothing of what is asked. Like PgBouncer it gives out session numbers of its own, and that is all it does.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType

from tests.servers.postgres import ReachablePostgres
from tests.servers.server import HOST, free_port

_KEY_DATA = b"K\x00\x00\x00\x0c"  # BackendKeyData: a length of 12, a pid, a secret


class Pooler:
    def __init__(self, server: ReachablePostgres) -> None:
        self._server = server
        self.port = free_port()
        self._listener = socket.create_server((HOST, self.port))
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, name="pooler", daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection((HOST, self._server.port))
                self._sockets += [client, server]
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self._copy, args=ends, name="pooler", daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                at = data.find(_KEY_DATA)
                if at >= 0:
                    data = data[: at + 5] + struct.pack("!i", 424242) + data[at + 9 :]
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def __enter__(self) -> Pooler:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listener.close()
        for one in self._sockets:
            one.close()
