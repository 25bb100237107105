"""Names and namespaces: what is refused and how it is said, and that two namespaces never meet."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lockfast
from lockfast import Locks
from lockfast._records import LONGEST_NAME
from lockfast._worlds import drive
from lockfast.primitives.lock import LockLogic
from lockfast.primitives.names import DEFAULT_NAMESPACE, aside, qualify, unqualify
from lockfast.testing import FakeClock
from tests.servers.waiting import LIMIT_S

BAD = [
    ("", "must not be empty"),
    ("x" * 256, "has at most 255 characters; this has 256: 'xxxx"),
    ("a\nb", r"must not contain control characters: 'a\\nb'"),
    ("a\x1fb", r"must not contain control characters: 'a\\x1fb'"),
    ("\x7f", "must not contain control characters"),
    ("a\ud800", "must be encodable as UTF-8"),
    (None, "must be a string, not None"),
    (42, "must be a string, not 42"),
    (b"a", "must be a string, not b'a'"),
]

MAKERS: list[tuple[str, Callable[[Locks, Any], object]]] = [
    ("lock name", lambda locks, name: locks.lock(name)),
    ("lock name", lambda locks, name: locks.semaphore(name, 2)),
    ("lock name", lambda locks, name: locks.rwlock(name)),
    ("lock name", lambda locks, name: locks.all("fine", name)),
    ("lock name", lambda locks, name: locks.election(name)),
    ("lock name", lambda locks, name: locks.inspect(name)),
    ("lock name", lambda locks, name: locks.break_lock(name)),
    ("limiter name", lambda locks, name: locks.limiter(name, rate=1)),
    ("cell name", lambda locks, name: locks.cell(name)),
]


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{uuid.uuid4().hex}" if request.param == "memory" else f"sqlite:///{tmp_path}/locks.db"


@pytest.fixture
def shop(url: str, clock: FakeClock) -> Iterator[Locks]:
    with lockfast.connect(url, namespace="shop", clock=clock) as locks:
        yield locks


@pytest.mark.parametrize(("what", "make"), MAKERS)
@pytest.mark.parametrize(("name", "said"), BAD)
def test_a_bad_name_is_refused_with_what_is_wrong_with_it(
    what: str, make: Callable[[Locks, Any], object], name: Any, said: str
) -> None:
    with lockfast.connect("memory://names") as locks, pytest.raises(ValueError, match=f"^a {what} {said}"):
        make(locks, name)


@pytest.mark.parametrize(("name", "said"), BAD)
def test_a_bad_namespace_or_holder_is_refused_when_connecting(name: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"^a namespace {said}"):
        lockfast.connect("memory://names", namespace=name)
    if name is not None:  # then one is made up
        with pytest.raises(ValueError, match=f"^a holder {said}"):
            lockfast.connect("memory://names", holder=name)
        with lockfast.connect("memory://names") as locks, pytest.raises(ValueError, match=f"^a candidate {said}"):
            locks.election("lead", candidate=name)


@pytest.mark.parametrize(
    "name", ["x", "x" * LONGEST_NAME, "order:42:process", "ünï/cödé 🔒", " ", "a b", "{x}", "%", "*", "'--", "-v", "\\"]
)
def test_everything_else_is_a_name(name: str, locks: Locks) -> None:
    with locks.lock(name) as lease:
        assert lease.name == name
        assert [info.name for info in locks.list()] == [name]
        assert locks.inspect(name).locked


def test_a_prefix_is_taken_as_it_is(locks: Locks) -> None:
    for name in ("job_1", "jobs", "job%", "JOB_1"):
        locks.lock(name).acquire()
    assert [info.name for info in locks.list("job_")] == ["job_1"]
    assert [info.name for info in locks.list("job%")] == ["job%"]


def test_two_namespaces_never_meet(url: str, shop: Locks, locks: Locks) -> None:
    assert locks.lock("a").acquire(False)
    assert shop.lock("a").acquire(False)
    assert [info.name for info in shop.list()] == [info.name for info in locks.list()] == ["a"]
    shop.break_lock("a")
    assert [shop.inspect("a").locked, locks.inspect("a").locked] == [False, True]
    shop.cell("a").write(1)
    assert locks.cell("a").read() == (None, 0)
    assert shop.limiter("a", rate=1, per=60).try_acquire().allowed
    assert locks.limiter("a", rate=1, per=60).try_acquire().allowed


def test_no_name_and_no_namespace_reach_into_another() -> None:
    keys = {
        qualify(namespace, name) for namespace in ("a", "b", "a:b", DEFAULT_NAMESPACE) for name in ("c", "b:c", "a")
    }
    assert len(keys) == 12
    assert unqualify("a", qualify("a:b", "c")) is None
    assert unqualify(DEFAULT_NAMESPACE, qualify("a", "c")) is None
    assert unqualify("a", qualify(DEFAULT_NAMESPACE, "ac")) is None
    assert unqualify("a", aside(qualify("a", "c"), "turn")) is None


@pytest.mark.parametrize("namespace", [DEFAULT_NAMESPACE, "shop"])
def test_the_turn_of_who_waits_at_a_limiter_is_no_lock_that_anybody_sees(
    url: str, clock: FakeClock, namespace: str
) -> None:
    with lockfast.connect(url, namespace=namespace, clock=clock) as locks:
        engine = locks._logic.engine
        assert drive(LockLogic(engine, locks.limiter("mail", rate=1)._logic._turn).acquire())
        [turn] = drive(engine.backend.list("", within=LIMIT_S))
        assert turn.locked
        assert locks.list() == locks.list("mail") == []
        assert not locks.inspect("mail").locked
        assert locks.lock("mail").acquire(False)  # locks and limiters have names apart
        assert [info.name for info in locks.list()] == ["mail"]


NAMED: list[Callable[[Any], Any]] = [
    lambda locks: locks.lock("stock"),
    lambda locks: locks.semaphore("stock", 2),
    lambda locks: locks.rwlock("stock"),
    lambda locks: locks.rwlock("stock").read(),
    lambda locks: locks.election("stock"),
    lambda locks: locks.limiter("stock", rate=1),
    lambda locks: locks.cell("stock"),
]


@pytest.mark.parametrize("connect", [lockfast.connect, lockfast.aio.connect], ids=["threads", "asyncio"])
def test_every_object_has_the_name_that_it_was_made_with(connect: Callable[..., Any], url: str) -> None:
    locks = connect(url, namespace="shop")
    assert [make(locks).name for make in NAMED] == ["stock"] * len(NAMED)
    assert locks.all("b", "a").names == ("a", "b")


def test_a_lease_over_several_names_has_the_metadata_of_each(locks: Locks) -> None:
    with locks.all("a", "b", metadata={"job": 1}) as lease:
        assert lease.metadata == lease.leases["a"].metadata == {"job": 1}
