"""No test hangs a run: one that is stuck is ended, and the stacks of all threads are printed.

Decides: how long a test may take, set-up and all, and that its process ends with it if it takes longer.
Leaves to pytest-timeout: the soft limit, which comes first and fails the one test. It acts through a signal handler in
the main thread, so it cannot end a finalizer that hangs, code that keeps the GIL, or a wait for a lock in C.

Here a thread of faulthandler's, which needs no GIL, writes the stacks and ends the process. A worker of pytest-xdist
that ends like this is replaced, and the run names the test that it was at.
Leaves to `crashes`: where the stacks are written.
"""

from __future__ import annotations

import faulthandler
import os
import time
from collections.abc import Iterator

import pytest

from tests.crashes import stacks

DEFAULT_S = 210.0  # the soft limit of pyproject.toml, and some
LONGER_S = 1.25  # times the soft limit, for a test that has one of its own


class HardLimit:
    def __init__(self, seconds: float, to: int) -> None:
        self._seconds = seconds
        self._to = to
        self._ends_at: float | None = None  # while a limit is set

    def begin(self) -> HardLimit:
        os.register_at_fork(before=self._before_fork, after_in_parent=self._after_fork, after_in_child=self._in_child)
        return self

    def set(self, seconds: float | None = None) -> None:
        seconds = self._seconds if seconds is None else seconds
        self._ends_at = time.monotonic() + seconds
        faulthandler.dump_traceback_later(seconds, exit=True, file=self._to)

    def lift(self) -> None:
        self._ends_at = None
        faulthandler.cancel_dump_traceback_later()

    def _before_fork(self) -> None:
        """A child has no such thread, and would wait for it at its end. So there is none while a process forks."""
        if self._ends_at is not None:
            faulthandler.cancel_dump_traceback_later()

    def _after_fork(self) -> None:
        if self._ends_at is not None:
            self.set(max(0.01, self._ends_at - time.monotonic()))

    def _in_child(self) -> None:
        self._ends_at = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        own = item.get_closest_marker("timeout")
        self.set(float(own.args[0]) * LONGER_S if own is not None and own.args and own.args[0] else None)
        try:
            return (yield)
        finally:
            self.lift()

    def pytest_unconfigure(self) -> None:
        """A thread or a finalizer that a test has left behind must not keep the process from its end either."""
        self.set()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("hard_limit", "seconds after which a test is ended with its process", default=str(DEFAULT_S))


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    limit = HardLimit(float(config.getini("hard_limit")), stacks(config))
    config.pluginmanager.register(limit.begin(), "hard limit")
