"""Names: what may be imported, what a class may be called and how long it may be, old words, units of constants.

Decides: the old words and what each is called now. Each rule is a function from parsed modules to its offences by
name, and each is tried on planted offences below.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.parsing import collector_at_rest
from tests.test_shape import MODULES, Module, layer_of

LONGEST_CLASS = 400  # lines, with its bases in the same package
FACADES = {"_facades", "sync", "aio"}
ROOT = Path(__file__).parent.parent
AROUND = ("tests", "bench", "examples")  # their names follow the vocabulary too

# Words that were replaced, each with its successor. In a name of several words each word counts.
WORDS = {
    "seat": "waiter",
    "seats": "waiters",
    "postbox": "inbox",
    "mailbox": "inbox",
    "crowded": "contended",
    "doubtful": "in_doubt",
    "heir": "successor",
    "patrol": "poll_after, MAX_POLL_S",
    "wishes": "ConnectOptions",
    "shout": "broadcast",
    "owed": "PendingReply",
    "ghost": "uncertain hold",
    "ghosts": "uncertain holds",
    "haunts": "uncertain holds",
    "deaf": "cannot_listen, loses_wakeups",
    "told": "reported, said, passed",
    "tell": "report, show, run_story",
    "tells": "reports, shows, names",
    "hear": "on_reply, on_event, receive",
    "hears": "receives",
    "heard": "received",
    "unheard": "unanswered, without a reply",
    "heed": "read_ready",
    "crew": "competitors, threads, Fanout",
    "crowd": "contention",
    "crowds": "contention",
    "whoever": "the caller, waiter, client or process",
    "somebody": "the caller, waiter, client or process",
    "someone": "the caller, waiter, client or process",
}
# Whole names that were replaced. The words in them are good ones elsewhere.
NAMES = {
    "Line": "Connection, Channel",
    "WakeLine": "Subscription",
    "Speaker": "Session",
    "Wires": "Connections",
    "Place": "Endpoint",
    "Bell": "SelfPipe",
    "Sight": "Observation",
    "eyes": "observers",
    "Fan": "Fanout",
    "Turn": "Suspended",
    "Past": "ClaimHistory",
    "seal": "record_fence",
    "is_plain": "is_uncontended",
    "Job": "Request",
    "Ticket": "PendingRequest",
    "Lanes": "MAX_CONNECTIONS",
    "LANES": "MAX_CONNECTIONS",
    "met": "blocked",
    "MEETS": "RETRY_BLOCKED",
    "AGAIN": "RETRY_ALONE",
    "move_in": "attach",
    "get_up": "reset",
    "refuse_twins": "refuse_hash_collision",
    "flight": "in_flight",
    "take_last_words": "drain",
    "peek": "poll_once",
    "say": "format_duration, send, execute",
    "look": "inspect, refresh, poll",
    "looks": "polls, checks",
    "wires": "connections",
    "LEFT_OUT": "EXCLUDED",
    "left_out": "excluded, skipped, dropped",
    "QUICKLY": "a constant with its unit",
}

# Names of the users' world, in which the word is the right one.
ALLOWED = {
    "examples: SEATS": "seats of a licence",
    "tests: Job": "a class of a user, with methods that take a lock",
}

Offences = dict[str, list[str]]  # by what the tables of known ones call them
Rule = Callable[[dict[str, Module]], Offences]


# The rules


def private_imports(modules: dict[str, Module]) -> Offences:
    """A private name belongs to its module: what another needs is public there, without an underscore."""
    found: Offences = defaultdict(list)
    for module in modules.values():
        imported: set[str] = set()  # names of modules of ours
        for node in module.nodes:
            if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "lockfast":
                for alias in node.names:
                    if f"{node.module}.{alias.name}".removeprefix("lockfast.") in MODULES:
                        imported.add(alias.asname or alias.name)
                    elif _private(alias.name):
                        found[f"{package_of(module.name)}: {alias.name}"].append(f"{module.name}:{node.lineno}")
        for node in module.nodes:
            if isinstance(node, ast.Attribute) and _private(node.attr) and getattr(node.value, "id", "") in imported:
                found[f"{package_of(module.name)}: {node.attr}"].append(f"{module.name}:{node.lineno}")
    return found


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def class_names_twice(modules: dict[str, Module]) -> Offences:
    """One name, one class: a reader who searches for it finds it. The two facades repeat what they stand for."""
    found: Offences = defaultdict(list)
    for module in modules.values():
        if layer_of(module.name) not in FACADES:
            for kind in _classes(module):
                found[kind.name].append(f"{module.name}:{kind.lineno}")
    return {name: places for name, places in found.items() if len(places) > 1}


def long_classes(modules: dict[str, Module]) -> Offences:
    """A class counts with its bases in the same package: to cut it in two by inheritance does not make it shorter.

    A chapter of the contract is a list of stories: the length of its file is limited, and that is enough.
    """
    found: Offences = {}
    kinds = {(package_of(module.name), kind.name): kind for module in modules.values() for kind in _classes(module)}

    def lines(package: str, name: str, seen: set[str]) -> int:
        kind = kinds.get((package, name))
        if kind is None or name in seen:
            return 0
        seen.add(name)
        own = (kind.end_lineno or kind.lineno) - kind.lineno + 1
        return own + sum(lines(package, _last_word(base), seen) for base in kind.bases)

    for package, name in kinds:
        length = lines(package, name, set())
        if length > LONGEST_CLASS and "Promise" not in map(_last_word, kinds[package, name].bases):
            found[f"{package}: {name}"] = [f"{length} lines"]
    return found


def package_of(name: str) -> str:
    """A backend with its io is one package."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "backends" else parts[0]


