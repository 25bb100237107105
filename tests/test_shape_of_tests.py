"""What a test may not do with time, servers and systems; CONTRIBUTING.md has the whole rule.

Decides: what no file under tests/ and no story of the contract may contain. Each check is a function from parsed files
to offences, and each is tried on planted offences below, because a check that cannot fail is not a check.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
from hypothesis import settings

from tests.parsing import collector_at_rest, nodes_of

TESTS = Path(__file__).parent
STORIES = TESTS.parent / "src" / "lockfast" / "testing" / "contract"
LEAST_S = 30.0  # seconds: what a test waits for in earnest is given at least that much time

CLOCKS = {"monotonic", "perf_counter", "process_time", "boot_now", "time"}
WAITS = {"join", "result", "communicate", "wait", "wait_for", "timeout", "notifies", "get_message"}
TAKES = {"lock", "semaphore", "all", "read", "write"}
NO_SERVER = ("stories/", "engine/", "simulation/", "typing/", "backends/memory/", "backends/sqlite/")
GIVES_UP = {"raises", "suppress", "impatient"}  # in such a block nothing has to succeed

# Files that may do it, and why. A new one needs a reason that a slow machine cannot refute.
MAY_MEASURE = {
    "cli/conftest.py": "it turns one clock's moment into another's",
    "flaky.py": "a tool, no test: it shows how long each run took",
    "hard_limit.py": "a tool, no test: it knows when a test that is stuck is ended",
    "servers/clocks.py": "it measures how far a server's clock is off",
    "servers/waiting.py": "it is how all others wait",
    "side_by_side.py": "a tool, no test: it shows how long each check took",
    "torture/actors.py": "a tool, no test: its workers work for so long",
    "torture/supervisor.py": "a tool, no test: faults begin and end by the clock",
    "simulation/test_history.py": "the judge of histories must not be quadratic: it would take hours",
}
MAY_SLEEP = {
    "adversity/actor.py": "its interpreter stands still for so long: that is the fault",
    "servers/proxy.py": "the wire is slow when a test asks for it",
    "servers/waiting.py": "it is how all others wait",
}
MAY_WAIT_BRIEFLY = {
    "engine/test_worlds.py": "its waits are the subject, or the simulated world's",
}


MAY_SEE_ALL_SESSIONS = {
    "adversity/postgres_table/test_crashes.py": "its server is its own",
    "backends/postgres/test_page.py": "its server is its own",
    "test_shape_of_tests.py": "an offence is planted in it",
}
MAY_SKIP = {
    "capabilities.py": "it has every reason for a skip",
    "test_shape_of_tests.py": "offences are planted in it",
}
MAY_READ_PROC = {
    "capabilities.py": "it looks whether there is one",
    "servers/processes.py": "it asks `ps` where there is none",
    "test_shape_of_tests.py": "an offence is planted in it",
}
MAY_NAME_A_REASON = {
    "adversity/redis/test_refusals.py": "the reason is the client's own: no server is there",
    "backends/postgres_table/test_refusals.py": "no answer in time is one of the reasons",
}
OF_THE_CLIENT = (
    "did not answer",
    "stayed locked",
    "fewer than",
    "no thread",
)  # these an impatient client gives by itself


@dataclass(frozen=True)
class File:
    """One parsed file of the tests."""

    name: str  # its path under tests/; a story of the contract is in stories/
    text: str

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return nodes_of(self.text)[1]

    @cached_property
    def calls(self) -> list[ast.Call]:
        return [node for node in self.nodes if isinstance(node, ast.Call)]

    def at(self, node: ast.AST) -> str:
        return f"{self.name}:{getattr(node, 'lineno', 0)}: {ast.unparse(node).splitlines()[0]}"


Files = dict[str, File]
Check = Callable[[Files], Iterator[str]]


def read_all() -> Files:
    found = [(file.relative_to(TESTS).as_posix(), file) for file in sorted(TESTS.rglob("*.py"))]
    found += [(f"stories/{file.name}", file) for file in sorted(STORIES.glob("*.py"))]
    return {name: File(name, file.read_text()) for name, file in found}


def _called(node: ast.AST) -> str:
    """The last word of what is called; empty if it is no call."""
    func = getattr(node, "func", None)
    return str(getattr(func, "attr", getattr(func, "id", "")))


def _reads_clock(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _called(node) in CLOCKS and not node.args


def _moments(file: File) -> set[str]:
    """Names that hold a reading of a clock."""
    pairs = [(target, node.value) for node in file.nodes if isinstance(node, ast.Assign) for target in node.targets]
    for target, value in list(pairs):
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs += zip(target.elts, value.elts, strict=True)
    return {target.id for target, value in pairs if isinstance(target, ast.Name) and _reads_clock(value)}


# Time


def measured_times(files: Files) -> Iterator[str]:
    """How long something took. A lower bound is written `now >= started + …`; an upper bound is for bench/."""
    for file in files.values():
        moments = _moments(file)

        def is_moment(node: ast.AST, moments: set[str] = moments) -> bool:
            return _reads_clock(node) or (isinstance(node, ast.Name) and node.id in moments)

        for node in file.nodes if file.name not in MAY_MEASURE else ():
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
                ends = (node.left, node.right)
                if any(map(is_moment, ends)) and not any(isinstance(end, ast.Constant) for end in ends):
                    yield file.at(node)


def upper_bounds(files: Files) -> Iterator[str]:
    """A reading of a clock that must not be late."""
    for file in files.values():
        for node in file.nodes if file.name not in MAY_MEASURE else ():
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                for left, how, right in zip(sides, node.ops, sides[1:], strict=False):
                    less = {ast.Lt: left, ast.LtE: left, ast.Gt: right, ast.GtE: right}.get(type(how))
                    if less is not None and any(map(_reads_clock, ast.walk(less))):
                        yield file.at(node)


def close_readings(files: Files) -> Iterator[str]:
    """A moment that must be near a reading of a clock. Two readings, one before and one after, say as much."""
    for file in files.values():
        for call in file.calls:
            if _called(call) == "approx" and any(map(_reads_clock, ast.walk(call))):
                yield file.at(call)


def sleeps(files: Files) -> Iterator[str]:
    """A sleep that hopes. To let others run, `asyncio.sleep(0)` is enough."""
    for file in files.values():
        for call in file.calls if file.name not in MAY_SLEEP else ():
            if _called(call) == "sleep" and not (call.args and ast.unparse(call.args[0]) == "0"):
                yield file.at(call)


# Waiting


def waiting_loops(files: Files) -> Iterator[str]:
    """A loop that does nothing but look again, for ever or for a time of its own: `until` is for that."""
    for file in files.values():
        for node in file.nodes:
            if isinstance(node, ast.While) and all(map(_does_nothing, node.body)) and _polls(node.test):
                yield file.at(node)


def _does_nothing(step: ast.stmt) -> bool:
    if isinstance(step, ast.Expr) and isinstance(step.value, ast.Await):
        return _called(step.value.value) == "sleep"
    return isinstance(step, ast.Pass | ast.Continue)


def _polls(test: ast.expr) -> bool:
    """It does not write, as whatever fills a disk does."""
    return not any(_called(part) == "write" for part in ast.walk(test))


def short_limits(files: Files) -> Iterator[str]:
    """A wait for a thread, a task or a process that a slow machine fails. LIMIT_S is for that."""
    for file in files.values():
        for call in file.calls if file.name not in MAY_WAIT_BRIEFLY else ():
            timed = _called(call) in WAITS or ast.unparse(call.func).startswith("subprocess.")
            limits = [word.value for word in call.keywords if word.arg == "timeout"]
            limits += call.args[-1:] if _called(call) in WAITS - {"communicate", "get_message"} else []
            if timed and any(1 <= _number(limit) < LEAST_S for limit in limits):
                yield file.at(call)


def _number(node: ast.expr) -> float:
    value = node.value if isinstance(node, ast.Constant) else None
    return float(value) if isinstance(value, int | float) else 0.0


def short_waits_that_must_not_end(files: Files) -> Iterator[str]:
    """A lock that must be granted, with a `wait` that a slow machine lets pass."""
    for file in files.values():
        for node in _that_must_succeed(file) if not file.name.startswith("stories/") else ():  # there the clock is fake
            for call in _must_be_granted(node):
                if _short(call, "wait"):
                    yield file.at(call)


def short_waits_that_need_an_answer(files: Files) -> Iterator[str]:
    """A refusal that the server must have given in a `wait` that a slow machine lets pass: `in_queue` waits for it."""
    for file in files.values():
        for node in _that_must_succeed(file) if not file.name.startswith(NO_SERVER) else ():
            if isinstance(node, ast.Compare) and ast.unparse(node).endswith(" is None"):
                for call in ast.walk(node.left):
                    if _short(call, "wait") or (_called(call) == "acquire" and _short(call, "timeout")):
                        yield file.at(call)


def _short(call: ast.AST, word: str) -> bool:
    return any(one.arg == word and 0 < _number(one.value) < LEAST_S for one in _keywords(call))


def _that_must_succeed(file: File) -> Iterator[ast.AST]:
    may_fail = {id(inner) for node in file.nodes if _may_fail(node) for inner in ast.walk(node)}
    return (node for node in file.nodes if id(node) not in may_fail)


def _may_fail(node: ast.AST) -> bool:
    items = node.items if isinstance(node, ast.With | ast.AsyncWith) else []
    return any(_called(item.context_expr) in GIVES_UP for item in items)


def _must_be_granted(node: ast.AST) -> Iterator[ast.Call]:
    """What is entered, or taken for certain: `with locks.lock(…)`, `await locks.lock(…).take()`."""
    found = [item.context_expr for item in node.items] if isinstance(node, ast.With | ast.AsyncWith) else []
    if isinstance(node, ast.Call) and _called(node) == "take" and isinstance(node.func, ast.Attribute):
        found.append(node.func.value)
    yield from (one for one in found if isinstance(one, ast.Call) and _called(one) in TAKES)


# Servers


def unconfirmed_settings(files: Files) -> Iterator[str]:
    """A setting that was not read back: `Server.configure`, `follow`, `lead` and `keep_all` do."""
    for file in files.values():
        for call in file.calls if not file.name.startswith("servers/") else ():
            words = [word.value for word in call.args[:2] if isinstance(word, ast.Constant)]
            if words[:1] == ["REPLICAOF"] or words == ["CONFIG", "SET"]:
                yield file.at(call)


def sessions_of_other_tests(files: Files) -> Iterator[str]:
    """A server's sessions by a name that others have too: tests share servers, and each has a database of its own."""
    for file in files.values():
        for node in file.nodes if file.name not in MAY_SEE_ALL_SESSIONS else ():
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            if "pg_stat_activity" in text and "application_name =" in text and "datname" not in text:
                yield file.at(node)


