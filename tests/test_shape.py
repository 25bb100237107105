"""The house keeps its shape: who may import whom, and the habits that keep the two worlds honest.

Decides: which layer may know of which, in one table, and what no file may contain. Each rule is a function from
parsed modules to a list of offences, and each is tried on a planted offence below, because a check that cannot
fail is not a check.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import itertools
import re
import sys
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import lockfast
import lockfast.aio
import lockfast.backend
import lockfast.errors
import lockfast.sync
import lockfast.testing
from lockfast._facades import lock as facade_of_locks
from lockfast._facades import manager as facade_of_managers
from lockfast._facades import primitives as facades
from tests.parsing import nodes_of

SOURCE = Path(lockfast.__file__).parent
LONGEST_FILE = 500

_WORDS = {
    "errors",
    "_info",
    "_model",
    "_bounded",
    "_text",
    "_time",
    "_ids",
    "_records",
    "_values",
    "_reentry",
    "_secrets",
    "_debug",
    "_refusals",
}
_BELOW_ENGINE = _WORDS | {"_worlds", "backends.base", "backends.optional", "observe"}
_BELOW_FACES = _BELOW_ENGINE | {"backends.opening", "engine", "primitives", "_clients", "_connect"}
_FACES = {"sync", "aio", "_facades", ""}

# Where holds are recorded: no backend imports another, except those two that are made of parts of one.
_BELOW_IO = _WORDS | {"_worlds", "backends.wakeups", "backends.connecting"}
_BELOW_BACKENDS = _BELOW_IO | {"backends.base", "backends.optional", "backends.opening"}
PACKAGES: dict[str, set[str]] = {
    "backends.memory": _BELOW_BACKENDS,
    "backends.sqlite.io": _BELOW_IO,
    "backends.sqlite": _BELOW_BACKENDS | {"backends.sqlite.io"},
    "backends.redis.io": _BELOW_IO,
    "backends.redis": _BELOW_BACKENDS | {"backends.redis.io"},
    "backends.redlock.io": _BELOW_IO | {"backends.redis.io"},
    "backends.redlock": _BELOW_BACKENDS | {"backends.redlock.io", "backends.redis", "backends.redis.io"},
    "backends.postgres": set(),
    "backends.postgres.io": _BELOW_IO,
    "backends.postgres_table.io": _BELOW_IO | {"backends.postgres.io"},
    "backends.postgres_table": _BELOW_BACKENDS | {"backends.postgres_table.io", "backends.postgres.io"},
    "backends.postgres_advisory.io": _BELOW_IO | {"backends.postgres.io"},
    "backends.postgres_advisory": _BELOW_BACKENDS | {"backends.postgres_advisory.io", "backends.postgres.io"},
}

# Each layer, and the layers that it may import besides itself. A file belongs to the longest layer that fits it; ""
# is the package's own `__init__`.
LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "_info": set(),
    "_model": {"_info"},
    "_bounded": set(),
    "_text": set(),
    "_time": {"_text"},
    "_ids": set(),
    "_secrets": {"_text"},
    "_records": {"errors", "_model", "_text"},
    "_values": {"_records"},
    "_debug": set(),
    "_refusals": {"errors"},
    "_reentry": {"errors"},
    "_worlds": _WORDS,
    "backends.base": _WORDS,
    "backends.optional": _WORDS | {"backends.base"},
    "observe": _WORDS,
    "observe.prometheus": _WORDS | {"observe"},
    "observe.otel": _WORDS | {"observe"},
    "engine": _BELOW_ENGINE,  # knows no technology: of the backends only the verbs
    "primitives": _BELOW_ENGINE | {"engine"},
    "backends": set(),
    "backends.opening": _BELOW_IO | {"backends.base"},
    "backends.wakeups": _WORDS | {"_worlds"},
    "backends.connecting": _WORDS | {"_worlds"},
    **PACKAGES,
    "backend": _BELOW_BACKENDS - {"backends.wakeups", "backends.connecting"},  # for backends from outside
    "_suggest": set(),
    "_connect": _BELOW_ENGINE | {"_suggest", "backends.opening"} | set(PACKAGES),
    "_clients": {"backends.opening"},
    "_facades": _BELOW_FACES | {"observe.prometheus", "observe.otel"},  # imported when they are asked for
    "sync": _BELOW_FACES | {"_facades"},
    "aio": _BELOW_FACES | {"_facades"},
    "fencing": _WORDS | {"primitives"},  # for users' own stores: knows no engine and no client
    "": _WORDS | {"sync", "aio", "_facades", "primitives", "engine", "observe", "fencing"},
    "testing": _BELOW_FACES | _FACES | {"backends.memory"},
    "cli": _BELOW_FACES | _FACES | {"backends.sqlite"},  # which file a URL names
    "__main__": {"cli"},
}

# Libraries that only some layers may import: clients of a technology, and what an extra brings.
LIBRARIES: dict[str, set[str]] = {
    "backends.sqlite.io": {"sqlite3"},
    "backends.redis.io": {"redis", "hiredis"},
    "backends.redlock.io": {"redis", "hiredis"},
    "backends.postgres.io": {"psycopg"},
    "backends.postgres_table.io": {"psycopg"},
    "backends.postgres_advisory.io": {"psycopg", "sqlalchemy"},
    "observe.prometheus": {"prometheus_client"},
    "observe.otel": {"opentelemetry"},
    "cli": {"rich"},
    "testing": {"pytest", "hypothesis"},
}


@dataclass(frozen=True)
class Module:
    """One parsed file."""

    name: str  # dotted, without the package's own name; "" is the package itself
    text: str

    @cached_property
    def _parsed(self) -> tuple[ast.Module, list[ast.AST]]:
        return nodes_of(self.text)

    @property
    def tree(self) -> ast.Module:
        return self._parsed[0]

    @property
    def nodes(self) -> list[ast.AST]:
        return self._parsed[1]

    @property
    def layer(self) -> str:
        return layer_of(self.name)


@cache
def layer_of(name: str) -> str:
    fitting = [layer for layer in LAYERS if name == layer or (layer and name.startswith(layer + "."))]
    return max(fitting, key=len) if fitting else f"{name} (in no layer)"


def read_all() -> dict[str, Module]:
    modules = {}
    for file in sorted(SOURCE.rglob("*.py")):
        parts = file.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = Module(name, file.read_text())
    return modules


MODULES = read_all()


@pytest.fixture(scope="module", autouse=True)
def _forget_trees() -> Iterator[None]:
    """They are not kept: every collection of garbage in later tests would look through them."""
    yield
    for module in MODULES.values():
        vars(module).pop("_parsed", None)


# Imports


def imported(module: Module, *, at_run_time: bool = False) -> Iterator[str]:
    """Full names of what is imported; `at_run_time` leaves out what happens later or for type checkers only."""
    for node in _outermost(module.tree) if at_run_time else module.nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.name}: imports are written in full"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole.removeprefix("lockfast.") in MODULES else str(node.module)


def _outermost(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements that run when the module is imported."""
    for node in tree.body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from node.orelse
        elif isinstance(node, ast.If | ast.Try):
            yield from (inner for inner in ast.walk(node) if isinstance(inner, ast.stmt))
        else:
            yield node


