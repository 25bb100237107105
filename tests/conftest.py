"""What holds for every test: stories that start processes are slow."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        story = getattr(item, "function", None)
        if "processes" in getattr(story, "needs", ()):
            item.add_marker(pytest.mark.slow)
