"""Wake-ups between the processes of one host: one unix datagram socket for each `Locks` that waits.

Decides: how an address is made and written, what a datagram contains (see `read_wake_up`), whose datagrams count, and
whose grants. Leaves to the two drivers: who reads the socket, and how a waiter is woken inside the process.
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

_ABSTRACT = sys.platform == "linux"  # an abstract socket name needs no file and vanishes with its process

_FOLDER = re.compile(r"/.*/lockfast-[^/]+", re.DOTALL)
_NAME = re.compile(r"lockfast-[0-9a-f]{16}")
_WAKE_UP = re.compile(r"[0-9a-f]{32}( [0-9]{1,16} [0-9]{1,16})?")
_MAX_DATAGRAM_BYTES = 80  # that are read: a wake-up and some more
_NOBODY = 65534  # the uid that the kernel reports for all users outside of our user namespace
_WRITABLE = 0o022  # by the group, or by all users
_CREDENTIALS = struct.Struct("iII")  # process, user, group
# Room for the credentials and nothing else, so that no file descriptor of the sender arrives with them.
_ROOM = socket.CMSG_SPACE(_CREDENTIALS.size) if _ABSTRACT else 0


class DatagramInbox:
    """The receiving end. Its address can be written into a shared store."""

    def __init__(self, store: Path) -> None:
        """For the waiters of that file."""
        self.broken = False
        self._shared = all(path.stat().st_mode & _WRITABLE for path in (store, store.parent))
        self._users = _users_of(store)
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
        if self._shared:  # only readers of the store know the name: no other user can list the folder
            file.chmod(0o666)
            self._folder.chmod(0o711)
        return str(file)

    def read(self, ready: Sequence[tuple[int, int]] | None = None) -> list[str]:
        """The datagrams since the last reading; an empty text for one of a user who is not trusted."""
        if ready is not None and not self._self_pipe.other_is_ready(ready):
            return []
        texts: list[str] = []
        while len(texts) < _QUEUE_LENGTH:  # else a faster sender would keep us here
            try:
                data, ancillary, _, _ = self.socket.recvmsg(_MAX_DATAGRAM_BYTES, _ROOM)
            except BlockingIOError:
                return texts
            texts.append(self._that_counts(data.decode(errors="replace"), ancillary))
        texts.append(WAKE_ALL)
        return texts

    def _that_counts(self, text: str, ancillary: list[tuple[int, int, bytes]]) -> str:
        """As much of a datagram as its sender may say: a grant, only that a claim should ask, or nothing.

        A grant makes its claim believe that it holds. So it counts only from a user who can write the store, or stop
        this process; else a user who can read claim ids there, and no more than that, could make two claims hold.
        """
        if not _ABSTRACT:  # the folder's mode says who can send
            return text.partition(" ")[0] if self._shared else text
        sender = _sender(ancillary)
        if sender in self._users and sender != _NOBODY:
            return text
        return text.partition(" ")[0] if self._shared or sender in self._users else ""

    def abandon(self) -> None:
        """In the child of a fork: close our copy of the parent's socket."""
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
    """None where there are no such sockets; then waiters poll."""
    try:
        return DatagramInbox(store)
    except OSError:
        return None


def _users_of(store: Path) -> frozenset[int]:
    """Its owner, our user and root: who can write a file that is not shared, and can always write one that is."""
    return frozenset((store.stat().st_uid, os.getuid(), os.geteuid(), 0))


def _sender(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    """The uid that the kernel reports; a user outside of our user namespace has the uid of nobody."""
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

    def send(self, address: str, wake_up: str) -> bool:
        """False if no process has the address any more. A waiter that cannot be reached from here polls.

        Both arguments come from the store, which may contain anything: nothing is sent to what is no inbox address.
        """
        if not is_inbox_address(address) or not _WAKE_UP.fullmatch(wake_up):
            return True
        try:
            self._open().sendto(wake_up.encode(), _sockaddr(address))
        except BlockingIOError:
            return True  # its queue is full: it notices when it reads, and wakes all its waiters
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
        return True

    def _open(self) -> socket.socket:
        opened = self._socket
        if opened is None:
            with self._mutex:  # two threads that send for the first time share one socket
                opened = self._socket
                if opened is None:
                    opened = self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                    opened.setblocking(False)
        return opened

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def is_inbox_address(address: str) -> bool:
    """Whether it is one of an inbox of ours, in this network namespace."""
    folder, _, name = address.rpartition("/")
    here = folder == f"@{_NETWORK}" if _ABSTRACT else _FOLDER.fullmatch(folder)
    return bool(here and _NAME.fullmatch(name))


def _private_folder() -> Path:
    import tempfile  # slow to import, and not needed on Linux

    return Path(tempfile.mkdtemp(prefix="lockfast-"))


def _sockaddr(address: str) -> str:
    return "\0" + address[1:] if address.startswith("@") else address


def _queue_length() -> int:
    """After that many datagrams some may be missing. A long queue never fills: the sender's buffer does first."""
    try:
        return max(1, min(100, int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text())))
    except (OSError, ValueError):
        return 10


_QUEUE_LENGTH = _queue_length()


def _network() -> int:
    """Abstract names belong to a network namespace, so an address contains its number."""
    try:
        return os.stat("/proc/self/ns/net").st_ino
    except OSError:
        return 0


_NETWORK = _network()