def reasons_that_need_an_answer(files: Files) -> Iterator[str]:
    """A server's own reason, which must come before an impatient client gives up: `refused_for` asks again."""
    for file in files.values():
        for block in file.nodes if file.name not in MAY_NAME_A_REASON else ():
            items = block.items if isinstance(block, ast.With | ast.AsyncWith) else []
            calls = [item.context_expr for item in items if isinstance(item.context_expr, ast.Call)]
            if any(_called(call) == "raises" and any(word.arg == "match" for word in call.keywords) for call in calls):
                for call in filter(lambda node: isinstance(node, ast.Call), ast.walk(block)):
                    if _short(call, "patience"):
                        yield file.at(call)
        for block in file.nodes:
            if isinstance(block, ast.With | ast.AsyncWith) and any(
                _called(item.context_expr) == "impatient" for item in block.items
            ):
                for call in filter(lambda node: _called(node) == "raises", ast.walk(block)):
                    if any(word.arg == "match" and _of_a_server(word.value) for word in _keywords(call)):
                        yield file.at(call)


def _of_a_server(reason: ast.AST) -> bool:
    return isinstance(reason, ast.Constant) and not any(own in str(reason.value) for own in OF_THE_CLIENT)


def _keywords(call: ast.AST) -> list[ast.keyword]:
    return call.keywords if isinstance(call, ast.Call) else []


