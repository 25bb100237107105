"""A lock object that is made for each use: what was valid once is not checked again, and nothing else is taken over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

import lockfast
from lockfast.primitives.locks import MAX_KNOWN_OPTIONS, MAX_KNOWN_REQUESTS


@pytest.fixture
def locks() -> Iterator[lockfast.Locks]:
    with lockfast.connect("memory://new-lock-objects") as locks:
        yield locks


def test_an_option_is_checked_though_it_equals_one_that_was_valid(locks: lockfast.Locks) -> None:
    locks.lock("x", ttl=1)
    with pytest.raises(ValueError, match="ttl must be seconds"):
        locks.lock("x", ttl=True)
    with pytest.raises(ValueError, match="renew must be True or False, not 1"):
        locks.lock("x", ttl=1, renew=1)  # type: ignore[arg-type]


def test_an_option_that_cannot_be_hashed_is_refused_as_any_other(locks: lockfast.Locks) -> None:
    with pytest.raises(ValueError, match="ttl must be seconds"):
        locks.lock("x", ttl=[30])  # type: ignore[arg-type]


def test_a_bad_name_is_refused_each_time(locks: lockfast.Locks) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="must not be empty"):
            locks.lock("")


def test_two_objects_with_the_same_options_hold_one_after_the_other(locks: lockfast.Locks) -> None:
    first, second = locks.lock("x", wait=0), locks.lock("x", wait=0)
    with first as lease:
        assert second.acquire() is None
        with pytest.raises(lockfast.NotHeld):
            second.release()
    assert not lease.held


def test_objects_differ_in_each_option(locks: lockfast.Locks) -> None:
    plain: dict[str, Any] = {"ttl": 30, "wait": None, "renew": True, "reentrant": False}
    plain |= {"min_hold": 0, "max_hold": None, "renew_every": None, "pattern": None}
    others: dict[str, Any] = {"ttl": 20, "wait": 1, "renew": False, "reentrant": True}
    others |= {"min_hold": 2, "max_hold": 60, "renew_every": 5, "pattern": "x of ours"}
    before = locks.lock("x", **plain)._logic.request
    for option, value in others.items():
        request = locks.lock("x", **{**plain, option: value})._logic.request
        changed = {**request.fields(), "ttl": request.terms.ttl}
        same = {**before.fields(), "ttl": before.terms.ttl}
        assert {key for key in same if key != "terms" and changed[key] != same[key]} == {option}
        assert changed[option] == value
    assert locks.lock("x", metadata={"a": 1})._logic.request.terms.metadata == '{"a":1}'
    assert locks.lock("x", metadata={"a": True})._logic.request.terms.metadata == '{"a":true}'
    assert locks.lock("x")._logic.request.fields() == before.fields()


def test_objects_with_the_same_options_differ_in_their_names() -> None:
    locks = lockfast.connect("memory://new-lock-objects", namespace="shop")
    first, second = (locks.lock(name, wait=1)._logic.request for name in ("x", "y"))
    assert (first.terms.name, first.terms.key) == ("x", locks.lock("x", wait=2)._logic.request.terms.key)
    assert (second.terms.name, second.terms.key) == ("y", locks.lock("y", wait=2)._logic.request.terms.key)
    assert first.terms.key != second.terms.key != "y"
    with pytest.raises(ValueError, match="control characters"):
        locks.lock("x\n", wait=1)


def test_what_is_remembered_is_bounded(locks: lockfast.Locks) -> None:
    for number in range(MAX_KNOWN_REQUESTS + 10):
        locks.lock(f"x{number}", ttl=number + 1)
    assert locks._logic._known_request.cache_info().currsize == MAX_KNOWN_REQUESTS
    assert locks._logic._known_options.cache_info().currsize == MAX_KNOWN_OPTIONS


def test_in_the_child_of_a_fork_a_new_object_has_the_child_s_holder(locks: lockfast.Locks) -> None:
    locks.lock("x")
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, f"{locks.lock('x')._logic.request.terms.holder} {locks.holder}".encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with open(reading) as answer:
        of_request, of_locks = answer.read().split()
    assert of_request == of_locks != locks.holder
