"""The file of an SQLite store, before SQLite opens it.

Decides: which file a path leads to, and which one is refused.
Leaves to `sqlite`: the connection.

No file is opened here: to close it again would end the locks that another thread may have on it by then.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


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
