"""Functions that run under a lock: names made of arguments, what is refused when decorating, what is skipped."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import lockfast
from lockfast import AcquireTimeout, BackendUnavailable, Lease, LeaseLost, Locks, SelfDeadlock
from lockfast._connect import open_backend
from lockfast.testing import ALWAYS, FakeClock, FaultyBackend


def names(locks: Locks) -> list[str]:
    return [info.name for info in locks.list()]


# Names from arguments


def test_a_name_is_made_of_positional_keyword_and_default_arguments(locks: Locks) -> None:
    @locks.locked("job:{kind}:{job_id}")
    def run(job_id: int, kind: str = "mail") -> list[str]:
        return names(locks)

    assert run(1) == ["job:mail:1"]
    assert run(job_id=2) == ["job:mail:2"]
    assert run(3, "fax") == run(3, kind="fax") == run(kind="fax", job_id=3) == ["job:fax:3"]
    assert names(locks) == []


def test_a_name_may_use_attributes_indices_conversions_and_formats(locks: Locks) -> None:
    @locks.locked("{order.id:04d}:{order.owner.name!r}:{lines[0]}:{options[mode]}:{more[1]}:{extra[x]:>{width}}")
    def run(order: Any, lines: list[str], options: dict[str, str], width: int, *more: int, **extra: str) -> list[str]:
        return names(locks)

    order = SimpleNamespace(id=42, owner=SimpleNamespace(name="ann"))
    assert run(order, ["a", "b"], {"mode": "fast"}, 3, 7, 8, x="y") == ["0042:'ann':a:fast:8:  y"]


def test_braces_that_are_doubled_are_braces(locks: Locks) -> None:
    @locks.locked("a{{b}}")
    def run() -> list[str]:
        return names(locks)

    assert run() == ["a{b}"]


def test_a_name_that_only_the_call_spoils_is_refused_before_the_body_runs(locks: Locks) -> None:
    @locks.locked("{name}")
    def run(name: Any) -> None:
        pytest.fail("the body ran")

    with pytest.raises(ValueError, match="must not be empty"):
        run("")
    with pytest.raises(ValueError, match="control characters"):
        run("a\nb")
    with pytest.raises(TypeError, match="missing a required argument"):
        run()  # type: ignore[call-arg]


def test_methods_of_every_kind_can_be_decorated_in_either_order(locks: Locks) -> None:
    class Shop:
        id = 7

        @locks.locked("shop:{self.id}:{item}")
        def method(self, item: str) -> list[str]:
            return names(locks)

        @classmethod
        @locks.locked("class:{cls.__name__}:{item}")
        def inner_class(cls, item: str) -> list[str]:
            return names(locks)

        @locks.locked("class:{cls.__name__}:{item}")
        @classmethod
        def outer_class(cls, item: str) -> list[str]:
            return names(locks)

        @staticmethod
        @locks.locked("static:{item}")
        def inner_static(item: str) -> list[str]:
            return names(locks)

        @locks.locked("static:{item}")
        @staticmethod
        def outer_static(item: str) -> list[str]:
            return names(locks)

    assert Shop().method("a") == ["shop:7:a"]
    assert Shop.inner_class("a") == Shop().outer_class("a") == ["class:Shop:a"]
    assert Shop.inner_static("a") == Shop().outer_static("a") == ["static:a"]


def test_partials_and_callable_objects_can_be_decorated(locks: Locks) -> None:
    class Job:
        def __call__(self, job_id: int) -> list[str]:
            return names(locks)

    assert locks.locked("job:{job_id}")(Job())(3) == ["job:3"]
    assert locks.locked("job:{job_id}")(functools.partial(Job(), job_id=4))() == ["job:4"]


def test_a_decorated_function_keeps_the_name_and_documentation_of_the_function(locks: Locks) -> None:
    @locks.locked("job:{job_id}")
    def run(job_id: int, *, fast: bool = False) -> str:
        """Runs it."""
        return ""

    assert (run.__name__, run.__doc__, run.__module__) == ("run", "Runs it.", __name__)
    assert str(inspect.signature(run)) == "(job_id: 'int', *, fast: 'bool' = False) -> 'str'"

    @locks.singleton("items")
    def items() -> Iterator[int]:
        yield 1

    assert inspect.isgeneratorfunction(items)


def _none() -> None: ...
def _items() -> Iterator[int]:
    yield 1


# Calls


def test_a_function_waits_for_its_lock_as_the_lock_would(locks: Locks) -> None:
    run = locks.locked("job", wait=0)(_none)
    with locks.lock("job"), pytest.raises(AcquireTimeout, match=r"is held by [^;]*$"):
        run()
    run()


def test_an_error_of_the_body_is_passed_on_and_the_lock_released(locks: Locks) -> None:
    @locks.locked("job")
    def run() -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        run()
    assert names(locks) == []


def test_a_loss_is_raised_at_the_end_of_the_call(locks: Locks, clock: FakeClock) -> None:
    @locks.locked("job", renew=False, ttl=10)
    def run() -> None:
        clock.advance(10)

    with pytest.raises(LeaseLost):
        run()


def test_the_lease_is_given_to_the_function_that_asks_for_it(locks: Locks) -> None:
    @locks.locked("job:{job_id}", lease_as="lease")
    def run(job_id: int, lease: Lease) -> Lease:
        assert isinstance(lease, Lease)
        assert lease.held
        return lease

    assert run(1).name == "job:1"
    assert run(job_id=2).fence > 0
    with pytest.raises(TypeError, match="too many positional arguments"):
        run(1, "mine")
    with pytest.raises(TypeError, match=r"run\(\) is given 'lease' by its lock; callers do not pass it"):
        run(1, lease="mine")


@pytest.mark.parametrize(
    "args", [(), (1,), (1, 2), (1, 2, 3)], ids=["all by name", "one by place", "two by place", "all by place"]
)
def test_a_lease_finds_its_place_wherever_it_stands(locks: Locks, args: tuple[int, ...]) -> None:
    def first(lease: Lease, a: int, b: int, c: int) -> tuple[str, int, int, int]:
        return lease.name, a, b, c

    def second(a: int, lease: Lease, b: int, c: int) -> tuple[str, int, int, int]:
        return lease.name, a, b, c

    def last(a: int, b: int, c: int, lease: Lease) -> tuple[str, int, int, int]:
        return lease.name, a, b, c

    def named(a: int, b: int, c: int, *, lease: Lease) -> tuple[str, int, int, int]:
        return lease.name, a, b, c

    by_name = dict(zip("abc", (1, 2, 3), strict=True))
    rest = {name: value for name, value in by_name.items() if value > len(args)}
    for function in (first, second, last, named):
        run: Any = locks.locked("job:{a}:{c}", lease_as="lease")(function)
        assert run(*args, **rest) == ("job:1:3", 1, 2, 3)


def test_a_method_is_given_its_lease_after_itself(locks: Locks) -> None:
    class Shop:
        @locks.locked("shop:{item}", lease_as="lease")
        def sell(self, lease: Lease, item: str) -> str:
            return f"{lease.name} by {type(self).__name__}"

        @classmethod
        @locks.singleton("shop:{item}", lease_as="lease")
        def find(cls, lease: Lease, item: str) -> str:
            return f"{lease.name} by {cls.__name__}"

    assert Shop().sell("a") == "shop:a by Shop"
    assert Shop.find(item="b") == "shop:b by Shop"


def test_recursion_is_an_error_at_once_unless_the_lock_is_reentrant(locks: Locks) -> None:
    def down(count: int) -> int:
        return 0 if count == 0 else 1 + again(count - 1)

    again = locks.locked("job")(down)
    with pytest.raises(SelfDeadlock, match="'job' is held by the `with` block around this very call"):
        again(3)
    again = locks.locked("job", reentrant=True)(down)
    assert again(3) == 3
    assert names(locks) == []


# Generators


def test_a_generator_holds_the_lock_while_it_is_iterated(locks: Locks) -> None:
    @locks.locked("items:{first}")
    def items(first: int) -> Iterator[int]:
        yield from range(first, first + 2)

    running = items(5)
    assert names(locks) == []  # nothing runs, and nothing is held, before the first item is asked for
    assert next(running) == 5
    assert names(locks) == ["items:5"]
    assert list(running) == [6]
    assert names(locks) == []


@pytest.mark.parametrize("ending", ["close", "throw"])
def test_a_generator_that_is_ended_early_ends_under_the_lock_and_releases_it(locks: Locks, ending: str) -> None:
    held_at_the_end: list[str] = []

    @locks.locked("items")
    def items() -> Any:
        try:
            yield 1
        finally:
            held_at_the_end.extend(names(locks))

    running = items()
    next(running)
    if ending == "close":
        running.close()
    else:
        with pytest.raises(LookupError):
            running.throw(LookupError("mine"))
    assert held_at_the_end == ["items"]
    assert names(locks) == []


def test_a_generator_can_be_sent_values_and_returns_one(locks: Locks) -> None:
    @locks.locked("items")
    def items() -> Any:
        got = yield "first"
        return got

    running = items()
    assert next(running) == "first"
    with pytest.raises(StopIteration) as stop:
        running.send("sent")
    assert stop.value.value == "sent"


# Singletons


def test_a_singleton_returns_its_default_while_another_call_holds_the_lock(locks: Locks) -> None:
    @locks.singleton("cron:{task}", default="skipped")
    def run(task: str) -> str:
        return f"did {task}"

    with locks.lock("cron:daily"):
        assert run("daily") == "skipped"
        assert run("hourly") == "did hourly"
        assert locks.singleton("cron:{task}")(run.__wrapped__)("daily") is None  # type: ignore[attr-defined]
        assert list(locks.singleton("cron:daily")(_items)()) == []
    assert run("daily") == "did daily"


def test_a_singleton_is_kept_for_its_time_after_a_fast_run(locks: Locks, clock: FakeClock) -> None:
    runs: list[float] = []

    @locks.singleton("cron:daily", min_hold=60)
    def run() -> None:
        runs.append(clock.now())

    run()
    clock.advance(59)
    run()
    assert len(runs) == 1
    clock.advance(1)
    run()
    assert len(runs) == 2


def test_a_timeout_that_the_body_raises_is_not_taken_for_a_skip(locks: Locks) -> None:
    @locks.singleton("job")
    def busy() -> Any:
        raise AcquireTimeout("mine")

    @locks.singleton("job")
    def busy_items() -> Any:
        yield 1
        raise AcquireTimeout("mine")

    with pytest.raises(AcquireTimeout, match="mine"):
        busy()
    with pytest.raises(AcquireTimeout, match="mine"):
        list(busy_items())


def test_a_singleton_does_not_take_silence_for_a_skip(clock: FakeClock) -> None:
    made: list[FaultyBackend] = []

    def opener(world: Any, clock: Any) -> FaultyBackend:
        made.append(FaultyBackend(open_backend("memory://silent", world, clock), world))
        return made[0]

    with lockfast.connect(opener, clock=clock) as locks:
        run = locks.singleton("job")(_none)
        made[0].lose_request("acquire", ALWAYS, BackendUnavailable("down", transient=False))
        with pytest.raises(BackendUnavailable):
            run()
        made[0].heal()
