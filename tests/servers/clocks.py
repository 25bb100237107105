"""A server whose clock a test can set: its wall clock jumps, time goes on passing as before.

Decides: how. libfaketime stands between the server and the kernel; it reads how far off to be from a file, each time.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from tests.servers.processes import has_ended
from tests.servers.server import Server
from tests.servers.waiting import until

SHARED = Path("/dev/shm")


class Clock:
    """How far off a server's clock is; `settings` are for its environment."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="lockfast-clock-")
        Path(self._folder.name).chmod(0o755)  # a server may be another user's
        self._offset = Path(self._folder.name) / "offset"
        self._offset.write_text("+0")
        self.settings = {
            "LD_PRELOAD": str(_library()),
            "FAKETIME_TIMESTAMP_FILE": str(self._offset),
            "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, seconds: float) -> None:
        """From now on it is that many seconds ahead of ours, or behind."""
        fresh = self._offset.with_suffix(".new")
        fresh.write_text(f"{seconds:+f}")
        fresh.replace(self._offset)  # at once: it must never read half of it

    def close(self) -> None:
        """Once its server has ended."""
        self._folder.cleanup()
        remove_left_behind()


def remove_left_behind() -> None:
    """What libfaketime keeps in shared memory for processes that were killed; it clears up after others itself."""
    for shared in SHARED.glob("faketime_shm_*"):
        pid = shared.name.rpartition("_")[2]
        if has_ended(int(pid)):
            with suppress(PermissionError):  # another user's
                shared.unlink(missing_ok=True)
                (SHARED / f"sem.faketime_sem_{pid}").unlink(missing_ok=True)


class JumpyServer(Server):
    def __init__(self, *args: str) -> None:
        self._clock = Clock()
        super().__init__(*args, env=self._clock.settings)

    def jump_to(self, seconds: float) -> None:
        """From now on its clock is that many seconds ahead of ours, or behind."""
        self._clock.set(seconds)
        # Keys expire by a clock that it reads only now and then, so that may follow a little later.
        until(lambda: abs(self._ahead() - seconds) < 60, f"a clock that is {seconds:g} s ahead")

    def _ahead(self) -> float:
        self.command("SET", "clock", "", "EX", 1000)
        return float(self.command("EXPIRETIME", "clock")) - 1000 - time.time()

    def close(self) -> None:
        super().close()
        self._clock.close()


def _library() -> Path:
    spec = find_spec("libfaketime")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("no libfaketime: install the test group, `pip install --group test`")
    (found,) = Path(spec.submodule_search_locations[0]).glob("vendor/libfaketime/src/libfaketime.so.1")
    return found
