"""Wake-ups between the processes of one host: one unix datagram socket for each `Locks` that waits.

Decides: how an address is made and written, what a datagram says (the claim that may look again), and whose are read.
Leaves to the two drivers: who reads the socket, and how a waiter is woken inside the process.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from lockfast.backends.wakeups import WAKE_ALL
from lockfast.backends.wakeups.self_pipe import SelfPipe

_ABSTRACT = sys.platform == "linux"  # such names need no file and vanish with their process

_FOLDER = re.compile(r"/.*/lockfast-[^/]+", re.DOTALL)
_NAME = re.compile(r"lockfast-[0-9a-f]{16}")
_CLAIM = re.compile(r"[0-9a-f]{32}")
_MAX_DATAGRAM_BYTES = 64  # bytes of a datagram that are read: a claim's id and some
_WRITABLE = 0o022  # for the group, or for everybody
_CREDENTIALS = struct.Struct("iII")  # process, user, group
# Room for the credentials and for nothing else, so that no open file of the sender's arrives with them.
_ROOM = socket.CMSG_SPACE(_CREDENTIALS.size) if _ABSTRACT else 0


class DatagramInbox:
    """The receiving end. Its address can be written into a shared store."""

    def __init__(self, store: Path) -> None:
        """For the waiters of that file."""
        self.broken = False
        self._shared = all(path.stat().st_mode & _WRITABLE for path in (store, store.parent))
        self._users = _users_of(store) if _ABSTRACT and not self._shared else None  # None: of any user
        self._folder: Path | None = None
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self.socket.setblocking(False)
            self.address = self._bind(f"lockfast-{os.urandom(8).hex()}")
            self._self_pipe = SelfPipe(self.socket.fileno())
        except BaseException:
            self._close_socket()
            raise
        self.poll = self._self_pipe.poll
        self.notify = self._self_pipe.notify

    def _bind(self, name: str) -> str:
        if _ABSTRACT:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # before anything can arrive
            address = f"@{_NETWORK}/{name}"
            self.socket.bind(_sockaddr(address))
            return address
        self._folder = _private_folder()
        file = self._folder / name
        self.socket.bind(str(file))
        if self._shared:  # only readers of the store know the name: nobody else can list the folder
            file.chmod(0o666)
            self._folder.chmod(0o711)
        return str(file)

    def read(self, ready: Sequence[tuple[int, int]] | None = None) -> list[str]:
        """What the datagrams since the last reading say; an empty text for one that does not count."""
        if ready is not None and not self._self_pipe.other_is_ready(ready):
            return []
        texts: list[str] = []
        while len(texts) < _QUEUE_LENGTH:  # else a sender that is quicker than we are keeps us here
            try:
                data, ancillary, _, _ = self.socket.recvmsg(_MAX_DATAGRAM_BYTES, _ROOM)
            except BlockingIOError:
                return texts
            counts = self._users is None or _sender(ancillary) in self._users
            texts.append(data.decode(errors="replace") if counts else "")
        texts.append(WAKE_ALL)
        return texts

    def abandon(self) -> None:
        """It is the parent's: close only our copy."""
        self.socket.close()
        self._self_pipe.close()

    def close(self) -> None:
        self._close_socket()
        self._self_pipe.close()

    def _close_socket(self) -> None:
        self.socket.close()
        if self._folder is not None:
            for file in self._folder.iterdir():
                file.unlink(missing_ok=True)
            self._folder.rmdir()


def open_inbox(store: Path) -> DatagramInbox | None:
    """None where there are no such sockets; a waiter then looks by itself from time to time."""
    try:
        return DatagramInbox(store)
    except OSError:
        return None


def _users_of(store: Path) -> frozenset[int]:
    """Who can write a file that is not shared: its owner, we ourselves, and root."""
    return frozenset((store.stat().st_uid, os.getuid(), os.geteuid(), 0))


def _sender(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    """The user, as the kernel says; one that our user namespace does not know has the number of nobody."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            _, user, _ = _CREDENTIALS.unpack(data)
            return int(user)
    return None


class DatagramSender:
    """The sending end, one for each `Locks` that hands over."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._socket: socket.socket | None = None

    def send(self, address: str, claim: str) -> bool:
        """False if no process has the address any more. A waiter that cannot be reached from here looks by itself.

        Both come from the store, where anything may stand: what is no address of a mailbox is not written to.
        """
        if not _is_inbox_address(address) or not _CLAIM.fullmatch(claim):
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


def _is_inbox_address(address: str) -> bool:
    folder, _, name = address.rpartition("/")
    here = folder == f"@{_NETWORK}" if _ABSTRACT else _FOLDER.fullmatch(folder)
    return bool(here and _NAME.fullmatch(name))


def _private_folder() -> Path:
    import tempfile  # takes long to import, and Linux does not need it

    return Path(tempfile.mkdtemp(prefix="lockfast-"))


def _sockaddr(address: str) -> str:
    return "\0" + address[1:] if address.startswith("@") else address


def _queue_length() -> int:
    """Datagrams after which some may be missing. A long queue is never seen full: one sender's buffer ends first."""
    try:
        return max(1, min(100, int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text())))
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
