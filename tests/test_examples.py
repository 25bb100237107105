"""Every example runs, says what it shows, and ends by itself; and every primitive has one.

Decides: what an example must print at its end, and which primitive is shown where.
Leaves to the examples: checking themselves. Each exits with an error if what it shows is not so.
"""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import lockfast
import lockfast.aio
from tests.servers.waiting import LIMIT_S

FOLDER = Path(__file__).parent.parent / "examples"
FILES = {file.name: file for file in sorted(FOLDER.glob("*.py"))}

LAST_LINES = {
    "api_limiter.py": "no call came before its time",
    "bounded_pool.py": "never more than there are seats, and none was left empty",
    "by_name.py": "one host at a time had the checkout, and any request could release it",
    "cron_singleton.py": "the report was made once, the one without min_hold twice",
    "json_log.py": "each record had the fields of its event",
    "leader.py": "the second leader took over from the first, in a later term",
    "payment_with_fence.py": "paid once; the late writes were refused by the fence",
    "read_write.py": "every reader saw the whole list",
    "several_names.py": "20 transfers both ways, and no money was lost",
    "structlog_log.py": "one stream for both, with the fields of each event",
    "worker_queue.py": "12 jobs, each done once, the dead worker's too",
}

SHOWN_IN = {
    "lock": "payment_with_fence.py",
    "semaphore": "bounded_pool.py",
    "rwlock": "read_write.py",
    "all": "several_names.py",
    "election": "leader.py",
    "limiter": "api_limiter.py",
    "cell": "payment_with_fence.py",
    "locked": "worker_queue.py",
    "singleton": "cron_singleton.py",
    "DistributedLock": "by_name.py",
}
SHOWN_ON_A_PAGE = {"in_transaction": "backends/postgres_advisory.md"}  # needs a server; tests/test_readme.py runs it
NOT_PRIMITIVES = {"holder", "events", "stats", "inspect", "list", "break_lock", "doctor", "close"}


def run(file: Path, folder: Path, *, seconds: float = LIMIT_S) -> tuple[int, str]:
    """Its exit code and all it prints, warnings being errors.

    Waits until the output ends, and that is when the last process has ended that was started: each has it from its
    parent. Raises TimeoutExpired, and leaves nothing running, if that takes longer than `seconds`.
    """
    settings = {name: value for name, value in os.environ.items() if not name.startswith("LOCKFAST_")}
    process = subprocess.Popen(
        [sys.executable, "-W", "error", file],
        cwd=folder,
        env={**settings, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # so that all of them can be ended together
    )
    try:
        printed, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return process.returncode, printed


def called_in(file: Path) -> set[str]:
    """The names of all methods that are called."""
    calls = (node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call))
    return {call.attr for call in calls if isinstance(call, ast.Attribute)}


def private_names(text: str) -> list[str]:
    """What of lockfast is named in the text and is not public: it may change with any release."""
    return [
        found[0]
        for found in re.finditer(
            r"\blockfast(?:\.\w+)*(?:\.|\s+import\s+\(?\s*)_(?!_)\w+|\blockfast\.backends\.\w+", text
        )
    ]


# The promises


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_an_example_shows_what_it_says_and_leaves_no_process_and_no_file(name: str, tmp_path: Path) -> None:
    code, printed = run(FILES[name], tmp_path)
    assert code == 0, printed
    assert printed.splitlines()[-1] == LAST_LINES[name], printed
    assert list(tmp_path.iterdir()) == []


def test_every_primitive_has_an_example() -> None:
    for face in (lockfast.Locks, lockfast.aio.AsyncLocks):
        public = {name for name in vars(face) if not name.startswith("_")}
        assert public - NOT_PRIMITIVES == (set(SHOWN_IN) | set(SHOWN_ON_A_PAGE)) - {"DistributedLock"}
    for primitive, name in SHOWN_IN.items():
        assert primitive in called_in(FILES[name]), f"{name} does not show {primitive}()"
    for primitive, page in SHOWN_ON_A_PAGE.items():
        assert f"locks.{primitive}(" in (FOLDER.parent / "docs" / page).read_text(), primitive


def test_the_readme_leads_to_every_example() -> None:
    readme = (FOLDER.parent / "README.md").read_text()
    assert [name for name in FILES if f"(examples/{name})" not in readme] == []


def test_both_worlds_are_shown() -> None:
    texts = [file.read_text() for file in FILES.values()]
    assert any("lockfast.connect(" in text for text in texts)
    assert any("lockfast.aio.connect(" in text for text in texts)


def test_an_example_says_first_what_it_is_about() -> None:
    for name, file in FILES.items():
        assert ast.get_docstring(ast.parse(file.read_text())), name


SHOWN_TO_USERS = [
    FOLDER.parent / "README.md",
    *sorted((FOLDER.parent / "docs").glob("*.md")),
    *sorted((FOLDER.parent / "docs" / "backends").glob("*.md")),
    *sorted(FOLDER.rglob("*.py")),
    *sorted(FOLDER.rglob("*.toml")),
]


@pytest.mark.parametrize("file", SHOWN_TO_USERS, ids=lambda file: file.name)
def test_nothing_private_is_shown_to_users(file: Path) -> None:
    assert private_names(file.read_text()) == []


# Each check is able to fail


@pytest.mark.parametrize(
    "line",
    [
        "from lockfast._connect import open_backend",
        "from lockfast import _connect",
        "from lockfast.backends.base import Backend",
        "import lockfast.backends.memory.store",
        "lockfast.testing._clock",
    ],
)
def test_a_private_name_is_noticed(line: str) -> None:
    assert len(private_names(line)) == 1
    assert (
        private_names(
            'lockfast.__version__; entry_points(group="lockfast.backends"); from lockfast.backend import Grant'
        )
        == []
    )


def test_a_wrong_result_is_noticed(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("print('so far so good')\nassert 1 == 2, 'it is not so'\n")
    code, printed = run(wrong, tmp_path)
    assert code == 1
    assert "so far so good" in printed
    assert "it is not so" in printed


@pytest.mark.slow
def test_a_process_that_is_left_behind_is_noticed(tmp_path: Path) -> None:
    careless = tmp_path / "careless.py"
    careless.write_text("import subprocess\nsubprocess.Popen(['sleep', '600'])\nimport os\nos._exit(0)\n")
    with pytest.raises(subprocess.TimeoutExpired):
        run(careless, tmp_path, seconds=3)
