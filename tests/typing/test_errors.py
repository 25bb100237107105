"""The errors and the facts that they carry, as a type checker sees them."""

from __future__ import annotations

from typing import assert_type

import pytest

import lockfast
from lockfast import AcquireTimeout, BackendUnavailable, LeaseLost, LockError, NotHeld, Unsupported


def test_an_error_carries_its_facts_as_attributes() -> None:
    with lockfast.connect("memory://typing-errors") as locks, locks.lock("order:42"):
        with pytest.raises(AcquireTimeout) as caught:
            locks.lock("order:42", wait=0).__enter__()
    error = caught.value
    assert_type(error, AcquireTimeout)
    assert_type(error.name, str | None)
    assert_type(error.waited, float)
    assert_type(error.holder, str | None)


def facts_of_a_loss(error: LeaseLost) -> None:
    assert_type(error.name, str | None)
    assert_type(error.fence, int)
    assert_type(error.holder, str | None)
    assert_type(error.held_for, float)
    assert_type(error.reason, str)


def test_each_error_is_caught_by_its_kin() -> None:
    facts_of_a_loss(LeaseLost("lost", name="order:42"))
    assert_type(BackendUnavailable("down").transient, bool)
    as_timeout: TimeoutError = AcquireTimeout("late")
    as_runtime: RuntimeError = NotHeld("not held")
    as_lock: list[LockError] = [LeaseLost("lost"), Unsupported("no"), BackendUnavailable("down"), NotHeld("not held")]
    assert isinstance(as_timeout, LockError)
    assert isinstance(as_runtime, LockError)
    assert all(isinstance(error, LockError) for error in as_lock)
