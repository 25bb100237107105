"""What all processes of one test run share: a folder, with the servers and the numbers that they use together.

Decides: that the first process which needs a shared server starts it, and that all of them end with the run.
Leaves to `shared` and `postgres_shared`: what is in them.

The process that begins the run (pytest's own, before xdist starts its workers) keeps the writing end of a FIFO in the
folder open. A watchdog of each server reads it, so that the server ends with that process, however it ends, and
does not end with the worker that happened to start it.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_dice = random.SystemRandom()
_SEED = "LOCKFAST_TEST_SEED"
ROOM = 4 << 30  # bytes: several times what a run takes
_FOLDER = "LOCKFAST_TEST_RUN"  # the environment variable that shows workers where it is
_ends: dict[Path, int] = {}  # the FIFOs' writing ends, by their run's folder: open as long as this process lives


def begin() -> Path:
    """The folder of the run; made by the first process that asks, for itself and all that it starts."""
    if _FOLDER not in os.environ:
        folder = Path(tempfile.mkdtemp(prefix="lockfast-", dir=_quick_disk()))
        folder.chmod(0o755)  # servers that root starts run as another user
        os.mkfifo(folder / "alive")
        _ends[folder] = os.open(folder / "alive", os.O_RDWR)
        os.environ[_FOLDER] = str(folder)
        if folder.parent != Path(tempfile.gettempdir()):
            _put_temporary_files_into(folder / "tmp")
        end = at_the_end('rm -rf "$1"; sleep 3; rm -rf "$1"', str(folder))  # workers may still have written to it
        end.returncode = 0  # it outlives us: nothing may warn that it still runs
    return Path(os.environ[_FOLDER])


def _put_temporary_files_into(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o1777)
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None  # so that it is looked up again


def _quick_disk() -> Path | None:
    """A file system in memory, for the tests' temporary files too: they make a hundred thousand.

    None, which is the usual place, where there is no such file system, or little room on it, or TMPDIR names another.
    """
    shm = Path("/dev/shm")
    if "TMPDIR" in os.environ or not os.access(shm, os.W_OK):
        return None
    disk = os.statvfs(shm)
    roomy = disk.f_bavail * disk.f_frsize >= ROOM and not disk.f_flag & os.ST_NOEXEC
    return shm if roomy else None


def at_the_end(script: str, *words: str) -> subprocess.Popen[bytes]:
    """Run these lines of a shell, with the words as $1, $2…, as soon as the run is over."""
    with (begin() / "alive").open("rb", buffering=0) as alive:
        return subprocess.Popen(
            ["sh", "-c", f"read nothing; {script}", "sh", *words],
            stdin=alive,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def once(what: str, start: Callable[[], dict[str, str]]) -> dict[str, str]:
    """What `start` returned to the first process of the run that asked; the others wait for it and get the same."""
    with _locked(what):
        file = begin() / f"{what}.json"
        if not file.exists():
            file.write_text(json.dumps(start()))
        answer: dict[str, str] = json.loads(file.read_text())
        return answer


def count(what: str) -> int:
    """0, 1, 2…: another number for each call in any process of the run."""
    with _locked(what):
        file = begin() / f"{what}.count"
        number = int(file.read_text()) if file.exists() else 0
        file.write_text(str(number + 1))
        return number


@contextmanager
def first_alone(what: str) -> Iterator[None]:
    """The first process of the run that comes here goes alone; the others wait until it has left, and go together."""
    with _locked(what):
        done = begin() / f"{what}.done"
        first = not done.exists()
        if first:
            yield
            done.touch()
    if not first:
        yield


def first_new_seed() -> int:
    """Where the seeds begin that only this run tries; LOCKFAST_TEST_SEED=… tries those of another run again."""
    asked = os.environ.get(_SEED)
    return int(asked) if asked else int(once("seed", lambda: {"first": str(_dice.randrange(10**6, 10**9))})["first"])


@contextmanager
def _locked(what: str) -> Iterator[None]:
    with (begin() / f"{what}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
