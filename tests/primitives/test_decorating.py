"""What cannot work is refused when decorating, not when called."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from lockfast import Locks


def _one(job_id: int) -> None: ...
def _none() -> None: ...
def _positional(lease: Any, /, *rest: Any, **options: Any) -> None: ...
def _items() -> Iterator[int]:
    yield 1


async def _coroutine() -> None: ...


def _gives_a_coroutine() -> Any:
    return _coroutine()


async def _async_items() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "template", "options", "said"),
    [
        (_one, "job:{id}", {}, r"'job:{id}' names 'id', but _one\(\) has only job_id"),
        (_none, "job:{id}", {}, r"names 'id', but _none\(\) has no parameters"),
        (_one, "job:{id.x[0]}", {}, "names 'id'"),
        (_one, "job:{job_id:{width}}", {}, "names 'width'"),
        (_one, "job:{}", {}, r"has a field without a name, but _one\(\) has only job_id"),
        (_one, "job:{0}", {}, "has a field without a name"),
        (_one, "job:{job_id", {}, "is no template for a name"),
        (_one, "job:{job_id.}", {}, "is no template for a name"),
        (_one, "job:{job_id!x}", {}, "is no template for a name"),
        (_one, "", {}, "must not be empty"),
        (_one, "a\nb:{job_id}", {}, "control characters"),
        (_one, 42, {}, "must be a string"),
        (_one, "job", {"ttl": 0}, "ttl must be a positive"),
        (_one, "job", {"wait": -1}, "wait must be"),
        (_one, "job", {"metadata": {1, 2}}, "metadata must be JSON"),
        (_one, "job", {"lease_as": "lease"}, r"_one\(\) has no parameter 'lease'"),
        (_one, "job:{job_id}", {"lease_as": "job_id"}, r"names 'job_id', but _one\(\) has no parameters"),
        (_positional, "job", {"lease_as": "lease"}, "cannot be given by its name"),
        (_positional, "job", {"lease_as": "rest"}, "cannot be given by its name"),
        (_positional, "job", {"lease_as": "options"}, "cannot be given by its name"),
    ],
)
def test_what_cannot_work_is_refused_when_decorating(
    locks: Locks, function: Callable[..., Any], template: Any, options: dict[str, Any], said: str
) -> None:
    for decorate in (locks.locked, locks.singleton):
        if decorate == locks.locked or "wait" not in options:
            with pytest.raises(ValueError, match=said):
                decorate(template, **options)(function)
    assert locks.list() == []


@pytest.mark.parametrize(
    "function", [_coroutine, _async_items, functools.partial(_coroutine), staticmethod(_coroutine)]
)
def test_what_is_asynchronous_is_refused_when_decorating(locks: Locks, function: Any) -> None:
    with pytest.raises(TypeError, match=r"is asynchronous; decorate it with the locks of lockfast\.aio"):
        locks.locked("job")(function)


@pytest.mark.parametrize("thing", [int, "text", None, 42])
def test_what_is_no_function_is_refused_when_decorating(locks: Locks, thing: Any) -> None:
    with pytest.raises(TypeError, match="only functions can be decorated"):
        locks.locked("job")(thing)


def test_an_unknown_option_is_refused_when_decorating(locks: Locks) -> None:
    with pytest.raises(TypeError, match=r"a lock has no option 'tll'; did you mean 'ttl'\?"):
        locks.locked("job", tll=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="a lock has no option 'colour'; known are ttl, wait, renew"):
        locks.singleton("job", colour="red")  # type: ignore[call-overload]


def test_a_singleton_refuses_to_wait_and_a_generator_a_default(locks: Locks) -> None:
    with pytest.raises(ValueError, match="skips instead of waiting, so wait=5 makes no sense"):
        locks.singleton("job", wait=5)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="yields nothing when it is skipped"):
        locks.singleton("job", default=0)(_items)


def test_a_function_that_turns_out_to_be_asynchronous_does_not_run_without_the_lock(locks: Locks) -> None:
    with pytest.raises(TypeError, match=r"returned a coroutine; decorate it with the locks of lockfast\.aio"):
        locks.locked("job")(_gives_a_coroutine)()
    assert locks.list() == []