# Systems


def skips(files: Files) -> Iterator[str]:
    """A skip for a reason of its own: `tests/capabilities.py` has them all, and says which systems have what."""
    for file in files.values():
        for node in file.nodes if file.name not in MAY_SKIP else ():
            named = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
            if named in {"skip", "skipif", "xfail", "importorskip", "SkipTest"}:
                yield file.at(node)


def reads_of_proc(files: Files) -> Iterator[str]:
    """macOS has no /proc: `tests/servers/processes.py` asks `ps` there."""
    for file in files.values():
        for node in file.nodes if file.name not in MAY_READ_PROC else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("/proc"):
                yield file.at(node)


CHECKS: tuple[Check, ...] = (
    measured_times,
    upper_bounds,
    close_readings,
    sleeps,
    waiting_loops,
    short_limits,
    short_waits_that_must_not_end,
    short_waits_that_need_an_answer,
    unconfirmed_settings,
    sessions_of_other_tests,
    reasons_that_need_an_answer,
    skips,
    reads_of_proc,
)


@pytest.mark.slow
def test_no_test_depends_on_how_quick_the_machine_is() -> None:
    """One test for all checks: reading the files takes longer than checking them."""
    files = read_all()  # not kept: every collection of garbage would look through their trees
    with collector_at_rest():
        assert {check.__name__: offences for check in CHECKS if (offences := list(check(files)))} == {}


# Each check is able to fail

