"""A test that cannot be ended in any other way is ended by the hard limit, named, and shown with all its threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.hard_limit import HardLimit
from tests.scale import by_scale

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent

IMPORTS = """
import itertools, os, signal, sys, threading, time
import pytest
"""
STUCK = {
    "in a finalizer": """
class Hangs:
    def __del__(self):
        while True:
            try:
                time.sleep(3600)
            except BaseException:
                pass  # the soft limit's, for one

@pytest.mark.timeout(1)
def test_stuck():
    Hangs()
""",
    "with the GIL": """
@pytest.mark.timeout(1)
def test_stuck():
    any(itertools.repeat(False))  # in C, where no signal is looked at
""",
    "in a lock": """
@pytest.mark.timeout(1)
def test_stuck():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
""",
    "in its set-up": """
@pytest.fixture
def never():
    try:
        time.sleep(3600)
    except BaseException:
        time.sleep(3600)

@pytest.mark.timeout(1)
def test_stuck(never):
    pass
""",
}
OTHERS = """
@pytest.mark.parametrize("number", range(20))
def test_goes_on(number):
    pass
"""


def _run(folder: Path, tests: dict[str, str], *options: str, limit: float = 60) -> tuple[int, str]:
    """A small run of its own, with one file for each of the tests."""
    for number, text in enumerate(tests.values()):
        (folder / f"test_{number}.py").write_text(IMPORTS + text)
    alone = ["-p", "no:cacheprovider", "-p", "pytest_timeout", "-c", os.devnull, "--rootdir", str(folder)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ours = ["-p", "tests.crashes", "-p", "tests.hard_limit", "-o", f"hard_limit={limit}"]
    command = [sys.executable, "-m", "pytest", *ours, *alone, *options]
    environment |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)
    return ran.returncode, ran.stdout + ran.stderr


def test_a_run_on_workers_names_each_test_that_is_stuck_shows_its_threads_and_goes_on(tmp_path: Path) -> None:
    stuck = {how: STUCK[how] for how in by_scale(["with the GIL", "in its set-up"], soak=list(STUCK))}
    code, said = _run(tmp_path, stuck | {"others": OTHERS}, "-p", "xdist", "-n", "2", "--dist", "worksteal")
    for number in range(len(stuck)):
        assert f"crashed while running 'test_{number}.py::test_stuck'" in said, said
        assert f'File "{tmp_path}/test_{number}.py", line' in said
    assert f"{len(stuck)} failed, 20 passed" in said
    assert said.count("Timeout (0:00:01") == len(stuck)
    assert code == 1


CRASHES = """
def test_crashes():
    os.kill(os.getpid(), signal.{})
"""


@pytest.mark.parametrize("by", by_scale(["SIGSEGV"], soak=["SIGSEGV", "SIGABRT", "SIGKILL"]))
def test_a_run_on_workers_ends_with_how_one_crashed_and_where(tmp_path: Path, by: str) -> None:
    code, said = _run(tmp_path, {by: CRASHES.format(by), "others": OTHERS}, "-p", "xdist", "-n", "2")
    summary = said[said.rindex("a worker that crashed") :]
    assert f"was ended by {by}" in summary, said
    assert (f'File "{tmp_path}/test_0.py", line' in summary) is (by != "SIGKILL")
    assert "1 failed, 20 passed" in summary
    assert code == 1


@pytest.mark.parametrize("stuck", by_scale(["in a finalizer"], soak=list(STUCK)))
def test_a_run_in_one_process_ends_and_shows_where_it_was(tmp_path: Path, stuck: str) -> None:
    code, said = _run(tmp_path, {"": STUCK[stuck]})
    assert "Timeout (0:00:01" in said, said
    assert f'File "{tmp_path}/test_0.py", line' in said
    assert code == 1


def test_a_process_that_a_test_has_left_something_behind_in_ends_too(tmp_path: Path) -> None:
    left = """
def stay():
    while True:
        time.sleep(3600)

def test_leaves_a_thread():
    threading.Thread(target=stay).start()
"""
    code, said = _run(tmp_path, {"": left}, limit=2)
    assert "1 passed" in said, said
    assert "in stay" in said
    assert code == 1


@pytest.mark.parametrize(("own", "limit"), [((60,), 75), ((0,), None), ((), None)])
def test_a_test_with_a_soft_limit_of_its_own_has_a_hard_one_too(
    own: tuple[float, ...], limit: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds: list[float | None] = []
    monkeypatch.setattr(HardLimit, "set", lambda _, limit=None: seconds.append(limit))
    monkeypatch.setattr(HardLimit, "lift", lambda _: seconds.append(-1))
    item: Any = SimpleNamespace(get_closest_marker=lambda _: SimpleNamespace(args=own) if own else None)
    list(HardLimit(1, 2).pytest_runtest_protocol(item))
    assert seconds == [limit, -1]


FORKS = """
@pytest.mark.timeout(1)
def test_forks():
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    any(itertools.repeat(False))
"""


CHILD = """
import os, sys, time
from tests.hard_limit import HardLimit
HardLimit(1, 2).begin().set()
pid = os.fork()
if pid == 0:
    time.sleep(1.5)
    {end}
HardLimit(60, 2).begin().set()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.parametrize("end", ["os._exit(7)", "sys.exit(7)"])  # the second lets the interpreter end in good order
def test_a_child_of_a_fork_ends_as_it_likes_and_takes_as_long_as_it_needs(end: str) -> None:
    ran = subprocess.run([sys.executable, "-c", CHILD.format(end=end)], cwd=ROOT, timeout=100)
    assert ran.returncode == 7


def test_a_parent_is_under_the_same_limit_after_a_fork(tmp_path: Path) -> None:
    code, said = _run(tmp_path, {"": FORKS})
    assert "Timeout (0:00:0" in said, said
    assert "in test_forks" in said
    assert code == 1
