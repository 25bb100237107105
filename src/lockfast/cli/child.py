"""The command as a process: found before anything is waited for, forked early, started late.

Decides: what can be executed, and that the command's process group exists before it may have to be ended.
Leaves to the supervisor: when it starts and when it must end.

The process is forked before the lock store is opened, while this program has one thread, and waits in a pipe for the
word to go. So a guardian can know its group from the beginning, and there is no moment at which the command
runs and no process would end it: if we die before the word, it never starts.
"""

from __future__ import annotations

import errno
import os
import signal
import struct
from collections.abc import Mapping, Sequence

from lockfast.cli import exits
from lockfast.cli.group import signal_group

_LENGTH = struct.Struct("!I")  # of the environment that follows


def find(command: str) -> str:
    """The path to execute. Raises CommandError with a shell's exit code: 127 not found, 126 cannot be executed."""
    folders = [""] if "/" in command else os.get_exec_path()
    unfit = None
    for folder in folders:
        path = os.path.join(folder, command) if command else ""
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
        if os.path.exists(path) and ("/" in command or os.path.isfile(path)):
            unfit = path
    if unfit is not None:
        what = "is a folder" if os.path.isdir(unfit) else "is not executable"
        raise exits.CommandError(exits.CANNOT_EXECUTE, f"cannot run {command!r}: {unfit!r} {what}")
    raise exits.CommandError(exits.NOT_FOUND, f"cannot run {command!r}: command not found")


class Child:
    """The forked process. Its pid is also the id of its group."""

    def __init__(self, pid: int, go: int) -> None:
        self.pid = pid
        self._go = go
        self.status: int | None = None  # as waitpid gave it, once it has ended
        self.started = False

    def start(self, environment: Mapping[str, str]) -> None:
        """Let it become the command, with these variables added to our environment.

        If it was killed while it waited for this, it is not `started`, and `poll` sets how it ended.
        """
        text = b"\0".join(os.fsencode(f"{key}={value}") for key, value in environment.items())
        message = memoryview(_LENGTH.pack(len(text)) + text)
        try:
            while message:
                message = message[os.write(self._go, message) :]
        except BrokenPipeError:
            return
        self.started = True

    def poll(self) -> int | None:
        """The signal that stopped it, if one did since the last call. Sets `status` if it has ended."""
        while self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                return None
            if os.WIFSTOPPED(status):
                return os.WSTOPSIG(status)
            self.status = status
        return None

    def dismiss(self) -> None:
        """Afterwards it is gone: never started, ended long ago, or, if something unforeseen happened, killed."""
        os.close(self._go)
        if self.status is None:
            signal_group(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def exit_code(status: int) -> int:
    """The command's own exit code, or 128 + n if signal n ended it."""
    return exits.SIGNAL + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def fork(path: str, argv: Sequence[str]) -> Child:
    """A process in a group of its own that waits for the word to go, and ends by itself if we die before."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(write)
            _become(path, argv, read)
        finally:
            os._exit(exits.INTERNAL)
    os.close(read)
    _lead_group(pid)
    return Child(pid, write)


def _lead_group(pid: int) -> None:
    """Both sides do it, so that neither has to wait for the other."""
    try:
        os.setpgid(pid, pid)
    except (PermissionError, ProcessLookupError):
        return  # the other side was first, and it has become the command or ended


def _become(path: str, argv: Sequence[str], go: int) -> None:
    _lead_group(os.getpid())
    _forget_our_signals()
    environment = _read_environment(go)
    if environment is None:
        os._exit(0)
    try:
        _execute(path, argv, {**os.environb, **environment})
    except OSError as error:
        os.write(2, f"lockfast: cannot run {argv[0]!r}: {error.strerror}\n".encode(errors="replace"))
        os._exit(exits.NOT_FOUND if isinstance(error, FileNotFoundError) else exits.CANNOT_EXECUTE)


def _forget_our_signals() -> None:
    """What Python changed is as it was: an ignored SIGPIPE would be inherited by the command."""
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signum, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _read_environment(go: int) -> dict[bytes, bytes] | None:
    """What `start` wrote; None if the other side is gone, and then the command must not run."""
    head = _read_all(go, _LENGTH.size)
    if head is None:
        return None
    text = _read_all(go, *_LENGTH.unpack(head))
    if text is None:
        return None
    pairs = (pair.partition(b"=") for pair in text.split(b"\0"))
    return {key: value for key, _, value in pairs}


def _read_all(fd: int, size: int) -> bytes | None:
    parts = b""
    while len(parts) < size:
        part = os.read(fd, size - len(parts))
        if not part:
            return None
        parts += part
    return parts


def _execute(path: str, argv: Sequence[str], environment: Mapping[bytes, bytes]) -> None:
    try:
        os.execve(path, list(argv), environment)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        os.execve("/bin/sh", ["sh", path, *argv[1:]], environment)  # a script without #!, as execvp(3) does it
