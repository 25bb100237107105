"""The matrix of the contract is complete: every chapter, on every backend, in every world, and nothing is left out."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast.testing.contract as contract
from holdfast._connect import _OPENERS
from holdfast.testing.contract.story import WORLDS
from tests.contract.backends import BACKENDS

ROOT = Path(__file__).parent.parent


def _stories(chapter: type[contract.Promise]) -> dict[str, object]:
    return {name: story for name, story in vars(chapter).items() if name.startswith("test_")}


def test_every_promise_has_a_file_and_a_chapter() -> None:
    folder = Path(contract.__file__).parent
    assert [path.name[:4] for path in sorted(folder.glob("p[0-9][0-9]_*.py"))] == [f"p{n:02}_" for n in range(1, 13)]
    modules = [chapter.__module__.rpartition(".")[2] for chapter in contract.PROMISES]
    assert [module[:4] for module in modules] == [f"p{n:02}_" for n in range(1, 13)]


def test_every_chapter_belongs_to_the_contract() -> None:
    folder = Path(contract.__file__).parent
    written = {path.stem for path in folder.glob("*.py")} - {"__init__", "story"}
    assert written == {chapter.__module__.rpartition(".")[2] for chapter in contract.CHAPTERS}


def test_every_backend_that_connect_knows_is_in_the_table_once() -> None:
    assert sorted(row.scheme for row in BACKENDS) == sorted(_OPENERS)


def test_every_chapter_has_stories_of_its_own_and_no_two_share_a_name() -> None:
    names = [name for chapter in contract.CHAPTERS for name in _stories(chapter)]
    assert all(_stories(chapter) for chapter in contract.CHAPTERS)
    assert len(names) == len(set(names))  # else one would hide the other in ContractSuite
    assert set(names) == {name for name in dir(contract.ContractSuite) if name.startswith("test_")}


def test_every_story_is_for_some_world_on_some_backend() -> None:
    for chapter in contract.CHAPTERS:
        for name, story in _stories(chapter).items():
            needed: frozenset[str] = getattr(story, "needs", frozenset())
            assert any(needed <= world.can | row.can for world in WORLDS.values() for row in BACKENDS), name


@pytest.mark.slow
def test_every_story_is_really_collected_on_every_backend_in_every_world() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests/contract"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    found = re.findall(r"::Test(\w+)_([a-z+]+)::(test_\w+)\[([a-z]+)", answer.stdout)
    expected = {
        (chapter.__name__, row.scheme, name, world)
        for chapter in contract.CHAPTERS
        for row in BACKENDS
        for name, story in _stories(chapter).items()
        for world, stage in WORLDS.items()
        if getattr(story, "needs", frozenset()) <= stage.can | row.can
    }
    assert expected == set(found)