def _classes(module: Module) -> Iterator[ast.ClassDef]:
    return (node for node in module.nodes if isinstance(node, ast.ClassDef))


def _last_word(base: ast.expr) -> str:
    while isinstance(base, ast.Subscript):
        base = base.value
    return base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")


@cache
def around() -> dict[str, Module]:
    """The Python files beside the package: tests, benchmarks, examples. Their names are dotted paths from the root."""
    files = sorted(file for folder in AROUND for file in (ROOT / folder).rglob("*.py"))
    with collector_at_rest():
        modules = [Module(".".join(file.relative_to(ROOT).with_suffix("").parts), file.read_text()) for file in files]
        return {module.name: module for module in modules if module.nodes}


def old_words(modules: dict[str, Module]) -> Offences:
    """In the name of a file or folder, or in a name that a file gives."""
    found: Offences = defaultdict(list)
    for module in modules.values():
        for name, line in [*((part, 0) for part in module.name.split(".")), *_identifiers(module)]:
            for old, new in _old(name):
                found[f"{package_of(module.name)}: {name}"].append(f"{module.name}:{line}, {old} is called {new}")
    return found


def _identifiers(module: Module) -> Iterator[tuple[str, int]]:
    """Names that the module gives: to classes, functions, arguments, variables and fields."""
    for node in module.nodes:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno


@cache
def _old(name: str) -> tuple[tuple[str, str], ...]:
    whole = name.strip("_")
    if whole in NAMES:
        return ((whole, NAMES[whole]),)
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", whole).lower().split("_")
    return tuple((word, WORDS[word]) for word in words if word in WORDS)


# In prose: comments, docstrings, messages and pages name the object instead.
PHRASES = re.compile(
    r"\b(whoever|somebody|someone|those who|told|to be had|is at it|lets? go|letting go|crowded|doubtful|crew"
    r"|mailbox)\b",
    re.IGNORECASE,
)
PROSE = (".py", ".sql", ".lua", ".md", ".sh", ".yml", ".toml")


def old_phrases(root: Path) -> list[str]:
    """Lines of any text below the folder that have one."""
    return [
        f"{file.relative_to(root)}:{number} {found[0]}"
        for file in sorted(root.rglob("*"))
        if file.suffix in PROSE and file.name != Path(__file__).name and not _is_generated(file.relative_to(root))
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if (found := PHRASES.search(line))
    ]


