"""The pictures of the concepts are those that their script draws."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw", FOLDER / "draw.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["lease", "fence", "hand_over", "quorum"])
def test_a_picture_is_what_its_script_draws(name: str) -> None:
    assert (FOLDER / f"{name}.svg").read_text() == getattr(script(), name)().svg()
