"""The file of an SQLite store, before SQLite opens it.

Decides: which file a path leads to, the mode of a new one, and which one is refused or warned about.
Leaves to `blocking`: the connection. Leaves to SQLite: its other files, which get the mode of this one.

No file that may be in use is opened here: closing it would release the POSIX locks that another thread has on it.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

_OF_OWNER: Final = 0o600
_OF_GROUP: Final = 0o660


def follow(path: Path) -> Path:
    """The file that SQLite opens: its log is beside that file, not beside a link to it."""
    return Path(os.path.realpath(path))


def refusal(path: Path, file: Path) -> str:
    """Why the `file` that the `path` leads to must not be opened; empty if it may."""
    if file.is_file() and file.stat().st_nlink > 1:
        return "has several names (hard links), so SQLite cannot keep it safe"
    if path.is_symlink():
        folder, owner = path.parent.stat(), path.lstat().st_uid
        # As the kernel does with fs.protected_symlinks, which SQLite bypasses because it resolves links itself.
        if folder.st_mode & stat.S_IWOTH and owner not in (os.geteuid(), folder.st_uid):
            return f"is a link that another user (uid {owner}) made in a folder that every user can write"
    return ""


def make(file: Path) -> None:
    """Create a file for its owner alone, or for the group of its folder, whatever the umask is.

    If that fails, SQLite fails too, and its error says why.
    """
    if file.exists():
        return
    with suppress(OSError):
        try:
            os.mknod(file, stat.S_IFREG | _OF_OWNER)
        except FileExistsError:
            return  # another process created it first
        except OSError:  # macOS allows it to root only, some file systems to none. No process has the file open yet
            file.touch(_OF_OWNER, exist_ok=False)
        folder = file.parent.stat()
        if _is_for_a_group(folder.st_mode):
            os.chown(file, -1, folder.st_gid)  # fails for a group that we are not in; then the file stays the owner's
            file.chmod(_OF_GROUP)


def _is_for_a_group(mode: int) -> bool:
    """Whether the folder is for a group; where all users can write, as in /tmp, only the setgid bit says so."""
    return bool(mode & stat.S_IWGRP) and (not mode & stat.S_IWOTH or bool(mode & stat.S_ISGID))


def warning(file: Path) -> str:
    """A warning about an unsafe folder of a file that is used nevertheless; empty if it is safe."""
    mode = stat.S_IMODE(file.parent.stat().st_mode)
    if not mode & stat.S_IWOTH or mode & stat.S_ISVTX:
        return ""
    return (
        f"the lock store {str(file)!r} is in a folder that every user of the host can write (mode {mode:o}), so any of "
        "them can put another file in its place; use a folder of your own, or take that right away with chmod o-w"
    )