PLANTED: list[tuple[Check, str]] = [
    (measured_times, "started = boot_now()\nwork()\ntook = boot_now() - started"),
    (measured_times, "locks, started = 1, time.monotonic()\nassert at - started < 5"),
    (upper_bounds, "assert time.monotonic() < limit"),
    (upper_bounds, "assert limit > boot_now() + 1"),
    (upper_bounds, "assert before <= time.time() < after"),
    (close_readings, "assert lease.expires_at == pytest.approx(time.time() + 30, abs=2)"),
    (sleeps, "time.sleep(0.1)"),
    (sleeps, "async def f():\n    await asyncio.sleep(dice())"),
    (waiting_loops, "while not locks.inspect('x').waiters:\n    continue"),
    (waiting_loops, "async def f():\n    while not await free():\n        await asyncio.sleep(0)"),
    (short_limits, "thread.join(10)"),
    (short_limits, "process.communicate('word', timeout=20)"),
    (short_limits, "subprocess.run(words, timeout=10)"),
    (short_limits, "async def f():\n    await asyncio.wait_for(task, 5)"),
    (short_limits, "async def f():\n    async with asyncio.timeout(5): pass"),
    (short_limits, "future.result(10)"),
    (short_limits, "assert event.wait(20)"),
    (short_waits_that_must_not_end, "with connect() as locks, locks.lock('x', wait=5): pass"),
    (short_waits_that_must_not_end, "async def f():\n    lease = await locks.semaphore('x', 2, wait=0.5).take()"),
    (short_waits_that_need_an_answer, "assert locks.lock('x', wait=0.5).acquire() is None"),
    (short_waits_that_need_an_answer, "assert (lease := locks.lock('x').acquire(timeout=0.5)) is None"),
    (unconfirmed_settings, "server.command('CONFIG', 'SET', 'maxmemory', '1')"),
    (unconfirmed_settings, "replica.command('REPLICAOF', HOST, primary.port)"),
    (sessions_of_other_tests, "psql(\"SELECT pid FROM pg_stat_activity WHERE application_name = 'me'\")"),
    (
        reasons_that_need_an_answer,
        "with pytest.raises(E, match='full'):\n    connect(url, patience=0.3).lock('x').acquire()",
    ),
    (
        reasons_that_need_an_answer,
        "with impatient(locks):\n    with pytest.raises(E, match='full'):\n        locks.lock('x')",
    ),
    (skips, "@pytest.mark.skipif(sys.platform != 'linux', reason='no')\ndef test_a(): pass"),
    (skips, "def test_a():\n    pytest.skip('not today')"),
    (reads_of_proc, "state = Path(f'/proc/{pid}/stat').read_text()"),
]


@pytest.mark.parametrize(("check", "text"), PLANTED, ids=lambda value: getattr(value, "__name__", None))
def test_each_check_finds_a_planted_offence(check: Check, text: str) -> None:
    assert len(list(check({"planted.py": File("planted.py", text)}))) == 1


def test_what_is_allowed_is_not_an_offence() -> None:
    allowed = """
started = boot_now()
assert boot_now() >= started + 2
assert before <= time.time()
assert before + 30 <= lease.expires_at <= time.time() + 30
long_ago = boot_now() - 1_000_000.0
async def f():
    await asyncio.sleep(0)
    with pytest.raises(AcquireTimeout):
        await locks.lock("x", wait=0.3).take()
while not done:
    work()
thread.join(LIMIT_S)
", ".join(["a"])
assert not signal.wait(0.001)
assert locks.lock("x", wait=0).acquire() is None
with suppress(BackendUnavailable):
    assert locks.lock("x", wait=0.5).acquire() is None
with locks.lock("x", wait=0): pass
with locks.lock("x", wait=LIMIT_S): pass
server.configure("maxmemory", 1)
server.command("CONFIG", "RESETSTAT")
psql("SELECT pid FROM pg_stat_activity WHERE application_name = 'me' AND datname = current_database()")
"""
    for check in CHECKS:
        assert list(check({"allowed.py": File("allowed.py", allowed)})) == []


@pytest.mark.parametrize(
    "exceptions",
    [
        MAY_MEASURE,
        MAY_SLEEP,
        MAY_WAIT_BRIEFLY,
        MAY_SEE_ALL_SESSIONS,
        MAY_SKIP,
        MAY_READ_PROC,
        MAY_NAME_A_REASON,
    ],
)
def test_every_exception_is_a_file_that_there_is(exceptions: dict[str, str]) -> None:
    assert set(exceptions) <= set(read_all())
    assert all(exceptions.values())


def test_no_example_of_hypothesis_has_a_time_limit() -> None:
    assert settings().deadline is None
