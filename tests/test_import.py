"""`import lockfast` is light: it needs the standard library only, and of that no more than it uses.

What asyncio, SQLite or a terminal need is imported when it is first used, because a program that only waits
for a lock should not pay for the others.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import lockfast

SOURCE = Path(lockfast.__file__).parent.parent

HEAVY = ("asyncio", "sqlite3", "rich", "logging.config", "multiprocessing", "subprocess", "uuid", "concurrent.futures")


def python(code: str, *flags: str) -> str:
    """What a fresh interpreter prints, which sees nothing but the standard library and our source."""
    code = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); {code}"
    done = subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded_by(statement: str) -> set[str]:
    """The modules that the statement brings, and a bare interpreter does not have."""
    printed = python(f"before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))", "-I", "-S")
    return set(printed.split())


@pytest.mark.slow
def test_importing_lockfast_leaves_out_what_only_some_need() -> None:
    assert loaded_by("import lockfast").isdisjoint(HEAVY)


@pytest.mark.slow
def test_each_heavy_module_would_be_noticed() -> None:
    brought = loaded_by("import asyncio, sqlite3, logging.config, multiprocessing, uuid")
    assert set(HEAVY) - brought <= {"rich"}


@pytest.mark.slow
def test_the_asyncio_face_comes_when_it_is_asked_for() -> None:
    assert "lockfast.aio" in loaded_by("import lockfast; lockfast.aio")
    assert "asyncio" in loaded_by("import lockfast; lockfast.aio.connect('memory://')")


@pytest.mark.slow
def test_a_memory_lock_needs_neither_asyncio_nor_sqlite() -> None:
    brought = loaded_by("import lockfast; lockfast.connect('memory://').lock('a').acquire(False).release()")
    assert brought.isdisjoint({"asyncio", "sqlite3"})


@pytest.mark.slow
def test_the_contract_without_pytest_names_the_extra() -> None:
    code = "\ntry:\n    import lockfast.testing.contract\nexcept ImportError as error:\n    print(error)"
    assert "the contract needs an extra: pip install 'lockfast[testing]'" in python(code, "-I", "-S")


@pytest.mark.slow
def test_both_worlds_run_on_the_standard_library_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'locks.db'}"
    cycle = f"lock = lockfast.connect({url!r}).lock('a'); lock.acquire(False); lock.release()"
    brought = loaded_by(f"import lockfast, lockfast.aio; {cycle}")
    assert "sqlite3" in brought
    assert {name.partition(".")[0] for name in brought} - sys.stdlib_module_names == {"lockfast"}


@pytest.mark.parametrize("module", ["lockfast", "lockfast.aio"])
def test_a_shell_completes_every_public_name_and_no_other(module: str) -> None:
    """Also those that are imported when they are first used."""
    printed = python(f"import {module} as module; print(sorted(dir(module)) == sorted(module.__all__))", "-I", "-S")
    assert printed.strip() == "True"
