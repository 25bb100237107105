"""What can be observed, and with what, as a type checker sees it."""

from __future__ import annotations

from typing import assert_type

import pytest

import lockfast
from lockfast.observe import otel, prometheus


def every_kind_of_locks_can_be_observed(
    locks: lockfast.Locks,
    awaited: lockfast.aio.AsyncLocks,
    manager: lockfast.DistributedLock,
    awaited_manager: lockfast.aio.AsyncDistributedLock,
) -> None:
    for one in (locks, awaited, manager, awaited_manager):
        prometheus.install(one)
        otel.install(one)
        assert_type(one.stats(), lockfast.Stats)
    prometheus.install(locks.lock("a"))  # type: ignore[arg-type]
    assert_type(locks.stats().of("lease.count", pattern="order:{n}"), lockfast.Measured)
    assert_type(locks.stats().of("acquire.wait_time").mean, float)


def test_what_observes_is_a_list_of_names_and_functions() -> None:
    def install(_: lockfast.Locks) -> None: ...

    with lockfast.connect("memory://typing-observe", observe=["stats", install, prometheus.install]) as locks:
        assert_type(locks, lockfast.Locks)
    assert_type(lockfast.aio.connect("memory://typing-observe", observe=("stats",)), lockfast.aio.AsyncLocks)
    with pytest.raises(ValueError, match="not 3"):
        lockfast.connect("memory://typing-observe", observe=[3])  # type: ignore[list-item]
