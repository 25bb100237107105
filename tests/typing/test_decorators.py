"""Decorated functions of the blocking world as a type checker sees them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from datetime import timedelta
from typing import Any, assert_type

import pytest

import lockfast
from lockfast import Lease, Locks


@pytest.fixture
def locks() -> Iterator[Locks]:
    with lockfast.connect("memory://typing-decorators") as locks:
        yield locks


# The options are those of a lock, and no others


def test_a_misspelt_option_is_an_error_everywhere(locks: Locks) -> None:
    with pytest.raises(TypeError, match="tll"):
        locks.lock("x", tll=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="tll"):
        locks.semaphore("x", 3, tll=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="tll"):
        locks.rwlock("x", tll=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="tll"):
        locks.all("x", tll=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="tll"):
        locks.election("x", tll=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="tll"):
        locks.locked("x", tll=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="tll"):
        locks.singleton("x", tll=3)  # type: ignore[call-overload]


def test_an_option_of_the_wrong_type_is_an_error(locks: Locks) -> None:
    with pytest.raises(ValueError, match="ttl"):
        locks.locked("x", ttl="3")(print)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="skips instead of waiting"):
        locks.singleton("x", wait=3)  # type: ignore[call-overload]


def test_every_option_of_a_lock_is_one_of_the_decorators(locks: Locks) -> None:
    def lost(lease: Lease) -> None: ...

    @locks.locked(
        "x", ttl=timedelta(seconds=3), wait=1, renew=True, reentrant=True, metadata={}, min_hold=0, on_lost=lost
    )
    def run() -> None: ...

    @locks.singleton("y", ttl=3.0, renew=True, reentrant=True, metadata=None, min_hold=0, on_lost=None)
    def once() -> None: ...

    assert_type(run(), None)
    assert_type(once(), None)


# A singleton may be skipped


def test_a_call_that_may_be_skipped_may_return_the_default(locks: Locks) -> None:
    @locks.singleton("a")
    def plain(x: int) -> str:
        return str(x)

    @locks.singleton("b", default=None)
    def with_none(x: int) -> str:
        return str(x)

    @locks.singleton("c", default=0)
    def with_number(x: int) -> str:
        return str(x)

    @locks.singleton("d", default="skipped", min_hold=0)
    def with_text(x: int) -> str:
        return str(x)

    assert_type(plain(1), str | None)
    assert_type(with_none(1), str | None)
    assert_type(with_number(1), str | int)
    assert_type(with_text(1), str)
    plain(1).upper()  # type: ignore[union-attr]
    with_none(1).upper()  # type: ignore[union-attr]
    with pytest.raises(TypeError):
        plain(1, 2)  # type: ignore[call-arg]


def test_a_generator_that_is_skipped_yields_nothing_and_returns_none(locks: Locks) -> None:
    @locks.singleton("a")
    def items() -> Iterator[int]:
        yield 1

    @locks.singleton("b")
    def talk() -> Generator[int, str, bool]:
        yield 1
        return True

    assert_type(items(), Iterator[int])
    assert_type(talk(), Generator[int, str, bool | None])


def test_a_function_that_returns_an_iterator_says_that_it_has_a_default(locks: Locks) -> None:
    @locks.singleton("a", default=None)
    def numbers() -> Iterator[int]:
        return iter([1])

    assert_type(numbers(), Iterator[int] | None)


def test_what_returns_any_is_not_made_an_error(locks: Locks) -> None:
    @locks.singleton("a")
    def plain(payload: dict[str, Any]) -> Any:
        return payload["x"]

    @locks.singleton("b", lease_as="lease")
    def with_lease(payload: dict[str, Any], *, lease: Lease) -> Any:
        return payload["x"]

    assert plain({"x": 1}).bit_length() == 1
    assert with_lease({"x": 1}).bit_length() == 1


def test_methods_keep_their_types(locks: Locks) -> None:
    class Shop:
        @locks.singleton("{item}")
        def sell(self, item: str) -> int:
            return len(str(item))

        @classmethod
        @locks.singleton("{item}")
        def find(cls, item: str) -> int:
            return len(item)

        @locks.locked("{item}")
        @staticmethod
        def count(item: str) -> int:
            return len(item)

        @locks.locked("{item}")
        @classmethod
        def name(cls, item: str) -> str:
            return item

    assert_type(Shop().sell("a"), int | None)
    assert_type(Shop.find("a"), int | None)
    assert_type(Shop.count("a"), int)
    assert_type(Shop.name("a"), str)
    Shop().sell(3)  # type: ignore[arg-type]


# A lease that the decorator passes


def test_the_other_arguments_are_known_if_the_lease_is_the_first(locks: Locks) -> None:
    @locks.locked("{order}", lease_as="lease")
    def charge(lease: Lease, order: int, *, fast: bool = False) -> str:
        return f"{lease.name} {order} {fast}"

    @locks.singleton("{order}", lease_as="lease")
    def once(lease: Lease, order: int) -> str:
        return f"{lease.name} {order}"

    @locks.singleton("{order}", lease_as="lease", default=0)
    def or_zero(lease: Lease, order: int) -> str:
        return f"{lease.name} {order}"

    @locks.singleton("{order}", lease_as="lease")
    def items(lease: Lease, order: int) -> Iterator[int]:
        yield lease.fence + order

    assert_type(charge(42), str)
    assert_type(charge(order=42, fast=True), str)
    assert_type(charge.__name__, str)
    assert_type(once(42), str | None)
    assert_type(or_zero(42), str | int)
    assert_type(items(42), Iterator[int])
    takes_a_number: Callable[[int], str] = charge
    assert takes_a_number(42) == "42 42 False"
    with pytest.raises(TypeError, match="missing a required argument: 'order'"):
        charge()  # type: ignore[call-arg]
    charge("42")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="callers do not pass it"):
        charge(42, lease=None)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing a required argument: 'order'"):
        once()  # type: ignore[call-arg]


def test_what_it_returns_is_known_wherever_the_lease_stands(locks: Locks) -> None:
    @locks.locked("{order}", lease_as="lease")
    def last(order: int, *, lease: Lease) -> str:
        return f"{lease.name} {order}"

    @locks.locked("{order}", lease_as="lease")
    def after_anything(order: object, *, lease: Lease) -> str:
        return f"{lease.name} {order}"

    @locks.singleton("{order}", lease_as="lease")
    def skipped(order: object, *, lease: Lease) -> str:
        return f"{lease.name} {order}"

    @locks.singleton("{order}", lease_as="lease")
    def talk(order: int, lease: Lease) -> Generator[int, None, str]:
        yield order
        return lease.name

    class Shop:
        @locks.locked("{item}", lease_as="lease")
        def sell(self, lease: Lease, item: str) -> int:
            return lease.fence + len(item)

        @staticmethod
        @locks.locked("{item}", lease_as="lease")
        def count(lease: Lease, item: str) -> int:
            return lease.fence + len(item)

        @classmethod
        @locks.singleton("{item}", lease_as="lease", default=0.5)
        def find(cls, item: str, *, lease: Lease) -> str:
            return f"{lease.name} {item}"

    assert_type(last(1), str)
    assert_type(last(order=1), str)
    assert_type(after_anything(1), str)
    assert_type(skipped(1), str | None)
    assert_type(talk(1), Generator[int, None, str | None])
    assert_type(Shop().sell("a"), int)
    assert_type(Shop.count("a"), int)
    assert_type(Shop.find("a"), str | float)
    with pytest.raises(TypeError):
        Shop.count()  # type: ignore[call-arg]


def test_an_any_among_the_parameters_is_not_made_an_error(locks: Locks) -> None:
    @locks.locked("a", lease_as="lease")
    def first(lease: Lease, payload: dict[str, Any]) -> str:
        return f"{lease.name} {payload}"

    @locks.locked("b", lease_as="lease")
    def last(payload: Any, *, lease: Lease) -> str:
        return f"{lease.name} {payload}"

    assert first({}).startswith("a")
    assert last({}).startswith("b")


def test_the_types_name_the_options_that_there_are() -> None:
    import inspect

    from lockfast._facades.signatures import LockedOptions, SingletonOptions
    from lockfast.primitives.manager import LockOptions

    for lock in (Locks.lock, lockfast.aio.AsyncLocks.lock):
        parameters = inspect.signature(lock).parameters.values()
        taken = {one.name for one in parameters if one.kind is one.KEYWORD_ONLY}
        assert taken == LockedOptions.__optional_keys__ == SingletonOptions.__optional_keys__ | {"wait"}
    for manager in (lockfast.DistributedLock, lockfast.aio.DistributedLock):
        for method in (manager.acquire, manager.lock, manager.with_lock):
            names = list(inspect.signature(method).parameters)
            assert set(names[names.index("timeout_seconds") :]) == LockOptions.__optional_keys__
