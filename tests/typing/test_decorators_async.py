"""Decorated coroutine functions and async generators as a type checker sees them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, assert_type

import pytest

import lockfast
from lockfast.aio import AsyncLease, AsyncLocks


def a_misspelt_option_is_an_error_everywhere(locks: AsyncLocks) -> None:
    with pytest.raises(TypeError, match="tll"):
        locks.lock("x", tll=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"a lock has no option 'tll'; did you mean 'ttl'\?"):
        locks.locked("x", tll=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="tll"):
        locks.singleton("x", tll=3)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="skips instead of waiting"):
        locks.singleton("x", wait=3)  # type: ignore[call-overload]


def only_what_is_asynchronous_can_be_decorated(locks: AsyncLocks) -> None:
    def plain() -> int:
        return 1

    with pytest.raises(TypeError, match="not asynchronous"):
        locks.locked("x")(plain)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="not asynchronous"):
        locks.singleton("x")(plain)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="not asynchronous"):
        locks.singleton("x", default=0)(plain)  # type: ignore[arg-type]


async def a_call_that_may_be_skipped_may_return_the_default(locks: AsyncLocks) -> None:
    @locks.singleton("a")
    async def plain(x: int) -> str:
        return str(x)

    @locks.singleton("b", default=None)
    async def with_none(x: int) -> str:
        return str(x)

    @locks.singleton("c", default=0)
    async def with_number(x: int) -> str:
        return str(x)

    assert_type(await plain(1), str | None)
    assert_type(await with_none(1), str | None)
    assert_type(await with_number(1), str | int)
    (await plain(1)).upper()  # type: ignore[union-attr]
    with pytest.raises(TypeError):
        await plain(1, 2)  # type: ignore[call-arg]


async def a_generator_that_is_skipped_yields_nothing(locks: AsyncLocks) -> None:
    @locks.singleton("a")
    async def items() -> AsyncIterator[int]:
        yield 1

    @locks.singleton("b", lease_as="lease")
    async def talk(lease: AsyncLease, x: int) -> AsyncGenerator[int, str]:
        yield lease.fence + x

    @locks.locked("c", lease_as="lease")
    async def more(x: int, *, lease: AsyncLease) -> AsyncGenerator[int, str]:
        yield lease.fence + x

    assert_type(items(), AsyncIterator[int])
    assert_type(talk(1), AsyncGenerator[int, str])
    assert_type(more(1), AsyncGenerator[int, str])


async def the_other_arguments_are_known_if_the_lease_is_the_first(locks: AsyncLocks) -> None:
    @locks.locked("{order}", lease_as="lease")
    async def charge(lease: AsyncLease, order: int, *, fast: bool = False) -> str:
        return f"{lease.name} {order} {fast}"

    @locks.singleton("{order}", lease_as="lease")
    async def once(lease: AsyncLease, order: int) -> str:
        return f"{lease.name} {order}"

    @locks.singleton("{order}", lease_as="lease", default=0)
    async def or_zero(lease: AsyncLease, order: int) -> str:
        return f"{lease.name} {order}"

    assert_type(await charge(42), str)
    assert_type(await charge(order=42, fast=True), str)
    assert_type(await once(42), str | None)
    assert_type(await or_zero(42), str | int)
    with pytest.raises(TypeError, match="missing a required argument: 'order'"):
        await charge()  # type: ignore[call-arg]
    await charge("42")  # type: ignore[arg-type]


async def what_it_returns_is_known_wherever_the_lease_stands(locks: AsyncLocks) -> None:
    @locks.locked("{order}", lease_as="lease")
    async def last(order: object, *, lease: AsyncLease) -> str:
        return f"{lease.name} {order}"

    class Shop:
        @locks.locked("{item}", lease_as="lease")
        async def sell(self, item: str, lease: AsyncLease) -> int:
            return lease.fence + len(item)

        @locks.singleton("{item}", lease_as="lease")
        async def find(self, item: str, *, lease: AsyncLease) -> int:
            return lease.fence + len(item)

        @locks.singleton("{item}")
        async def count(self, item: str) -> int:
            return len(str(item))

        @locks.locked("{item}")
        @classmethod
        async def name(cls, item: str) -> str:
            return item

    assert_type(await last(1), str)
    assert_type(await Shop().sell("a"), int)
    assert_type(await Shop().find("a"), int | None)
    assert_type(await Shop().count("a"), int | None)
    assert_type(await Shop.name("a"), str)
    await Shop().count(3)  # type: ignore[arg-type]


async def an_any_is_not_made_an_error(locks: AsyncLocks) -> None:
    @locks.locked("a", lease_as="lease")
    async def first(lease: AsyncLease, payload: dict[str, Any]) -> Any:
        return payload["x"]

    @locks.singleton("b", lease_as="lease")
    async def last(payload: Any, *, lease: AsyncLease) -> Any:
        return payload["x"]

    @locks.singleton("c")
    async def plain(payload: Any) -> Any:
        return payload["x"]

    assert (await first({"x": 1})).bit_length() == 1
    assert await last({"x": 1}) == 1
    assert_type(await plain({"x": 1}), Any | None)


async def an_election_returns_what_the_leader_does(locks: AsyncLocks) -> None:
    async def lead(lease: AsyncLease) -> str:
        return lease.name

    assert_type(await locks.election("a").run(lead), str)
    assert_type(await locks.election("a").run(lambda lease: lease.fence), int)


def test_the_awaited_decorators_are_typed_like_the_others() -> None:
    async def all_of_it() -> None:
        async with lockfast.aio.connect("memory://typing-decorators-async") as locks:
            a_misspelt_option_is_an_error_everywhere(locks)
            only_what_is_asynchronous_can_be_decorated(locks)
            await a_call_that_may_be_skipped_may_return_the_default(locks)
            await a_generator_that_is_skipped_yields_nothing(locks)
            await the_other_arguments_are_known_if_the_lease_is_the_first(locks)
            await what_it_returns_is_known_wherever_the_lease_stands(locks)
            await an_any_is_not_made_an_error(locks)
            await an_election_returns_what_the_leader_does(locks)

    asyncio.run(all_of_it())
