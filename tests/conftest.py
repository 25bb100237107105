"""What holds for every test: which are left out of the quick loop, and that signals mean what they usually mean."""

from __future__ import annotations

import signal

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        story = getattr(item, "function", None)
        if "processes" in getattr(story, "needs", ()) or _is_told_again(item.nodeid):
            item.add_marker(pytest.mark.slow)


def _is_told_again(test: str) -> bool:
    """The quick loop hears each story in each world once, on memory, the simulated one with its first seed.

    What SQLite and Redis answer to the verbs is held against the reference there by a Hypothesis machine.
    """
    chapter, _, told = test.partition("[")
    again = chapter.rpartition("::")[0].endswith(("_sqlite", "_redis", "_redis6", "_postgres"))
    return again or told.startswith(("simulated-1", "simulated-2"))


def pytest_configure(config: pytest.Config) -> None:
    """Start from the usual answers to signals: whoever runs us in the background may have switched some off."""
    for name in ("SIGINT", "SIGHUP", "SIGQUIT", "SIGTERM"):
        number = getattr(signal, name)
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL)
