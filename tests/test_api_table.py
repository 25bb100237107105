"""docs/api.md names everything that is public, and nothing else.

Decides: what the public surface is: the names that the public modules list, the members of their classes, the arguments
of their functions and methods, the options of the command line, and the environment. asyncio's classes have the members
of the others, which tests/test_shape.py compares.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import lockfast
import lockfast.aio
import lockfast.backend
import lockfast.errors
import lockfast.fencing
import lockfast.testing
from lockfast.cli import COMMANDS, main
from lockfast.cli.options import Parser
from lockfast.observe import otel, prometheus

PAGE = Path(__file__).parent.parent / "docs" / "api.md"
SOURCE = Path(lockfast.__file__).parent

INTERNAL = {
    "Events.after_fork",
    "Events.emit",
    "Events.has",
    "Events.noted",
    "Events.wanted",
}  # called by lockfast only
CONSTRUCTED = (lockfast.DistributedLock, lockfast.Backoff)  # classes whose constructor is for users

Row = tuple[str, str, str]


def tables(text: str) -> dict[str, list[Row]]:
    """The rows below each heading."""
    found: dict[str, list[Row]] = {}
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = part.partition("\n")
        lines = [line for line in body.splitlines() if line.startswith("|")][2:]  # after the head and its rule
        found[heading.strip("`")] = [_row(line) for line in lines]
    return found


def _row(line: str) -> Row:
    cells = [cell.strip() for cell in line.strip("|").split(" | ")]
    assert len(cells) == 3, f"not three cells: {line}"
    assert all(cells), f"an empty cell: {line}"
    return cells[0], cells[1], cells[2]


def names(rows: list[Row]) -> list[str]:
    """What the first cells name: each in backticks."""
    return [name for first, _, _ in rows for name in re.findall(r"`([^`]+)`", first)]


TABLES = tables(PAGE.read_text())


# What there is


def exported(module: ModuleType) -> dict[str, Any]:
    """What `from module import *` brings."""
    listed = module.__all__
    return {name: getattr(module, name) for name in listed if name == "__version__" or not name.startswith("_")}


def members(kind: type) -> dict[str, Any]:
    """What a class adds to its public bases, by name."""
    bases = [base for base in kind.__mro__ if base.__module__.startswith("lockfast")]
    bases = [base for base in bases if base is kind or base is not lockfast.LockError]
    found: dict[str, Any] = {}
    for base in reversed(bases):
        for name in (*vars(base), *vars(base).get("__annotations__", {})):
            if not name.startswith("_") and f"{kind.__name__}.{name}" not in INTERNAL:
                found[name] = inspect.getattr_static(kind, name, None)
    return found


def members_of(module: ModuleType) -> dict[str, Any]:
    """All members of a module's classes, by "Class.member"."""
    return {
        f"{name}.{member}": value
        for name, kind in exported(module).items()
        if isinstance(kind, type)
        for member, value in members(kind).items()
    }


def arguments() -> Iterator[inspect.Parameter]:
    """Of everything that a user calls."""
    called = [kind.__new__ if "__new__" in vars(kind) else kind.__init__ for kind in CONSTRUCTED]
    for module in (lockfast, lockfast.fencing, otel, prometheus):
        functions = {name: value for name, value in exported(module).items() if inspect.isfunction(value)}
        called += [*functions.values(), *filter(inspect.isfunction, members_of(module).values())]
    for function in called:
        for parameter in inspect.signature(function).parameters.values():
            if parameter.name not in ("self", "cls"):
                yield parameter


def options(monkeypatch: pytest.MonkeyPatch, command: str) -> list[str]:
    """The option strings of one command, as its parser knows them."""
    seen: list[str] = []

    def parse(self: Parser, words: object) -> None:
        seen.extend(option for action in self._actions for option in action.option_strings)
        raise SystemExit(0)

    monkeypatch.setattr(Parser, "parse_args", parse)
    main([command])
    return [option for option in seen if option not in ("-h", "--help")]


# The promises

MODULES = (lockfast, lockfast.aio, lockfast.fencing, lockfast.testing, lockfast.backend)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_page_names_what_a_module_exports(module: ModuleType) -> None:
    listed = [name for name in names(TABLES[module.__name__]) if "." not in name]
    assert sorted(listed) == sorted(exported(module))


def test_the_page_names_every_error_and_its_attributes() -> None:
    there = {**exported(lockfast.errors), **members_of(lockfast.errors), "LockError.name": 0}
    assert sorted(names(TABLES["lockfast.errors"])) == sorted(there)


def test_the_page_names_every_member_of_every_class() -> None:
    errors = members_of(lockfast.errors)
    there = [name for name in members_of(lockfast) if name not in errors and not name.startswith("LockError.")]
    assert sorted(names(TABLES["Members"])) == sorted(there)
    fencing = [name for name in names(TABLES["lockfast.fencing"]) if "." in name]
    assert sorted(fencing) == sorted(members_of(lockfast.fencing))


def test_the_page_names_what_turns_on_metrics_and_traces() -> None:
    there = [f"{module.__name__.split('.')[-1]}.{name}" for module in (prometheus, otel) for name in exported(module)]
    assert names(TABLES["lockfast.observe"]) == there


def test_the_page_names_every_argument_once() -> None:
    assert sorted(names(TABLES["Arguments"])) == sorted({parameter.name for parameter in arguments()})


def test_a_length_of_time_has_the_unit_seconds() -> None:
    units = {name: unit for first, _, unit in TABLES["Arguments"] for name in re.findall(r"`([^`]+)`", first)}
    lengths = {one.name for one in arguments() if "Seconds" in str(one.annotation)}
    assert lengths > {"ttl", "wait", "timeout", "patience"}
    assert {name: units[name] for name in lengths if not units[name].startswith("seconds")} == {}


def test_the_page_names_every_command_and_option(monkeypatch: pytest.MonkeyPatch) -> None:
    there = [f"lockfast {command}" for command in COMMANDS]
    for command in COMMANDS:
        there += [f"lockfast {command} {option}" for option in options(monkeypatch, command)]
    assert len(there) > 30
    assert sorted(names(TABLES["The command line"])) == sorted(there)


def test_the_page_names_every_variable_of_the_environment() -> None:
    there = {found for file in SOURCE.rglob("*.py") for found in re.findall(r"LOCKFAST_[A-Z_]+", file.read_text())}
    assert sorted(names(TABLES["The environment"])) == sorted(there)


# Each check is able to fail


def test_rows_are_read_by_heading() -> None:
    text = "# Page\n\n## `a`\ntext\n\n| name | means | unit |\n|---|---|---|\n| `x`, `y` | z | – |\n\n## B\n"
    assert tables(text) == {"a": [("`x`, `y`", "z", "–")], "B": []}
    assert names(tables(text)["a"]) == ["x", "y"]


@pytest.mark.parametrize("line", ["| `x` | z |", "| `x` |  | – |"])
def test_a_row_that_says_too_little_is_noticed(line: str) -> None:
    with pytest.raises(AssertionError):
        tables(f"## a\n| name | means | unit |\n|---|---|---|\n{line}\n")


def test_members_and_attributes_are_found_wherever_they_are_defined() -> None:
    assert {"name", "held", "extend"} <= members(lockfast.Lease).keys()  # of the engine, of the facade
    assert {"holders", "lock_name", "as_dict"} <= members(lockfast.LockInfo).keys()
    assert members(lockfast.StaleFence).keys() == {"fence", "last"}