def _is_generated(file: Path) -> bool:
    return any((part.startswith(".") and part != ".github") or part in ("dist", "build") for part in file.parts)


UNITS = ("_S", "_MS", "_NS", "_RATIO")
# The name says of what it is a part, or how long it is; or there is no unit.
RATIOS = {"MAX_DRIFT", "MAX_EXPONENT", "MAX_RATE", "PROBE_SHARE", "RATE_MARGIN", "HOUR", "DAY"}


def constants_without_unit(modules: dict[str, Module]) -> Offences:
    """A constant that is a fraction or endless is a length of time, nearly always: its name says in which unit."""
    found: Offences = defaultdict(list)
    for module in modules.values():
        for node in module.tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and _has_float(node.value):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for name in (target.id for target in targets if isinstance(target, ast.Name)):
                    if name.isupper() and not name.endswith(UNITS) and name.strip("_") not in RATIOS:
                        found[f"{package_of(module.name)}: {name}"].append(f"{module.name}:{node.lineno}")
    return found


def _has_float(value: ast.expr) -> bool:
    """A number or a calculation with numbers, one of which has a point."""
    if isinstance(value, ast.BinOp):
        return _has_float(value.left) or _has_float(value.right)
    return isinstance(value, ast.Constant) and isinstance(value.value, float)


# Words with which no promise begins: a reader who sees the name alone would have to ask what is meant.
NO_SUBJECT = {"it", "they", "them", "those", "who", "whoever", "nor", "so", "and", "but", "then", "also"}


def promises_without_subject(modules: dict[str, Module]) -> Offences:
    found: Offences = defaultdict(list)
    for module in modules.values():
        for node in module.nodes:
            name = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else ""
            if name.startswith("test_") and name.split("_")[1] in NO_SUBJECT:
                found[f"{package_of(module.name)}: {name}"].append(f"{module.name}:{getattr(node, 'lineno', 0)}")
    return found


# The promises


def test_no_private_name_is_imported_from_another_module() -> None:
    assert private_imports(MODULES) == {}


def test_no_two_classes_have_one_name() -> None:
    assert class_names_twice(MODULES) == {}


def test_no_class_is_longer_than_a_reader_can_hold_with_its_bases() -> None:
    assert long_classes(MODULES) == {}


def test_no_name_has_a_word_of_the_old_vocabulary() -> None:
    assert old_words(MODULES) == {}


def test_a_constant_carries_its_unit() -> None:
    assert constants_without_unit(MODULES) == {}


@pytest.mark.slow
def test_a_constant_around_the_package_carries_its_unit() -> None:
    assert constants_without_unit(around()) == {}


@pytest.mark.slow
def test_no_name_around_the_package_has_a_word_of_the_old_vocabulary() -> None:
    modules = around()
    assert {name.split(".")[0] for name in modules} == set(AROUND)
    found = old_words(modules)
    assert {name: places for name, places in found.items() if name not in ALLOWED} == {}
    assert set(ALLOWED) <= set(found), "an exception that no name needs any more"


@pytest.mark.slow
def test_no_text_has_a_phrase_of_the_old_vocabulary() -> None:
    assert old_phrases(ROOT) == []


def test_a_phrase_of_the_old_vocabulary_is_found_in_any_text(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text("-- The row is reserved.\n-- Whoever asks is Told.\n")
    (tmp_path / "b.md").write_text("A lock that is to be had.")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "c.py").write_text("# somebody else's")
    assert old_phrases(tmp_path) == ["a.sql:2 Whoever", "b.md:1 to be had"]


@pytest.mark.slow
def test_the_name_of_a_test_names_what_it_is_about() -> None:
    assert promises_without_subject(around()) == {}
    assert promises_without_subject(MODULES) == {}


# Each rule is able to fail

