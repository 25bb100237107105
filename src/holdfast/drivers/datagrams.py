"""Wake-ups between the processes of one host: one unix datagram socket for each `Locks` that waits.

Decides: how an address is made and written, and what a datagram says (the claim that may look again).
Leaves to the two drivers: who reads the socket, and how a waiter is woken inside the process.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path

LOOK_ALL = "*"  # more wake-ups came than the socket can queue: every waiter of this process looks
_ABSTRACT = sys.platform == "linux"  # such names need no file and vanish with their process


class Mailbox:
    """The receiving end. Its address can be written into a shared store."""

    def __init__(self) -> None:
        name = f"holdfast-{os.urandom(8).hex()}"
        self._file = None if _ABSTRACT else _temporary_folder() / name
        self.address = f"@{_NETWORK}/{name}" if _ABSTRACT else str(self._file)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.socket.bind(_sockaddr(self.address))
        self.broken = False
        self.poll = select.poll()
        self.poll.register(self.socket, select.POLLIN)

    def ring(self) -> None:
        """Send ourselves a message that names nobody."""
        with suppress(OSError):
            self.socket.sendto(b"", _sockaddr(self.address))

    def read(self, ready: object = None) -> list[str]:
        """The claims that were named since the last reading."""
        claims: list[str] = []
        while True:
            try:
                claims.append(self.socket.recv(256).decode(errors="replace"))
            except BlockingIOError:
                break
        if len(claims) >= _QUEUE_LENGTH:
            claims.append(LOOK_ALL)
        return claims

    def abandon(self) -> None:
        """It is the parent's: close only our copy."""
        self.socket.close()

    def close(self) -> None:
        self.socket.close()
        if self._file is not None:
            self._file.unlink(missing_ok=True)


def open_mailbox() -> Mailbox | None:
    """None where there are no such sockets; whoever waits then looks by itself from time to time."""
    try:
        return Mailbox()
    except OSError:
        return None


class Sender:
    """The sending end, one for each `Locks` that hands over."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._socket: socket.socket | None = None

    def send(self, address: str, claim: str) -> bool:
        """False if nobody lives at the address any more. What cannot be reached from here looks by itself."""
        if not address or (address.startswith("@") and not address.startswith(f"@{_NETWORK}/")):
            return True
        try:
            self._open().sendto(claim.encode(), _sockaddr(address))
        except BlockingIOError:
            return True  # its queue is full: it will find that out when it reads, and look at everything
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
        return True

    def _open(self) -> socket.socket:
        opened = self._socket
        if opened is None:
            with self._mutex:  # two threads that send for the first time share one
                opened = self._socket
                if opened is None:
                    opened = self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                    opened.setblocking(False)
        return opened

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _temporary_folder() -> Path:
    import tempfile  # takes long to import, and Linux does not need it

    return Path(tempfile.gettempdir())


def _sockaddr(address: str) -> str:
    return "\0" + address[1:] if address.startswith("@") else address


def _queue_length() -> int:
    try:
        return int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text())
    except (OSError, ValueError):
        return 10


_QUEUE_LENGTH = _queue_length()


def _network() -> int:
    """Abstract names are the network namespace's own, so an address tells which one it means."""
    try:
        return os.stat("/proc/self/ns/net").st_ino
    except OSError:
        return 0


_NETWORK = _network()
