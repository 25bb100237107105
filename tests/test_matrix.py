"""The matrix of the contract is complete: every chapter, on every backend, in every world, and nothing is missing."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lockfast
import lockfast.testing.contract as contract
from lockfast._connect import ENTRY_POINTS, SCHEMES, open_backend
from lockfast._model import Capabilities
from lockfast._worlds.threads import ThreadWorld
from lockfast.errors import Unsupported
from lockfast.testing.contract.s04_one_admission_rule import OneAdmissionRule
from lockfast.testing.contract.story import SUBJECTS, WORLDS, abilities, lacking, needed_by, needs, subject_of
from lockfast.testing.stage import Stage
from lockfast.testing.stage_simulated import SimulatedStage
from tests.contract.backends import BACKENDS, OF_THIS_HOST, Row
from tests.contract.suites import at_scale, chapters_of, seeds
from tests.scale import SCALE
from tests.servers.binaries import HAS_REDIS_6, redis_of_this_host

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


def test_every_backend_that_connect_knows_is_in_the_table() -> None:
    assert {SCHEMES[row.scheme] for row in BACKENDS} == set(SCHEMES.values())
    assert len({row.name for row in BACKENDS}) == len(BACKENDS)


@pytest.mark.slow
@pytest.mark.parametrize("row", BACKENDS, ids=lambda row: row.name)
def test_a_row_says_what_its_backend_says_that_it_can(row: Row, tmp_path: Path) -> None:
    assert open_backend(row.url(tmp_path), ThreadWorld(), None).capabilities == row.capabilities


def test_every_story_says_what_it_is_about() -> None:
    assert {name for name, story in ALL_STORIES.items() if getattr(story, "about", None) not in SUBJECTS} == set()


def test_stories_about_the_engine_run_on_memory_sqlite_and_redis() -> None:
    """They differ most: no server, a file, and a server; the other rows run the stories about their store."""
    of_engine = {row.name for row in BACKENDS if "engine" in row.subjects}
    assert of_engine >= {"memory", "sqlite", "redis"}
    assert "memory" in {row.name for row in BACKENDS if "input" in row.subjects}
    assert all("store" in row.subjects for row in BACKENDS)


def test_only_a_row_that_repeats_a_server_in_another_age_number_or_set_up_runs_a_part_of_the_contract() -> None:
    in_part = {row.name: SCHEMES[row.scheme] for row in BACKENDS if row.chapters}
    whole = {SCHEMES[row.scheme] for row in BACKENDS if not row.chapters}
    of_redis = {"cluster", "sentinel"} | ({"redis6"} if HAS_REDIS_6 else set())
    assert in_part == {"redlock5": "redlock"} | dict.fromkeys(of_redis, "redis")
    assert set(in_part.values()) <= whole
    assert all(len(chapters_of(row)) == len(row.chapters) for row in BACKENDS if row.chapters)


def test_the_long_search_runs_everything_on_every_row() -> None:
    for row in BACKENDS:
        whole = at_scale(row, "soak")
        assert whole is not None
        assert chapters_of(whole) == list(contract.CHAPTERS)
        assert whole.subjects == SUBJECTS


def test_a_need_that_nobody_could_meet_is_refused() -> None:
    with pytest.raises(ValueError, match="exipres"):
        needs("exipres")


def test_every_chapter_has_stories_of_its_own_and_no_two_share_a_name() -> None:
    names = [name for chapter in contract.CHAPTERS for name in _stories(chapter)]
    assert all(_stories(chapter) for chapter in contract.CHAPTERS)
    assert len(names) == len(set(names))  # else one would hide the other in ContractSuite
    assert set(names) == {name for name in dir(contract.ContractSuite) if name.startswith("test_")}


def test_every_story_is_for_some_world_on_some_backend() -> None:
    for name, story in ALL_STORIES.items():
        assert any(_worlds(story, row) for row in BACKENDS), name


def _worlds(story: Callable[..., Any], row: Row) -> list[type[Stage]]:
    """Those that the story must run in on the row."""
    if subject_of(story) not in row.subjects:
        return []
    able = row.can | abilities(row.capabilities)
    return [world for world in WORLDS.values() if not lacking(story, world, able)]


def test_every_world_is_used_by_some_backend() -> None:
    for world in WORLDS.values():
        assert any(world.asks <= row.can for row in BACKENDS), world


# The simulated world

SIMULATED = [row for row in BACKENDS if SimulatedStage.asks <= row.can]
ONLY_REAL_WORLDS_HAVE = frozenset[str]().union(*(world.can for world in WORLDS.values())) - SimulatedStage.can


@pytest.mark.parametrize("row", SIMULATED, ids=lambda row: row.name)
def test_a_story_is_excluded_from_the_simulated_world_only_for_what_it_cannot_have(row: Row) -> None:
    able = row.can | abilities(row.capabilities)
    excluded = {name: lacking(story, SimulatedStage, able) for name, story in ALL_STORIES.items()}
    excluded = {name: why for name, why in excluded.items() if why}
    assert all(why <= ONLY_REAL_WORLDS_HAVE for why in excluded.values()), excluded
    assert len(excluded) < len(ALL_STORIES) / 10, excluded  # nearly all of the contract runs there


def test_a_story_that_can_be_cancelled_runs_in_the_simulated_world_too() -> None:
    for name, story in ALL_STORIES.items():
        if needed_by(story) <= {"cancellation"}:
            assert not lacking(story, SimulatedStage, SimulatedStage.asks | abilities(Capabilities())), name


def test_a_story_that_asks_for_asyncio_uses_it() -> None:
    asking = {name: story for name, story in ALL_STORIES.items() if "asyncio" in needed_by(story)}
    for name, story in asking.items():
        source = inspect.getsource(inspect.unwrap(story)).replace("asyncio.CancelledError", "")
        assert re.search(r"\basyncio\.|AsyncioStage", source), f"{name} could run in the simulated world"


def test_a_backend_gets_the_simulated_world_by_saying_so_and_not_otherwise() -> None:
    chapter = contract.PROMISES[0]

    def suite(*can: str) -> type[contract.Promise]:
        members = {"can": frozenset(can), "url": lambda self, tmp_path: "memory://"}
        return type("Suite", (chapter,), members)

    story = _stories(chapter)["test_no_two_bodies_run_at_once"]
    assert suite("simulated").worlds_for(story) == ["threads", "asyncio", "simulated"]
    assert suite("fork", "processes").worlds_for(story) == ["threads", "asyncio"]


# What pytest sees


SERVERS = ("redis-server", "valkey-server", "postgres", "initdb", "etcd")


def _collect(folder: Path, *programs: str) -> list[str]:
    """The tests of `make test` that pytest finds where these programs, and none but Python's own, are installed."""
    folder.mkdir()
    for program in programs:
        (folder / program).write_text("#!/bin/sh\nexit 1\n")
        (folder / program).chmod(0o755)
    environment = {**os.environ, "PATH": str(folder), "LOCKFAST_TESTS": "all"}
    environment.pop("LOCKFAST_TEST_REDIS", None)
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return [line for line in answer.stdout.splitlines() if "::" in line]


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The tests that pytest finds with the servers that are installed here; if this run is of all tests, its own."""
    config = request.config
    picked = any(config.getoption(option) for option in ("keyword", "markexpr", "deselect", "ignore"))
    usual = SCALE == "all" and redis_of_this_host(os.environ) is None
    if usual and not picked and config.args == config.getini("testpaths"):
        return [item.nodeid for item in request.session.items]
    return _collect(tmp_path_factory.mktemp("path") / "here", *filter(shutil.which, SERVERS))


@pytest.mark.slow
def test_every_story_is_really_collected_on_every_backend_in_every_world(found: list[str]) -> None:
    pattern = r"::Test([A-Za-z]+)_(\w+)::(test_\w+)\[(threads|asyncio|simulated-\d+)"
    collected = (line for line in found if line.startswith("tests/contract/test_contract.py"))
    assert {match.groups() for line in collected if (match := re.search(pattern, line))} == {
        (chapter.__name__, row.name, name, world)
        for row in BACKENDS
        if row.name != OF_THIS_HOST
        for chapter in chapters_of(row)
        for name, story in _stories(chapter).items()
        for stage in _worlds(story, row)
        for world in _ids(stage)
    }


@pytest.mark.slow
def test_what_is_tested_does_not_depend_on_what_is_installed(found: list[str], tmp_path: Path) -> None:
    servers = () if any(map(shutil.which, SERVERS)) else SERVERS  # none, or all of them: not as it is here
    assert sorted(_collect(tmp_path / "other", *servers)) == sorted(found)
    assert len(found) > 5000


def test_a_server_of_this_host_is_used_only_when_asked_for_by_name() -> None:
    assert redis_of_this_host({"PATH": os.environ["PATH"]}) is None
    assert redis_of_this_host({"LOCKFAST_TEST_REDIS": "/opt/redis-server"}) == Path("/opt/redis-server")


# A package from outside: the example of one

OWN_BACKEND = ROOT / "examples" / "own_backend"

ONE_MORE_ROW = """
from lockfast_jsonfile import JsonFileBackend
from tests.contract.backends import Row
from tests.contract.suites import classes

