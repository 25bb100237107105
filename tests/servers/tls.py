"""TLS in front of a server: the programs of the wheels are built without it, so a listener of ours speaks it for them.

Decides: who is trusted by whom, and into how small pieces what the server says is cut: each is a TLS record of its own.
Leaves to `server`: everything that is said inside.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import threading
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

import trustme
from cryptography import x509

from tests.servers.proxy import stop_listening
from tests.servers.server import HOST, Server, free_port
from tests.servers.waiting import LIMIT_S

_CHUNK = 65536


class Certificates:
    """Files in a folder: an authority that signed the server, one with another name, and a client; and a stranger that
    signed none of them."""

    def __init__(self, folder: Path) -> None:
        authority, stranger = trustme.CA(), trustme.CA()
        self.authority, self.stranger = folder / "authority.pem", folder / "stranger.pem"
        authority.cert_pem.write_to_path(str(self.authority))
        stranger.cert_pem.write_to_path(str(self.stranger))
        self.server = _write(folder / "server.pem", authority.issue_cert(HOST, "localhost"))
        self.elsewhere = _write(folder / "elsewhere.pem", authority.issue_cert("elsewhere.test"))
        self.client = _write(folder / "client.pem", authority.issue_cert("client.test"))

    @property
    def trusting(self) -> dict[str, str]:
        """What a client says to trust the server."""
        return {"ssl_ca_certs": str(self.authority)}

    @property
    def known(self) -> dict[str, str]:
        """And what it says to be trusted by it."""
        return {**self.trusting, "ssl_certfile": str(self.client), "ssl_keyfile": str(self.client)}


def name_in_folder(certificate: Path) -> str:
    """Where OpenSSL looks for it in a folder of authorities: the SHA-1 of its subject in lower case, without the
    header of the sequence."""
    subject = x509.load_pem_x509_certificate(certificate.read_bytes()).subject
    lower = x509.Name([x509.NameAttribute(part.oid, str(part.value).lower()) for part in subject])
    return hashlib.sha1(lower.public_bytes()[2:]).digest()[3::-1].hex() + ".0"


def _write(path: Path, made: trustme.LeafCert) -> Path:
    made.private_key_and_cert_chain_pem.write_to_path(str(path))
    return path


class TlsFront:
    """Listens at a port of its own, and speaks plainly to the server behind."""

    def __init__(
        self,
        server: Server,
        certificates: Certificates,
        *,
        asks_clients: bool = False,
        piece: int = 0,
        named: bool = True,  # its certificate names the host where it listens
    ) -> None:
        self._server = server
        self.certificates = certificates
        self._piece = piece or _CHUNK
        self.port = free_port()
        self.trusted_by = 0  # clients that accepted the certificate
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.server if named else certificates.elsewhere)
        context.load_verify_locations(certificates.authority)
        context.verify_mode = ssl.CERT_REQUIRED if asks_clients else ssl.CERT_NONE
        self._context = context
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda *_: None)  # a client that hangs up on us is what some tests are about
        self._thread = threading.Thread(target=self._loop.run_forever, name="tls", daemon=True)

    def url(self, scheme: str = "rediss", login: str = "", **options: str) -> str:
        database = "" if "+" in scheme else "0"
        return f"{scheme}://{login}{HOST}:{self.port}/{database}?{urlencode(options)}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(task := asyncio.current_task())  # type: ignore[arg-type]
        self.trusted_by += 1
        back: asyncio.StreamWriter | None = None
        try:
            there, back = await asyncio.open_connection(HOST, self._server.port)
            ways = [
                asyncio.ensure_future(_pass(reader, back, _CHUNK)),
                asyncio.ensure_future(_pass(there, writer, self._piece)),
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for one in (writer, back):
                if one is not None:
                    one.transport.abort()

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LIMIT_S)

    async def _end(self) -> None:
        await stop_listening(self._listener)
        for _ in range(10):  # a client that was accepted just now gets its task
            await asyncio.sleep(0)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # what was aborted is closed

    def __enter__(self) -> TlsFront:
        self._thread.start()
        self._listener: asyncio.Server = self._do(asyncio.start_server(self._serve, HOST, self.port, ssl=self._context))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, piece: int) -> None:
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            for start in range(0, len(data), piece):
                writer.write(data[start : start + piece])
            await writer.drain()
