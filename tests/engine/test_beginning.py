"""An interpreter that ends first lets the threads begin that were started: CPython crashes otherwise."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lockfast import _reentry
from tests.servers.waiting import LIMIT_S, join

# Its threads begin late. What was registered first is called last: after all that lockfast does at the end.
_ENDS_AT_ONCE = """
import _thread, atexit, sys, threading, time
begun = []
atexit.register(lambda: print(begun))
start = _thread.start_new_thread
def start_late(function, args):
    def begin():
        time.sleep(0.3)
        begun.append(function.__name__)
        function(*args)
    return start(begin, ())
_thread.start_new_thread = start_late
import lockfast
lockfast.connect(sys.argv[1]).inspect("anything")
"""


def test_a_program_that_ends_after_its_first_request_waits_until_the_keeper_has_begun(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _ENDS_AT_ONCE, f"sqlite:///{tmp_path}/locks.db"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "['_start_named']\n", "")


def test_a_thread_that_could_not_be_started_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("_thread.start_new_thread", start)
    with pytest.raises(_reentry.NoThread):
        _reentry.start_thread("anything", _reentry.nothing)
    monkeypatch.undo()
    monkeypatch.setattr(_reentry, "MAX_BEGIN_S", 2 * LIMIT_S)
    waiting = threading.Thread(target=_reentry._await_beginning, daemon=True)
    waiting.start()
    join(waiting)
