"""The store that the tests of SQLite use. Tests of other backends have `locks` of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import lockfast
from lockfast import Locks


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture
def locks(path: Path) -> Iterator[Locks]:
    with lockfast.connect(f"sqlite:///{path}") as locks:
        yield locks
