"""What a test may not do with time, as far as a machine can tell; CONTRIBUTING.md gives the whole rule.

Decides: what no file under tests/ may contain. Each rule is a function from parsed files to a list of offences, and
each is tried on a planted offence below.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

TESTS = Path(__file__).parent
SHORTEST_LIMIT = 30.0  # seconds that a test waits for another thread or process at least, before it fails

_CLOCKS = {"monotonic", "perf_counter", "boot_now", "time", "process_time"}
_WAITS = {"join", "result", "communicate", "wait", "wait_for", "timeout", "timeout_at", "run", "check_output", "get"}

# Files that may sleep, and why.
MAY_SLEEP = {
    "servers/waiting.py": "it is how all others wait",
}


@dataclass(frozen=True)
class File:
    """One parsed file of the tests."""

    name: str  # its path under tests/
    text: str

    @cached_property
    def functions(self) -> list[ast.AST]:
        """Each function with what stands inside it, and the module itself."""
        return [node for node in self.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(ast.parse(self.text)))

    def at(self, node: ast.AST) -> str:
        return f"{self.name}:{getattr(node, 'lineno', 0)}: {ast.unparse(node)}"


Files = dict[str, File]


def read_all() -> Files:
    found = (file.relative_to(TESTS).as_posix() for file in sorted(TESTS.rglob("*.py")))
    return {name: File(name, (TESTS / name).read_text()) for name in found}


FILES = read_all()


def _called(node: ast.AST) -> str:
    """The last word of what is called; empty if it is no call."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _is_clock(node: ast.AST, moments: set[str] = frozenset()) -> bool:  # type: ignore[assignment]
    """A reading of a real clock, or a name that holds one."""
    if isinstance(node, ast.Name):
        return node.id in moments
    return _called(node) in _CLOCKS and not getattr(node, "args", None)


def measured_times(files: Files) -> Iterator[str]:
    """Differences of two readings of a clock: a lower bound is written `now >= started + …`, an upper one not at all."""
    for file in files.values():
        moments = {
            target.id
            for node in file.nodes
            if isinstance(node, ast.Assign) and _is_clock(node.value)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in file.nodes:
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
                if _is_clock(node.left, moments) or _is_clock(node.right, moments):
                    yield file.at(node)


def upper_bounds(files: Files) -> Iterator[str]:
    """Asserts that it is not late yet."""
    for file in files.values():
        for node in file.nodes:
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                for left, how, right in zip(sides, node.ops, sides[1:], strict=False):
                    late = (
                        left
                        if isinstance(how, ast.Lt | ast.LtE)
                        else right
                        if isinstance(how, ast.Gt | ast.GtE)
                        else None
                    )
                    if late is not None and any(_is_clock(part) for part in ast.walk(late)):
                        yield file.at(node)


def sleeps(files: Files) -> Iterator[str]:
    for file in files.values():
        if file.name not in MAY_SLEEP:
            for node in file.nodes:
                if isinstance(node, ast.Call) and _called(node) == "sleep" and ast.unparse(node.args[0]) != "0":
                    yield file.at(node)


def waiting_loops(files: Files) -> Iterator[str]:
    """Loops that do nothing but look again."""
    for file in files.values():
        for node in file.nodes:
            if isinstance(node, ast.While) and all(isinstance(step, ast.Pass | ast.Continue) for step in node.body):
                yield file.at(node).splitlines()[0]


def short_limits(files: Files) -> Iterator[str]:
    """Waits for a thread, process or task that a slow machine would fail."""
    for file in files.values():
        for node in file.nodes:
            if isinstance(node, ast.Call) and _called(node) in _WAITS:
                given = [*node.args, *(word.value for word in node.keywords if word.arg == "timeout")]
                for one in given:
                    if (
                        isinstance(one, ast.Constant)
                        and isinstance(one.value, int | float)
                        and 0 < one.value < SHORTEST_LIMIT
                    ):
                        yield file.at(node)


if __name__ == "__main__":
    for check in (measured_times, upper_bounds, sleeps, waiting_loops, short_limits):
        print("==", check.__name__)
        for offence in check(FILES):
            print("  ", offence)
