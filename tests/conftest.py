"""What holds for every test: stories that start processes are slow, signals mean what they usually mean."""

from __future__ import annotations

import signal

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        story = getattr(item, "function", None)
        if "processes" in getattr(story, "needs", ()):
            item.add_marker(pytest.mark.slow)


def pytest_configure(config: pytest.Config) -> None:
    """Start from the usual answers to signals: whoever runs us in the background may have switched some off."""
    for name in ("SIGINT", "SIGHUP", "SIGQUIT", "SIGTERM"):
        number = getattr(signal, name)
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL)