def upward_imports(modules: dict[str, Module]) -> list[str]:
    offences = []
    for module in modules.values():
        allowed = LAYERS.get(module.layer, set()) | {module.layer}
        for name in imported(module):
            if name.split(".")[0] == "lockfast":
                layer = layer_of(name.removeprefix("lockfast").removeprefix("."))
                if layer not in allowed:
                    offences.append(f"{module.name or 'lockfast'} imports {name}")
    return offences


def foreign_imports(modules: dict[str, Module]) -> list[str]:
    offences = []
    everywhere = set(sys.stdlib_module_names) - {"sqlite3"} | {"lockfast"}
    for module in modules.values():
        allowed = everywhere | LIBRARIES.get(module.layer, set())
        for name in imported(module):
            if name.split(".")[0] not in allowed:
                offences.append(f"{module.name or 'lockfast'} imports {name}")
    return offences


def cycles(modules: dict[str, Module]) -> list[str]:
    """Each chain of imports that comes back to where it began."""
    edges = {
        name: {
            other.removeprefix("lockfast").removeprefix(".")
            for other in imported(module, at_run_time=True)
            if other.split(".")[0] == "lockfast"
        }
        - {name}
        for name, module in modules.items()
    }
    found: list[str] = []
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            found.append(" -> ".join([*path[path.index(name) :], name]))
        elif name not in done:
            for other in sorted(edges.get(name, set())):
                visit(other, [*path, name])
            done.add(name)

    for name in modules:
        visit(name, [])
    return found