_LONG = "    x = 1\n" * (LONGEST_CLASS // 2)

PLANTED: list[tuple[Rule, dict[str, str], str]] = [
    (private_imports, {"engine.planted": "from lockfast._ids import _count"}, "engine: _count"),
    (private_imports, {"engine.planted": "from lockfast import _ids\n_ids._count = 1"}, "engine: _count"),
    (private_imports, {"cli.planted": "def later():\n    from lockfast.cli.run import _x as x"}, "cli: _x"),
    (class_names_twice, {"cli.planted": "class Same: pass", "testing.planted": "class Same: pass"}, "Same"),
    (class_names_twice, {"engine.planted": "class Same: pass\nclass Outer:\n    class Same: pass"}, "Same"),
    (long_classes, {"engine.planted": f"class Long:\n{_LONG}{_LONG}"}, "engine: Long"),
    (
        long_classes,
        {
            "backends.redis.planted": f"class Long(one.Base[int]):\n{_LONG}",
            "backends.redis.io.planted": f"class Base:\n{_LONG}",
        },
        "backends.redis: Long",
    ),
    (old_words, {"engine.planted": "class _WakeLine: pass"}, "engine: _WakeLine"),
    (old_words, {"engine.planted": "def leave_ghosts(): pass"}, "engine: leave_ghosts"),
    (old_words, {"engine.planted": "def f(is_crowded): pass"}, "engine: is_crowded"),
    (old_words, {"engine.planted": "MAX_SEATS = 3"}, "engine: MAX_SEATS"),
    (old_words, {"engine.planted": "class X:\n    def f(self): self.heir = 1"}, "engine: heir"),
    (old_words, {"engine.planted": "class PostboxReader: pass"}, "engine: PostboxReader"),
    (constants_without_unit, {"engine.planted": "_PAUSE: Final = 60 * 0.5"}, "engine: _PAUSE"),
    (constants_without_unit, {"testing.planted": "HORIZON = 600.0"}, "testing: HORIZON"),
    (promises_without_subject, {"tests.planted": "def test_nor_does_a_task(): pass"}, "tests: test_nor_does_a_task"),
    (old_words, {"tests.engine.test_crowds": ""}, "tests: test_crowds"),
    (old_words, {"bench.redis_crew": ""}, "bench: redis_crew"),
    (old_words, {"tests.planted": "def test_a_loss_is_told(): pass"}, "tests: test_a_loss_is_told"),
    (old_words, {"bench.planted": "def f():\n    heard = 1"}, "bench: heard"),
]


def _parsed(texts: dict[str, str]) -> dict[str, Module]:
    return {name: Module(name, text) for name, text in texts.items()}


@pytest.mark.parametrize(("rule", "texts", "offence"), PLANTED, ids=lambda value: getattr(value, "__name__", None))
def test_each_rule_finds_a_planted_offence(rule: Rule, texts: dict[str, str], offence: str) -> None:
    assert list(rule(_parsed(texts))) == [offence]


def test_what_is_allowed_is_not_an_offence() -> None:
    allowed = _parsed(
        {
            "_facades.planted": "class Same: pass",
            "aio": "class Same: pass",
            "engine.planted": "from lockfast import _model\nfrom lockfast._ids import new_claim_id\n_model.__name__\n"
            "class Same: pass\nlines = next_line = placed = turned = 1\nself._private = 1\n"
            "PAUSE_S = 0.5\nMAX_RATE = 1e300\nTRIES = 3\nNAMES = (0.5,)\nshare = 0.5",
            "backends.redis.planted": f"class One:\n{_LONG}",
            "backends.sqlite.planted": f"class Two(One):\n{_LONG}",
            "testing.contract.planted": f"class Chapter(Promise):\n{_LONG}{_LONG}",
        }
    )
    for rule in (
        private_imports,
        class_names_twice,
        long_classes,
        old_words,
        constants_without_unit,
        promises_without_subject,
    ):
        assert rule(allowed) == {}
