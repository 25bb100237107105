"""A test leaves no thread of the library behind: a `Locks` that it leaves open would keep its own, and the next test
would be blamed for them.

Decides: which threads are the library's, and when they have all begun: the main thread leaves it to another one to
start a thread, so one may appear after the test is over.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from lockfast._reentry import BackgroundJob
from tests.servers.waiting import until

_make = BackgroundJob.__init__
_untaken: list[Any] = []  # a lock of each job that no thread had taken when it was last looked at


def _make_and_note(job: BackgroundJob, work: Any, name: str) -> None:
    _make(job, work, name)
    _untaken.append(job._untaken)


def _all_taken() -> bool:
    _untaken[:] = [lock for lock in _untaken if not lock.locked()]
    return not _untaken


def _since(before: set[threading.Thread]) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread not in before and thread.name.startswith("lockfast")]


@pytest.fixture(autouse=True)
def _ends_its_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = set(threading.enumerate())
    _untaken.clear()
    monkeypatch.setattr(BackgroundJob, "__init__", _make_and_note)
    yield
    until(_all_taken, "all threads that were started to begin")
    left = _since(before)
    until(lambda: not _since(before), f"these threads to end: {left}")