row = Row("own", "jsonfile", lambda folder: f"jsonfile://{folder}/locks.json", JsonFileBackend.capabilities)
globals().update(classes(row, __name__))
"""


def _installed(folder: Path, entry_point: str = "") -> Path:
    """A folder that is to Python what the installed example is; `entry_point` replaces that of its pyproject.toml."""
    project = tomllib.loads((OWN_BACKEND / "pyproject.toml").read_text())["project"]
    (scheme, opener), *others = project["entry-points"][ENTRY_POINTS].items()
    assert (scheme, others) == ("jsonfile", [])
    shutil.copy(OWN_BACKEND / "lockfast_jsonfile.py", folder)
    facts = folder / "lockfast_jsonfile-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    (facts / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\n{scheme} = {entry_point or opener}\n")
    return folder


def test_a_package_from_outside_is_found_by_its_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(_installed(tmp_path))
    url = f"jsonfile://{tmp_path}/locks.json"
    with lockfast.connect(url) as locks, locks.lock("x") as lease:
        assert lease.held
        assert url in repr(locks)
    with pytest.raises(Unsupported, match="cells"):
        locks.cell("x")
    with pytest.raises(Unsupported, match="jsonfile:// has no replicas to wait for; nothing was sent"):
        lockfast.connect(url, replicas=1)


def test_a_scheme_of_a_package_from_outside_is_among_those_that_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(_installed(tmp_path))
    with pytest.raises(ValueError, match=r"known are memory://.*, jsonfile:// and"):
        lockfast.connect("mysql://host")
    with pytest.raises(ValueError, match=r"did you mean jsonfile://"):
        lockfast.connect("jsonfil:///locks.json")


def test_a_package_from_outside_that_cannot_be_imported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(_installed(tmp_path, "package_that_is_gone:open_url"))
    with pytest.raises(Unsupported, match=r"jsonfile:// belongs to package_that_is_gone:open_url, which cannot be"):
        lockfast.connect("jsonfile:///locks.json")


@pytest.mark.slow
def test_a_new_backend_is_one_row(tmp_path: Path) -> None:
    """It is held to the whole contract, but for what it says that it cannot do; also in other processes, by its URL."""
    file = tmp_path / "test_own.py"
    file.write_text(ONE_MORE_ROW)
    words = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    words += ["--rootdir", str(ROOT), "-k", "OneAdmissionRule or OptimisticCells or Semaphores or process", str(file)]
    environment = {**os.environ, "PYTHONPATH": str(_installed(tmp_path))}
    answer = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    found = set(re.findall(r"::Test(\w+)_own::(test_\w+)\[(threads|asyncio)", answer.stdout))
    assert {chapter for chapter, _, _ in found} >= {"OneAdmissionRule", "ProcessManners"}
    assert {(name, world) for chapter, name, world in found if chapter == "OneAdmissionRule"} == {
        (name, world)
        for name, story in _stories(OneAdmissionRule).items()
        if not needed_by(story) & {"shared", "limits"}
        for world in ("threads", "asyncio")
    }
    assert not {"Semaphores", "OptimisticCells"} & {chapter for chapter, _, _ in found}


@pytest.mark.slow
def test_the_quick_loop_imports_no_framework_of_users() -> None:
    """They take longer to import than the quick tests to run."""
    asked = re.search(r"^QUICK *:= *(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert asked is not None
    script = f"""
import sys, pytest
assert pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *{asked[1].split()!r}]) == 0
print("IMPORTED", *sorted({{"django", "sqlalchemy", "asyncpg"}} & set(sys.modules)))
"""
    environment = {**os.environ, "LOCKFAST_TESTS": "quick"}
    command = [sys.executable, "-c", script]
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert answer.stdout.splitlines()[-1].split() == ["IMPORTED"], answer.stdout + answer.stderr


def _ids(stage: type[Stage]) -> list[str]:
    """How the tests of that world are called; a seed stands in the name, so that it can be run again."""
    return [f"{stage.world}-{seed}" for seed in seeds("all")] if stage.seeded else [stage.world]
