"""The matrix of the contract is complete: every chapter, on every backend, in every world, and nothing is left out."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast.testing.contract as contract
from holdfast._connect import _OPENERS
from holdfast.testing.contract.story import WORLDS, lacking, needed_by
from holdfast.testing.stage import Stage
from holdfast.testing.stage_simulated import SimulatedStage
from tests.contract.backends import BACKENDS, Row

ROOT = Path(__file__).parent.parent


def _stories(chapter: type[contract.Promise]) -> dict[str, Callable[..., Any]]:
    return {name: story for name, story in vars(chapter).items() if name.startswith("test_")}


ALL_STORIES = {name: story for chapter in contract.CHAPTERS for name, story in _stories(chapter).items()}


def test_every_promise_has_a_file_and_a_chapter() -> None:
    folder = Path(contract.__file__).parent
    assert [path.name[:4] for path in sorted(folder.glob("p[0-9][0-9]_*.py"))] == [f"p{n:02}_" for n in range(1, 13)]
    modules = [chapter.__module__.rpartition(".")[2] for chapter in contract.PROMISES]
    assert [module[:4] for module in modules] == [f"p{n:02}_" for n in range(1, 13)]


def test_every_chapter_belongs_to_the_contract() -> None:
    folder = Path(contract.__file__).parent
    written = {path.stem for path in folder.glob("*.py")} - {"__init__", "story"}
    assert written == {chapter.__module__.rpartition(".")[2] for chapter in contract.CHAPTERS}


# What can do so little of the contract that it says for each story why not, in a file of its own.
TOLD_ELSEWHERE = {
    "postgresql+advisory": "tests/backends/test_postgres_advisory_contract.py",
    "redlock": "tests/backends/test_quorum_contract.py",
}


def test_every_backend_that_connect_knows_is_in_the_table() -> None:
    elsewhere = {_OPENERS[scheme] for scheme in TOLD_ELSEWHERE}
    assert {_OPENERS[row.scheme] for row in BACKENDS} | elsewhere == set(_OPENERS.values())
    assert all((ROOT / file).exists() for file in TOLD_ELSEWHERE.values())
    assert len({row.name for row in BACKENDS}) == len(BACKENDS)


def test_every_chapter_has_stories_of_its_own_and_no_two_share_a_name() -> None:
    names = [name for chapter in contract.CHAPTERS for name in _stories(chapter)]
    assert all(_stories(chapter) for chapter in contract.CHAPTERS)
    assert len(names) == len(set(names))  # else one would hide the other in ContractSuite
    assert set(names) == {name for name in dir(contract.ContractSuite) if name.startswith("test_")}


def test_every_story_is_for_some_world_on_some_backend() -> None:
    for name, story in ALL_STORIES.items():
        assert any(not lacking(story, world, row.can) for world in WORLDS.values() for row in BACKENDS), name


def test_every_world_is_used_by_some_backend() -> None:
    for world in WORLDS.values():
        assert any(world.asks <= row.can for row in BACKENDS), world


# The simulated world

SIMULATED = [row for row in BACKENDS if SimulatedStage.asks <= row.can]
ONLY_REAL_WORLDS_HAVE = frozenset[str]().union(*(world.can for world in WORLDS.values())) - SimulatedStage.can


@pytest.mark.parametrize("row", SIMULATED, ids=lambda row: row.name)
def test_a_story_is_left_out_of_the_simulated_world_only_for_what_it_cannot_have(row: Row) -> None:
    left_out = {name: lacking(story, SimulatedStage, row.can) for name, story in ALL_STORIES.items()}
    left_out = {name: why for name, why in left_out.items() if why}
    assert all(why <= ONLY_REAL_WORLDS_HAVE for why in left_out.values()), left_out
    assert len(left_out) < len(ALL_STORIES) / 10, left_out  # nearly all of the contract is told there


def test_a_story_that_can_be_cancelled_is_told_in_the_simulated_world_too() -> None:
    for name, story in ALL_STORIES.items():
        if needed_by(story) <= {"cancellation"}:
            assert not lacking(story, SimulatedStage, SimulatedStage.asks), name


def test_a_story_that_asks_for_asyncio_uses_it() -> None:
    asking = {name: story for name, story in ALL_STORIES.items() if "asyncio" in needed_by(story)}
    for name, story in asking.items():
        source = inspect.getsource(inspect.unwrap(story)).replace("asyncio.CancelledError", "")
        assert re.search(r"\basyncio\.|AsyncioStage", source), f"{name} could be told in the simulated world"


def test_a_backend_gets_the_simulated_world_by_saying_so_and_not_otherwise() -> None:
    chapter = contract.PROMISES[0]

    def suite(*can: str) -> type[contract.Promise]:
        told = {"can": frozenset(can), "url": lambda self, tmp_path: "memory://"}
        return type("Suite", (chapter,), told)

    story = _stories(chapter)["test_no_two_bodies_run_at_once"]
    assert suite("simulated").worlds_for(story) == ["threads", "asyncio", "simulated"]
    assert suite("fork", "processes").worlds_for(story) == ["threads", "asyncio"]


# What pytest sees


@pytest.mark.slow
def test_every_story_is_really_collected_on_every_backend_in_every_world() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests/contract"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    found = re.findall(r"::Test(\w+)_([a-z0-9+]+)::(test_\w+)\[(threads|asyncio|simulated-\d+)", answer.stdout)
    expected = {
        (chapter.__name__, row.name, name, world)
        for chapter in contract.CHAPTERS
        for row in BACKENDS
        for name, story in _stories(chapter).items()
        for stage in WORLDS.values()
        for world in _ids(stage)
        if not lacking(story, stage, row.can)
    }
    assert expected == set(found)


def _ids(stage: type[Stage]) -> list[str]:
    """How the tests of that world are called; a seed stands in the name, so that it can be run again."""
    return [f"{stage.world}-{seed}" for seed in contract.Promise.seeds] if stage.seeded else [stage.world]
