"""The file of an SQLite store, before SQLite opens it.

Decides: which file a path leads to, who may read a new one, and which one is refused or warned of.
Leaves to `sqlite`: the connection. Leaves to SQLite: the mode of the other files, which is that of the first.

No file is opened here: to close it again would end the locks that another thread may have on it by then.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

_PRIVATE: Final = 0o600
_OF_GROUP: Final = 0o660


def follow(path: Path) -> Path:
    """The file that SQLite will open: the log stands beside that one, and not beside a link to it."""
    return Path(os.path.realpath(path))


def refusal(path: Path, file: Path) -> str:
    """Why the `file` that the `path` leads to must not be opened; empty if it may be."""
    if file.is_file() and file.stat().st_nlink > 1:
        return "has several names (hard links), so SQLite cannot keep it safe"
    if path.is_symlink() and _is_for_everybody(path.parent.stat()):
        owner, trusted = path.lstat().st_uid, (os.geteuid(), path.parent.stat().st_uid)
        if owner not in trusted:  # as the kernel does with fs.protected_symlinks, which reading a link goes round
            return f"is a link that another user (uid {owner}) made in a folder that every user can write"
    return ""


def make(file: Path) -> None:
    """A new file is for its owner alone, or for the group that can write its folder, whatever the umask is.

    Where it cannot be made, SQLite fails too, and says why.
    """
    if file.exists():
        return
    with suppress(OSError):
        try:
            os.mknod(file, stat.S_IFREG | _PRIVATE)
        except PermissionError:  # macOS lets nobody but root do that
            file.touch(_PRIVATE, exist_ok=False)
        file.chmod(_PRIVATE)
        folder = file.parent.stat()
        if _is_for_group(folder):
            os.chown(file, -1, folder.st_gid)  # fails if we are not in it: then it is not ours to share
            file.chmod(_OF_GROUP)


def warning(file: Path) -> str:
    """What is wrong with the folder of the file, although it can be used; empty if nothing is."""
    folder = file.parent.stat()
    if not _is_for_everybody(folder) or folder.st_mode & stat.S_ISVTX:
        return ""
    mode = stat.S_IMODE(folder.st_mode)
    return (
        f"the lock store {str(file)!r} is in a folder that every user of the host can write (mode {mode:o}), so any of "
        "them can put another file in its place; use a folder of your own, or chmod o-w this one"
    )


def _is_for_everybody(folder: os.stat_result) -> bool:
    return bool(folder.st_mode & stat.S_IWOTH)


def _is_for_group(folder: os.stat_result) -> bool:
    """Where everybody can write, as in /tmp, only the setgid bit says that a group is meant."""
    return bool(folder.st_mode & stat.S_IWGRP) and not (_is_for_everybody(folder) and not folder.st_mode & stat.S_ISGID)
