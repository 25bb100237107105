"""The backends that the engine is tried on."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of its own for each test."""
    return f"memory://{uuid4().hex}" if request.param == "memory" else f"sqlite:///{tmp_path}/locks.db"
