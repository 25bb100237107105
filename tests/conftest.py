"""What holds for every test: their order, which take long, and that signals mean what they usually mean."""

from __future__ import annotations

import gc
import itertools
import random
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import settings

from lockfast.testing.stage_threads import ThreadStage
from tests.scale import SCALE, SOAK
from tests.servers import run

pytest_plugins = ["tests.crashes", "tests.hard_limit", "tests.signals", "tests.threads"]

settings.register_profile("lockfast", deadline=None)  # a machine may stall in the middle of an example
settings.load_profile("lockfast")

COMPUTING = ("tests/contract", "tests/engine", "tests/primitives", "tests/simulation")

_folders = itertools.count()
_finished = itertools.count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--in-order-of", type=int, metavar="SEED", help="run the tests in an order that the seed decides")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """In a fresh clone the first worker compiles what all of them import: the others need not do the same meanwhile."""
    collects = hasattr(session.config, "workerinput") or not session.config.getoption("numprocesses", None)
    compiled = any((Path(__file__).parent / "contract" / "__pycache__").glob("*-pytest-*"))
    with run.first_alone("collection") if collects and not compiled else nullcontext():
        return (yield)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not SOAK:
        items[:] = [item for item in items if item.get_closest_marker("soak") is None]
    seed = config.getoption("--in-order-of")
    if seed is None:
        items[:] = _for_workers(items, int(getattr(config, "workerinput", {}).get("workercount", 1)))
    else:
        random.Random(seed).shuffle(items)
    for item in items:
        if "processes" in getattr(getattr(item, "function", None), "needs", ()):
            item.add_marker(pytest.mark.slow)


def _for_workers(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Half of the workers begin with tests that compute, the others with tests that wait for servers and processes.

    Each worker is given an equal part of the list first, and takes from others when it has done its own.
    """
    computing = [item for item in items if item.nodeid.startswith(COMPUTING)]
    computing.sort(key=lambda item: "tests/simulation" not in item.nodeid)  # the longest first: none is left at the end
    waiting = [item for item in items if not item.nodeid.startswith(COMPUTING)]
    arranged: list[pytest.Item] = []
    for worker in range(workers):
        parts = [of[worker * len(of) // workers : (worker + 1) * len(of) // workers] for of in (computing, waiting)]
        arranged += itertools.chain(*(parts if worker % 2 else reversed(parts)))
    return arranged


def pytest_configure(config: pytest.Config) -> None:
    """One folder for the servers of all workers, and the usual answers to signals.

    A shell that runs us in the background may have switched some signals off.
    """
    run.begin()
    if SOAK:
        ThreadStage.give_way_s = 0.004  # a story must not rest on the clock being quicker than threads that it wakes
    for name in ("SIGINT", "SIGHUP", "SIGQUIT", "SIGTERM"):
        number = getattr(signal, name)
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL)


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As pytest's own, with a short name: a socket's path has 107 characters at most."""
    folder = tmp_path_factory.getbasetemp() / f"t{next(_folders)}"
    folder.mkdir()
    return folder


def pytest_report_header() -> str:
    return f"scale: {SCALE}; new seeds of this run: LOCKFAST_TEST_SEED={run.first_new_seed()}"


def pytest_collection_finish() -> None:
    """Thousands of collected tests are no garbage: a collection in a test need not look through them each time."""
    gc.collect()
    gc.freeze()


def pytest_runtest_logfinish() -> None:
    """What pytest keeps of each test that is over is none either, and grows to ten times as much."""
    if next(_finished) % 50 == 0:
        gc.collect()
        gc.freeze()
