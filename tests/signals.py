"""A test leaves the answers to signals as it found them: else a signal that a later test sends means something else.

Decides: which signals are looked at. `sets_signals` is for a test of what sets them for good, as a program does.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

_LOOKED_AT = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGCONT", "SIGTSTP")
]


def _answers() -> dict[Any, Any]:
    return {number: signal.getsignal(number) for number in _LOOKED_AT}


@contextmanager
def _set_back() -> Iterator[list[str]]:
    """What was changed meanwhile is set back, and named in the list."""
    before, changed = _answers(), list[str]()
    yield changed
    for number, answer in _answers().items():
        if answer is not before[number]:
            changed.append(f"{number.name}: {answer}")
            signal.signal(number, before[number])


@pytest.fixture(autouse=True)
def _leaves_signals_alone() -> Iterator[None]:
    with _set_back() as changed:
        yield
    assert not changed, f"it has left other answers to signals: {', '.join(changed)}"


@pytest.fixture
def sets_signals() -> Iterator[None]:
    with _set_back():
        yield
