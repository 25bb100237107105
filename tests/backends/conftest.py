"""The store that the tests of SQLite use. Tests of other backends have `locks` of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Locks


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture
def locks(path: Path) -> Iterator[Locks]:
    with holdfast.connect(f"sqlite:///{path}") as locks:
        yield locks
