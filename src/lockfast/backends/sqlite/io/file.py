"""The file of an SQLite store, before SQLite opens it.

Decides: which file a path leads to, who may read a new one, and which one is refused or warned of.
Leaves to `sqlite`: the connection. Leaves to SQLite: its other files, which get the mode of this one.

No file that may be in use is opened here: to close it again would end the locks that another thread has on it.
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
    """The file that SQLite opens: its log stands beside that one, and not beside a link to it."""
    return Path(os.path.realpath(path))


def refusal(path: Path, file: Path) -> str:
    """Why the `file` that the `path` leads to must not be opened; empty if it may be."""
    if file.is_file() and file.stat().st_nlink > 1:
        return "has several names (hard links), so SQLite cannot keep it safe"
    if path.is_symlink():
        folder, owner = path.parent.stat(), path.lstat().st_uid
        # As the kernel does with fs.protected_symlinks, which SQLite goes round because it reads links itself.
        if folder.st_mode & stat.S_IWOTH and owner not in (os.geteuid(), folder.st_uid):
            return f"is a link that another user (uid {owner}) made in a folder that every user can write"
    return ""


def make(file: Path) -> None:
    """A new file is for its owner alone, or for the group that its folder is for, whatever the umask says.

    Where it cannot be made, SQLite fails too, and its error says why.
    """
    if file.exists():
        return
    with suppress(OSError):
        try:
            os.mknod(file, stat.S_IFREG | _OF_OWNER)
        except FileExistsError:
            return  # another process was faster
        except OSError:  # macOS lets nobody but root do that, some file systems nobody. None has it open yet
            file.touch(_OF_OWNER, exist_ok=False)
        folder = file.parent.stat()
        if _is_for_a_group(folder.st_mode):
            os.chown(file, -1, folder.st_gid)  # fails for a group that we are not in, and then we share with none
            file.chmod(_OF_GROUP)


def _is_for_a_group(mode: int) -> bool:
    """Whether a group can write the folder; where everybody can, as in /tmp, only the setgid bit says that."""
    return bool(mode & stat.S_IWGRP) and (not mode & stat.S_IWOTH or bool(mode & stat.S_ISGID))


def warning(file: Path) -> str:
    """What is unsafe about the folder of a file that is used all the same; empty if nothing is."""
    mode = stat.S_IMODE(file.parent.stat().st_mode)
    if not mode & stat.S_IWOTH or mode & stat.S_ISVTX:
        return ""
    return (
        f"the lock store {str(file)!r} is in a folder that every user of the host can write (mode {mode:o}), so any of "
        "them can put another file in its place; use a folder of your own, or take that right away with chmod o-w"
    )