# What no file may contain

_SUSPENDS = (ast.Await, ast.AsyncFor, ast.AsyncWith)


def awaits_in_blocking_drivers(modules: dict[str, Module]) -> list[str]:
    return [
        f"{module.name}:{node.lineno} suspends in {kind.name}"
        for module in modules.values()
        for kind in module.nodes
        if isinstance(kind, ast.ClassDef) and kind.name.lstrip("_").startswith("Blocking")
        for node in ast.walk(kind)
        if isinstance(node, _SUSPENDS)
    ]


def verbs_that_take_their_time(modules: dict[str, Module]) -> list[str]:
    """A verb that is given `within`, the seconds to answer in, and goes by other limits. Memory answers at once."""
    return [
        f"{module.name}:{node.lineno} {node.name} does not use its `within`"
        for module in modules.values()
        if module.layer in PACKAGES and module.layer != "backends.memory"
        for node in module.nodes
        if isinstance(node, ast.AsyncFunctionDef) and any(one.arg == "within" for one in node.args.kwonlyargs)
        if not isinstance(node.body[-1], ast.Raise | ast.Expr)
        and "within" not in {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    ]


def awaits_under_a_mutex(modules: dict[str, Module]) -> list[str]:
    return [
        f"{module.name}:{node.lineno} suspends while a mutex is held"
        for module in modules.values()
        for block in module.nodes
        if isinstance(block, ast.With) and any("mutex" in ast.unparse(item.context_expr) for item in block.items)
        for node in _inside(block)
        if isinstance(node, _SUSPENDS)
    ]


def _inside(block: ast.With) -> Iterator[ast.AST]:
    """Everything that runs while the block is entered: not what is only defined in it."""
    open_nodes: list[ast.AST] = list(block.body)
    while open_nodes:
        node = open_nodes.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            open_nodes += ast.iter_child_nodes(node)


def calls_outside_cli(*forbidden: str) -> Callable[[dict[str, Module]], list[str]]:
    def check(modules: dict[str, Module]) -> list[str]:
        return [
            f"{module.name}:{node.lineno} calls {called}"
            for module in modules.values()
            if module.layer != "cli"
            for node in module.nodes
            if isinstance(node, ast.Call)
            and (called := ast.unparse(node.func))
            and any(called == name or called.endswith("." + name) for name in forbidden)
        ]

    return check


handlers_outside_cli = calls_outside_cli("signal.signal", "add_signal_handler", "set_wakeup_fd")
prints_outside_cli = calls_outside_cli("print")


def values_shown_in_full(modules: dict[str, Module]) -> list[str]:
    """What a caller has passed may be long, or have a repr that fails: `_text.shown` is for that."""
    return [
        f"{module.name}:{part.lineno} shows {ast.unparse(part.value)} by its repr"
        for module in modules.values()
        if module.layer != "testing"
        for node in module.nodes
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
        if ast.unparse(node.exc.func) in ("ValueError", "TypeError")
        for part in ast.walk(node.exc)
        if isinstance(part, ast.FormattedValue) and part.conversion == ord("r")
        if ast.unparse(part.value) != "self"
    ]


# Finalizers and signal handlers: see lockfast._reentry

_ENDINGS = {"release", "release_all", "resign", "close", "__exit__"}
_HARMLESS = {"hasattr", "self._logic.warn_if_open", "self._logic.locks.warn_if_open"}
_ATOMIC = {"self._jobs.put", "self._watch.close"}  # take no mutex


def threads_that_are_not_marked(modules: dict[str, Module]) -> list[str]:
    """Where a thread of ours may hold a mutex, a finalizer that runs in it must be able to know.

    And an interrupt that falls into its start must come out as what it is: one place sees to both.
    """
    return [
        f"{module.name}:{node.lineno} starts a thread by itself"
        for module in modules.values()
        if module.layer not in ("_reentry", "testing", "cli")
        for node in module.nodes
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("threading.Thread", "Thread")
    ]


def endings_that_cannot_be_put_off(modules: dict[str, Module]) -> list[str]:
    """A finalizer calls what ends something: in the middle of an operation that must neither wait nor fail."""
    return [
        f"{module.name}:{call.lineno} drives an ending that cannot be put off"
        for module in modules.values()
        if module.name == "sync" or module.layer == "_facades"
        for node in module.nodes
        for call in _driven(node)
        if len(call.args) != 3
    ]


def _driven(node: ast.AST) -> Iterator[ast.Call]:
    """What an ending drives, or a `finally` of a generator."""
    last: list[ast.stmt] = []
    if isinstance(node, ast.FunctionDef) and node.name in _ENDINGS:
        last = node.body
    elif isinstance(node, ast.Try):
        last = node.finalbody
    for inner in itertools.chain.from_iterable(map(ast.walk, last)):
        if isinstance(inner, ast.Call) and ast.unparse(inner.func) == "drive":
            yield inner


def finalizers_that_do_more_than_warn(modules: dict[str, Module]) -> list[str]:
    offences = []
    for module in modules.values():
        for node in module.nodes:
            if isinstance(node, ast.FunctionDef) and node.name == "__del__":
                calls = {ast.unparse(one.func) for one in ast.walk(node) if isinstance(one, ast.Call)}
                offences += [f"{module.name}:{node.lineno} calls {call}" for call in sorted(calls - _HARMLESS)]
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "weakref.finalize":
                called = ast.unparse(node.args[1])
                offences += [f"{module.name}:{node.lineno} calls {called}"] if called not in _ATOMIC else []
    return offences


_LOGS = re.compile(r"\blog(ger)?\.|\breport_(claim|lease)|\.emit$|warn")  # a listener of events logs too


def logs_under_a_mutex(modules: dict[str, Module]) -> list[str]:
    """A thread that logs may be waiting for a mutex of ours in a finalizer, and has the log's own."""
    return [
        f"{module.name}:{node.lineno} logs while a mutex is held"
        for module in modules.values()
        for block in module.nodes
        if isinstance(block, ast.With) and any("mutex" in ast.unparse(item.context_expr) for item in block.items)
        for node in _inside(block)
        if isinstance(node, ast.Call) and _LOGS.search(ast.unparse(node.func))
    ]


def long_files(modules: dict[str, Module]) -> list[str]:
    lengths = {name: module.text.count("\n") for name, module in modules.items()}
    return [f"{name} has {lines} lines" for name, lines in lengths.items() if lines > LONGEST_FILE]


def files_that_do_not_say_what_they_are(modules: dict[str, Module]) -> list[str]:
    return [name for name, module in modules.items() if module.text and not ast.get_docstring(module.tree)]


# The two faces


def public(holder: Any) -> dict[str, Any]:
    """What `holder`, a module or a class, offers by itself, by name."""
    if isinstance(holder, type):
        own = {name: value for kind in reversed(holder.__mro__[:-1]) for name, value in vars(kind).items()}
        context = ("__enter__", "__exit__", "__aenter__", "__aexit__")
        return {name: value for name, value in own.items() if name in context or not name.startswith("_")}
    names = getattr(holder, "__all__", None) or [
        name
        for name, value in vars(holder).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == getattr(holder, "__name__", None)
    ]
    return {name: getattr(holder, name) for name in names}


def _plain(name: str) -> str:
    if name.startswith(("__aenter", "__aexit")):
        return name.replace("__a", "__")
    return name.replace("get_async_", "get_").removeprefix("Async")


def differences(sync: Any, aio: Any, where: str = "") -> list[str]:
    """What one face offers and the other does not, or offers otherwise, apart from `async` and the names' `Async`."""
    ours, theirs = public(sync), {_plain(name): value for name, value in public(aio).items()}
    found = [f"only one face has {where}{name}" for name in sorted(ours.keys() ^ theirs.keys())]
    for name in sorted(ours.keys() & theirs.keys()):
        a, b = ours[name], theirs[name]
        if isinstance(a, type):
            found += differences(a, b, f"{where}{name}.")
        elif isinstance(a, property) or isinstance(b, property):
            if type(a) is not type(b):
                found.append(f"{where}{name} is a property on one face only")
        elif callable(a):
            found += _differing_call(a, b, where + name)
    return found


def _differing_call(a: Any, b: Any, where: str) -> Iterator[str]:
    # A plain function that gives a coroutine is awaited like any other.
    twin, gives = re.subn(
        r"Coroutine(?:Type)?\[Any, Any, (.+)\]", r"\1", str(inspect.signature(b)).replace("Async", "")
    )
    if str(inspect.signature(a)) != twin:
        yield f"{where}: {inspect.signature(a)} is not {inspect.signature(b)}"
    does_now = inspect.getsource(a).replace("lambda: drive(", "")
    waits = "drive(" in does_now or where.endswith(("__enter__", "__exit__"))
    if waits and not gives and not inspect.iscoroutinefunction(b) and not inspect.isasyncgenfunction(b):
        yield f"{where} drives an operation, but its twin is not awaited"
    if not waits and inspect.iscoroutinefunction(b) and a is not b:
        yield f"{where} drives nothing, but its twin is awaited"


def undocumented(module: Any) -> list[str]:
    """Public classes, functions, methods and properties of the package that no docstring explains."""
    found = []
    for name, value in public(module).items():
        if isinstance(value, type) and value.__module__.startswith("lockfast"):
            found += [f"{name}: no docstring"] if not value.__doc__ else []
            found += [f"{name}.{member}: no docstring" for member in _unexplained(value)]
        elif inspect.isfunction(value) and not value.__doc__:
            found.append(f"{name}: no docstring")
    return found


def _unexplained(kind: type) -> Iterator[str]:
    fields = getattr(kind, "_fields", ())
    for name, value in public(kind).items():
        explains_itself = name.startswith("__") or name in fields
        if not explains_itself and (inspect.isfunction(value) or isinstance(value, property)) and not value.__doc__:
            yield name


# The promises


def test_every_file_lives_in_a_room() -> None:
    assert [name for name, module in MODULES.items() if module.layer not in LAYERS] == []


def test_the_table_of_layers_points_downwards_only() -> None:
    order: list[str] = []
    while len(order) < len(LAYERS):
        free = [layer for layer, below in LAYERS.items() if layer not in order and below <= set(order)]
        assert free, f"these layers may import each other: {sorted(LAYERS.keys() - set(order))}"
        order += free


def test_imports_point_downwards_only() -> None:
    assert upward_imports(MODULES) == []


def test_only_io_imports_a_client_library() -> None:
    assert foreign_imports(MODULES) == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert cycles(MODULES) == []


def test_a_blocking_driver_never_suspends() -> None:
    assert awaits_in_blocking_drivers(MODULES) == []


def test_a_verb_answers_within_the_time_that_it_is_given() -> None:
    assert verbs_that_take_their_time(MODULES) == []


def test_nothing_suspends_while_a_mutex_is_held() -> None:
    assert awaits_under_a_mutex(MODULES) == []


def test_every_thread_of_ours_is_known_to_be_inside_an_operation() -> None:
    assert threads_that_are_not_marked(MODULES) == []


def test_whatever_ends_something_can_be_put_off() -> None:
    assert endings_that_cannot_be_put_off(MODULES) == []


def test_no_finalizer_of_ours_takes_a_mutex() -> None:
    assert finalizers_that_do_more_than_warn(MODULES) == []


def test_nothing_is_logged_while_a_mutex_is_held() -> None:
    assert logs_under_a_mutex(MODULES) == []


def test_only_the_command_line_handles_signals() -> None:
    assert handlers_outside_cli(MODULES) == []


def test_only_the_command_line_prints() -> None:
    assert prints_outside_cli(MODULES) == []


def test_an_error_about_a_call_shows_values_briefly_and_whatever_their_repr_does() -> None:
    assert values_shown_in_full(MODULES) == []


def test_no_file_is_longer_than_a_reader_can_hold() -> None:
    assert long_files(MODULES) == []


def test_every_file_says_what_it_decides() -> None:
    assert files_that_do_not_say_what_they_are(MODULES) == []


def test_both_faces_offer_the_same() -> None:
    locks = [name for name in lockfast.aio.__all__ if name in vars(lockfast.aio)]  # the others come when first used
    assert differences(_face(lockfast.sync), SimpleNamespace(**{**vars(lockfast.aio), "__all__": locks})) == []
    for module in (facade_of_locks, facades, facade_of_managers):
        sync, aio = _both_faces(module)
        assert differences(sync, aio) == []
        assert [name for name in sync.__all__ if name not in lockfast.__all__] == []
        assert [
            name for name in aio.__all__ if name not in lockfast.aio.__all__ and isinstance(getattr(aio, name), type)
        ] == []
    assert lockfast.aio.DistributedLock is lockfast.aio.AsyncDistributedLock


def _both_faces(module: ModuleType) -> tuple[SimpleNamespace, SimpleNamespace]:
    """Classes and functions of threads, and those of asyncio."""
    offered = {
        name: value for name, value in public(module).items() if isinstance(value, type) or inspect.isfunction(value)
    }
    aio = {name: value for name, value in offered.items() if "async" in name.lower()}
    sync = {name: value for name, value in offered.items() if name not in aio}
    return SimpleNamespace(__all__=list(sync), **sync), SimpleNamespace(__all__=list(aio), **aio)


@pytest.mark.parametrize(
    "module",
    [lockfast, lockfast.aio, lockfast.backend, lockfast.errors, lockfast.fencing],
    ids=lambda module: module.__name__,
)
def test_everything_public_is_explained(module: ModuleType) -> None:
    assert undocumented(module) == []


def unnamed_types(module: ModuleType) -> set[str]:
    """Types in the signatures and fields of what the module offers, which it does not offer itself."""
    offered = [value for value in public(module).values() if isinstance(value, type)]
    texts = [str(value) for kind in offered for value in inspect.get_annotations(kind).values()]
    for kind in offered:
        functions = [value.fget if isinstance(value, property) else value for value in public(kind).values()]
        texts += [str(inspect.signature(function)) for function in functions if inspect.isfunction(function)]
    named = {name for text in texts for name in re.findall(r"\b[A-Z]\w*[a-z]\w*", text)}
    return named - set(module.__all__) - _EVERYBODYS


_EVERYBODYS = {*vars(typing), *vars(builtins), "Context", "FrameType", "Seconds"}


def test_a_backend_from_outside_can_name_every_type_that_it_meets(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unnamed_types(lockfast.backend) == set()
    lacking = [name for name in lockfast.backend.__all__ if name not in ("Grant", "Signal", "HolderInfo")]
    monkeypatch.setattr(lockfast.backend, "__all__", lacking)
    assert unnamed_types(lockfast.backend) == {"Grant", "Signal", "HolderInfo"}


def _face(module: ModuleType) -> SimpleNamespace:
    """A module's public names, as listed or as defined there."""
    return SimpleNamespace(__all__=list(public(module)), **public(module))


# Each check is able to fail

PLANTED: list[tuple[Callable[[dict[str, Module]], list[str]], str, str]] = [
    (upward_imports, "engine.planted", "from lockfast.primitives.lock import LockLogic"),
    (upward_imports, "engine.planted", "from lockfast.backends.memory.store import MemoryStore"),
    (upward_imports, "engine.planted", "from lockfast.backends.wakeups import blocking"),
    (upward_imports, "backends.redis.planted", "from lockfast.engine.lease import Lease"),
    (upward_imports, "backends.redis.planted", "from lockfast.backends.sqlite import values"),
    (upward_imports, "backends.redis.planted", "from lockfast.backends.redlock.io import rounds"),
    (upward_imports, "backends.redis.io.planted", "from lockfast.backends.redis import requests"),
    (upward_imports, "backends.postgres_table.io.planted", "import lockfast.backends.postgres_advisory.io.session"),
    (upward_imports, "backends.sqlite.io.planted", "import lockfast.engine.core"),
    (upward_imports, "backends.sqlite.io.planted", "def later():\n    from lockfast import connect"),
    (upward_imports, "aio", "from lockfast.sync import Lease"),
    (foreign_imports, "backends.sqlite.planted", "import sqlite3"),
    (foreign_imports, "backends.redis.io.planted", "import psycopg"),
    (foreign_imports, "backends.wakeups.planted", "import redis"),
    (foreign_imports, "observe.planted", "import prometheus_client"),
    (foreign_imports, "observe.prometheus", "from opentelemetry import trace"),
    (upward_imports, "observe.planted", "def later():\n    from lockfast.observe import otel"),
    (foreign_imports, "engine.planted", "def later():\n    import redis"),
    (foreign_imports, "sync", "from rich.table import Table"),
    (cycles, "_model", "from lockfast import _time"),
    (awaits_in_blocking_drivers, "backends.redis.io.planted", "class BlockingX:\n    async def f(self): await g()"),
    (
        awaits_in_blocking_drivers,
        "backends.redis.io.planted",
        "class BlockingX:\n    async def f(self):\n        async for _ in g: 1",
    ),
    (
        verbs_that_take_their_time,
        "backends.redis.planted",
        "async def inspect(self, key, *, within):\n    return await ask(key, 10.0)",
    ),
    (awaits_under_a_mutex, "engine.planted", "async def f(self):\n    with self.mutex:\n        if 1: await g()"),
    (awaits_under_a_mutex, "engine.planted", "async def f(self):\n    with a, b._mutex:\n        async with g: pass"),
    (handlers_outside_cli, "engine.planted", "signal.signal(2, f)"),
    (handlers_outside_cli, "aio", "asyncio.get_running_loop().add_signal_handler(2, f)"),
    (prints_outside_cli, "engine.planted", "print('hello')"),
    (values_shown_in_full, "engine.planted", "raise ValueError(f'not {value!r}')"),
    (threads_that_are_not_marked, "backends.redis.io.planted", "threading.Thread(target=f, daemon=True).start()"),
    (endings_that_cannot_be_put_off, "_facades.planted", "def release(self):\n    return drive(self._release())"),
    (endings_that_cannot_be_put_off, "sync", "def f():\n    try:\n        yield 1\n    finally:\n        drive(g())"),
    (finalizers_that_do_more_than_warn, "aio", "def __del__(self):\n    self.close()"),
    (finalizers_that_do_more_than_warn, "backends.redis.io.planted", "weakref.finalize(self, self._shut)"),
    (logs_under_a_mutex, "backends.redis.io.planted", "with self._mutex:\n    logger.warning('held')"),
    (logs_under_a_mutex, "engine.planted", "with self._mutex:\n    report_lease_behind(engine, 'lost', lease)"),
    (logs_under_a_mutex, "engine.planted", "with self._mutex:\n    engine.events.emit(event)"),
    (long_files, "engine.planted", "\n" * (LONGEST_FILE + 1)),
    (files_that_do_not_say_what_they_are, "engine.planted", "x = 1"),
]


@pytest.mark.parametrize(("check", "name", "text"), PLANTED, ids=lambda value: getattr(value, "__name__", None))
def test_each_check_finds_a_planted_offence(
    check: Callable[[dict[str, Module]], list[str]], name: str, text: str
) -> None:
    planted = {name: Module(name, text)}
    if check is cycles:
        planted["_time"] = Module("_time", "from lockfast import _model")
    assert len(check(planted)) == 1


def test_what_is_allowed_is_not_an_offence() -> None:
    allowed = {
        "engine.planted": Module(
            "engine.planted",
            '"""Says what it decides."""\nif TYPE_CHECKING:\n    from lockfast.engine.core import Engine\n'
            "async def f(self):\n    with self.mutex:\n        async def later(): await g()\n    await h()",
        ),
        "cli.planted": Module("cli.planted", '"""Says."""\nimport rich\nprint(1)\nsignal.signal(2, f)'),
        "backends.redis.io.planted": Module("backends.redis.io.planted", '"""Says."""\nimport redis, hiredis'),
    }
    for check, _, _ in PLANTED:
        assert check(allowed) == []


def test_a_file_in_no_room_is_noticed() -> None:
    assert layer_of("leftovers.misc") not in LAYERS


class _Thing:
    """A sync face with one method that waits and one that does not."""

    def wait(self, seconds: float = 1.0) -> int:
        return drive(seconds)

    def answer(self) -> int:
        return 1


def drive(seconds: float) -> int:
    return round(seconds)


class _AwaitedWrongly:
    def wait(self, seconds: float = 1.0) -> int:
        return 1

    async def answer(self) -> int:
        return 1


class _OtherSignature:
    async def wait(self, seconds: float = 2.0) -> int:
        return 1

    def answer(self, loudly: bool) -> int:
        return 1


class _Lacking:
    async def wait(self, seconds: float = 1.0) -> int:
        return 1

    @property
    def more(self) -> int:
        return 1


@pytest.mark.parametrize("twin", [_AwaitedWrongly, _OtherSignature, _Lacking])
def test_the_comparison_of_faces_finds_a_planted_difference(twin: type) -> None:
    faces = SimpleNamespace(__all__=["Thing"], Thing=_Thing), SimpleNamespace(__all__=["AsyncThing"], AsyncThing=twin)
    assert len(differences(*faces)) == 2


def test_the_search_for_docstrings_finds_what_has_none() -> None:
    planted = type("Planted", (), {"__module__": "lockfast.planted", "f": _Lacking.wait, "p": _Lacking.more})
    assert undocumented(SimpleNamespace(__all__=["Planted"], Planted=planted)) == [
        "Planted: no docstring",
        "Planted.f: no docstring",
        "Planted.p: no docstring",
    ]
