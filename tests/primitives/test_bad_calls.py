"""A table of bad calls: whatever is passed, the error is ours, says what was expected, and is short."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import lockfast
from lockfast import aio, fencing
from lockfast._text import LONGEST_SHOWN, encodable, shown

pytestmark = pytest.mark.slow  # hundreds of them, each short


class Unshowable:
    def __repr__(self) -> str:
        raise OSError("it has no repr")

    __str__ = __repr__


class UnshowableText(str):
    __slots__ = ()

    def __repr__(self) -> str:
        raise OSError("it has no repr")


LONG = b"x" * 10_000_000
_circle: list[Any] = []
_circle.append(_circle)
VALUES: dict[str, Any] = {
    "unshowable": Unshowable(),
    "long": LONG,
    "long inside": [LONG],
    "a number of many digits": 10**5000,  # whose repr Python refuses
    "a list that contains itself": _circle,
}

Locks = lockfast.Locks
Call = Callable[[Any, Any], object]  # the locks, and the value
ROW: dict[str, Any] = {"table": "t", "values": {"a": 1}, "key": {"id": 1}, "fence": 1}


def statement(**given: Any) -> object:
    return fencing.update_statement(**{**ROW, **given})


def managed() -> Any:
    return lockfast.DistributedLock("memory://bad-calls")


class _Client:
    def eval(self, *_: Any) -> None:
        raise AssertionError("nothing may be sent")


# What is called with the value in the place of something else, and what the error says was expected.
CALLS: dict[str, tuple[Call, str]] = {
    "connect(url)": (lambda locks, it: lockfast.connect(it), "takes a URL or a client|quorum"),
    "connect(holder)": (lambda locks, it: lockfast.connect("memory://", holder=it), "a holder must be a string"),
    "connect(namespace)": (lambda locks, it: lockfast.connect("memory://", namespace=it), "a namespace must be a str"),
    "connect(patience)": (lambda locks, it: lockfast.connect("memory://", patience=it), "patience must be"),
    "connect(advisory)": (lambda locks, it: lockfast.connect("memory://", advisory=it), "advisory must be True or"),
    "connect(clock)": (lambda locks, it: lockfast.connect("memory://", clock=it), r"clock must have now\(\)"),
    "aio.connect(clock)": (lambda locks, it: aio.connect("memory://", clock=it), r"clock must have now\(\)"),
    "connect(schema)": (lambda locks, it: lockfast.connect("postgresql://h/d", schema=it), "a schema is letters"),
    "lock": (lambda locks, it: locks.lock(it), "a lock name must be a string"),
    "lock(ttl)": (lambda locks, it: locks.lock("x", ttl=it), "ttl must be"),
    "lock(wait)": (lambda locks, it: locks.lock("x", wait=it), "wait must be"),
    "lock(renew)": (lambda locks, it: locks.lock("x", renew=it), "renew must be True or False"),
    "lock(reentrant)": (lambda locks, it: locks.lock("x", reentrant=it), "reentrant must be True or False"),
    "lock(min_hold)": (lambda locks, it: locks.lock("x", min_hold=it), "min_hold must be"),
    "lock(on_lost)": (lambda locks, it: locks.lock("x", on_lost=it), "on_lost must be callable"),
    "lock(metadata)": (lambda locks, it: locks.lock("x", metadata=it), "metadata must be JSON"),
    "acquire(blocking)": (lambda locks, it: locks.lock("x").acquire(it), "must be True or False"),
    "acquire(timeout)": (lambda locks, it: locks.lock("x").acquire(timeout=it), "timeout must be"),
    "semaphore": (lambda locks, it: locks.semaphore(it, 1), "a lock name must be a string"),
    "semaphore(limit)": (lambda locks, it: locks.semaphore("x", it), "limit must be"),
    "rwlock": (lambda locks, it: locks.rwlock(it), "a lock name must be a string"),
    "all": (lambda locks, it: locks.all("x", it), "a lock name must be a string"),
    "election": (lambda locks, it: locks.election(it), "a lock name must be a string"),
    "election(candidate)": (lambda locks, it: locks.election("x", candidate=it), "a candidate must be a string"),
    "limiter": (lambda locks, it: locks.limiter(it, rate=1), "a limiter name must be a string"),
    "limiter(burst)": (lambda locks, it: locks.limiter("x", rate=1, burst=it), "burst must be"),
    "limiter(cost)": (lambda locks, it: locks.limiter("x", rate=1).try_acquire(it), "cost must be"),
    "cell": (lambda locks, it: locks.cell(it), "a cell name must be a string"),
    "write": (lambda locks, it: locks.cell("x").write(it), "a cell's value must be"),
    "write(if_version)": (lambda locks, it: locks.cell("x").write(1, if_version=it), "if_version must be"),
    "write(fence)": (lambda locks, it: locks.cell("x").write(1, fence=it), "fence must be"),
    "inspect": (lambda locks, it: locks.inspect(it), "a lock name must be a string"),
    "list": (lambda locks, it: locks.list(it), "a prefix must be a string"),
    "break_lock": (lambda locks, it: locks.break_lock(it), "a lock name must be a string"),
    "locked": (lambda locks, it: locks.locked(it)(lambda: None), "a lock name must be a string"),
    "locked()": (lambda locks, it: locks.locked("x")(it), "only functions can be decorated"),
    "singleton(wait)": (lambda locks, it: locks.singleton("x", wait=it), "singleton skips instead of waiting"),
    "events": (lambda locks, it: locks.events.listen(it), "a listener must be a function"),
    "manager.acquire": (lambda locks, it: managed().acquire(it), "a lock name must be a string"),
    "manager.release": (lambda locks, it: managed().release(it), "a lock name must be a string"),
    "manager.extend": (lambda locks, it: managed().extend(it, 5), "a lock name must be a string"),
    "manager.lock": (lambda locks, it: managed().lock(it), "a lock name must be a string"),
    "manager.with_lock": (lambda locks, it: managed().with_lock(it, print), "a lock name must be a string"),
    "statement(table)": (lambda locks, it: statement(table=it), "a table must be a string"),
    "statement(values)": (lambda locks, it: statement(values=it), "values must be a mapping"),
    "statement(key)": (lambda locks, it: statement(key=it), "key must be a mapping"),
    "statement(fence)": (lambda locks, it: statement(fence=it), "fence must be"),
    "statement(paramstyle)": (lambda locks, it: statement(paramstyle=it), "paramstyle must be one of"),
    "guarded_update": (lambda locks, it: fencing.guarded_update(it, **ROW), r"must have a method execute\(\)"),
    "redis_write": (lambda locks, it: fencing.redis_write(it, "k", 1, 1), r"must have a method eval\(\)"),
    "redis_write(ttl)": (lambda locks, it: fencing.redis_write(_Client(), "k", 1, 1, ttl=it), "ttl must be"),
}


@pytest.fixture
def locks() -> Locks:
    return lockfast.connect("memory://bad-calls")


def refusal(call: Callable[[], object]) -> str:
    """What the error of ours says."""
    with pytest.raises((ValueError, TypeError)) as refused:
        call()
    assert not isinstance(refused.value, UnicodeError)
    text = str(refused.value)
    assert len(text) < LONGEST_SHOWN + 300
    assert encodable(text), "it can be written to a log"
    return text


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("name", CALLS)
def test_what_cannot_be_shown_or_is_too_long_is_refused_as_anything_else_is(
    locks: Locks, name: str, value: str
) -> None:
    call, expected = CALLS[name]
    text = refusal(lambda: call(locks, VALUES[value]))
    assert re.search(expected, text), text


NAMED: dict[str, Call] = {
    "connect(url)": lambda locks, it: lockfast.connect(f"postgresql://host/{it}"),
    "connect([url])": lambda locks, it: lockfast.connect(["redis://a", "redis://b", f"redis://{it}"]),
    "connect({})": lambda locks, it: lockfast.connect({"host": it}),
    "connect({}) of an option": lambda locks, it: lockfast.connect({it: "host"}),
    "connect(holder)": lambda locks, it: lockfast.connect("memory://", holder=it),
    "connect(namespace)": lambda locks, it: lockfast.connect("memory://", namespace=it),
    "connect(schema)": lambda locks, it: lockfast.connect("postgresql://host/db", schema=it),
    "lock": lambda locks, it: locks.lock(it),
    "semaphore": lambda locks, it: locks.semaphore(it, 1),
    "rwlock": lambda locks, it: locks.rwlock(it),
    "all": lambda locks, it: locks.all("x", it),
    "election": lambda locks, it: locks.election(it),
    "election(candidate)": lambda locks, it: locks.election("x", candidate=it),
    "limiter": lambda locks, it: locks.limiter(it, rate=1),
    "cell": lambda locks, it: locks.cell(it),
    "inspect": lambda locks, it: locks.inspect(it),
    "list": lambda locks, it: locks.list(it),
    "break_lock": lambda locks, it: locks.break_lock(it),
    "locked": lambda locks, it: locks.locked(it)(lambda: None),
    "locked()": lambda locks, it: locks.locked("x:{name}")(lambda name: None)(it),
    "manager.acquire": lambda locks, it: managed().acquire(it),
    "manager.release": lambda locks, it: managed().release(it),
    "manager.extend": lambda locks, it: managed().extend(it, 5),
    "manager.lock": lambda locks, it: managed().lock(it),
    "manager.with_lock": lambda locks, it: managed().with_lock(it, print),
    "statement(table)": lambda locks, it: statement(table=it),
    "statement(values)": lambda locks, it: statement(values={it: 1}),
    "statement(key)": lambda locks, it: statement(key={it: 1}),
    "statement(fence_column)": lambda locks, it: statement(fence_column=it),
    "redis_write(key)": lambda locks, it: fencing.redis_write(_Client(), it, 1, 1),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_name_that_no_store_could_keep_is_refused(locks: Locks, name: str) -> None:
    refusal(lambda: NAMED[name](locks, "half \udc80 of a pair"))  # of surrogates


def test_a_name_of_a_file_may_be_any_bytes() -> None:
    lockfast.connect("sqlite:///half-\udc80.db").close()


@pytest.mark.parametrize("column", [5, None, b"a", ""])
def test_a_column_that_is_none(column: Any) -> None:
    for given in ({"values": {column: 1}}, {"key": {column: 1}}, {"fence_column": column}):
        assert "a name of a table or column" in refusal(partial(statement, **given))


def test_a_name_twice_is_refused_even_if_it_cannot_be_shown(locks: Locks) -> None:
    assert "each name once" in refusal(lambda: locks.all(UnshowableText("x"), UnshowableText("x")))


def test_a_value_is_shown_as_its_repr_as_far_as_it_fits() -> None:
    values: list[Any] = ["a'b", b"x", 5, None, [1, "two"], "x" * LONGEST_SHOWN]
    for value in values:
        assert shown(value) in (repr(value), repr(value)[:LONGEST_SHOWN] + "…")
    values = [LONG, LONG.decode(), [LONG], bytearray(LONG)]
    for value in values:
        assert len(shown(value)) < LONGEST_SHOWN + 20
        assert shown(value).endswith("…")
    assert shown(Unshowable()) == "<Unshowable that cannot be shown>"
    assert shown(UnshowableText("x" * 1000)) == repr("x" * LONGEST_SHOWN) + "…"
