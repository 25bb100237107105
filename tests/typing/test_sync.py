"""`lockfast` as a type checker sees it."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from datetime import timedelta
from typing import Any, assert_type

import pytest

import lockfast
from lockfast import Diagnosis, Lease, Lock, LockInfo, Locks, MultiLease, MultiLock
from lockfast.testing import FakeClock


def test_connecting_gives_locks() -> None:
    plain = lockfast.connect("memory://typing")
    assert_type(plain, Locks)
    full = lockfast.connect(
        "memory://typing",
        holder="worker-7",
        namespace="shop",
        patience=timedelta(seconds=5),
        retry=lockfast.Backoff(base=0.1, cap=timedelta(seconds=2), jitter=0.5),
        clock=FakeClock(),
    )
    assert_type(full, Locks)
    assert_type(full.holder, str)
    with lockfast.connect("memory://typing") as locks:
        assert_type(locks, Locks)
    full.close()


def test_a_lock_takes_seconds_or_a_timedelta() -> None:
    def lost(lease: Lease) -> None:
        assert_type(lease.fence, int)

    with lockfast.connect("memory://typing") as locks:
        assert_type(locks.lock("order:42"), Lock)
        every = locks.lock(
            "order:42",
            ttl=timedelta(seconds=30),
            wait=0.5,
            renew=False,
            reentrant=True,
            metadata={"order": 42, "steps": ["charge"]},
            min_hold=0,
            on_lost=lost,
        )
        assert_type(every, Lock)
        assert_type(locks.lock("order:42", renew_every=5, max_hold=timedelta(hours=1)), Lock)
        assert_type(locks.semaphore("seats", 2, renew_every=5.5, max_hold=3600), Lock)
        assert_type(locks.rwlock("prices", renew_every=None, max_hold=None).read(), Lock)
        assert_type(locks.all("a", "b", renew_every=5, max_hold=3600), lockfast.MultiLock)
        assert_type(locks.election("lead", renew_every=5, max_hold=3600), lockfast.Election)
        locks.locked("order:{id}", renew_every=5, max_hold=3600)
        locks.singleton("cron", renew_every=5, max_hold=3600)


def test_entering_gives_the_lease() -> None:
    with lockfast.connect("memory://typing") as locks:
        with locks.lock("order:42", ttl=30, wait=30) as lease:
            assert_type(lease, Lease)
            assert_type(lease.name, str)
            assert_type(lease.fence, int)
            assert_type(lease.holder, str)
            assert_type(lease.claim_id, str)
            assert_type(lease.acquired_at, float)
            assert_type(lease.expires_at, float)
            assert_type(lease.ttl, float)
            assert_type(lease.metadata, Any)
            assert_type(lease.held, bool)
            assert_type(lease.lost, bool)
            assert_type(lease.remaining, float)
            lease.check()
            assert_type(lease.extend(), None)
            assert_type(lease.extend(timedelta(seconds=60)), None)
            assert_type(lease.release(), bool)


def test_acquiring_may_give_none() -> None:
    with lockfast.connect("memory://typing") as locks:
        lock = locks.lock("order:42")
        lease = lock.acquire(timeout=10)
        assert_type(lease, Lease | None)
        if lease is not None:
            assert_type(lease, Lease)
        assert_type(lock.acquire(False), Lease | None)
        assert_type(lock.acquire(blocking=True, timeout=0), Lease | None)
        assert_type(lock.locked(), bool)
        with pytest.raises(AttributeError):  # it is held, so there is no lease to have a fence
            lock.acquire(False).fence.bit_length()  # type: ignore[union-attr]
        lock.release()


def test_inspecting_from_outside() -> None:
    with lockfast.connect("memory://typing") as locks:
        info = locks.inspect("order:42")
        assert_type(info, LockInfo)
        assert_type(info.locked, bool)
        assert_type(info.waiters, int)
        assert_type(info.as_dict(), dict[str, Any])
        for holder in info.holders:
            assert_type(holder, lockfast.HolderInfo)
            assert_type(holder.fence, int | None)
            assert_type(holder.expires_at, float)
        assert_type(locks.list("order:"), list[LockInfo])
        assert_type(locks.break_lock("order:42"), LockInfo)
        assert_type(locks.doctor(), Diagnosis)


def an_integer_is_a_key_of_advisory_locks(locks: Locks) -> None:
    assert_type(locks.lock(42), Lock)
    assert_type(locks.rwlock(42).read(), Lock)
    assert_type(locks.all(42, "order:42"), MultiLock)
    assert_type(locks.inspect(42), LockInfo)
    assert_type(locks.break_lock(42), LockInfo)
    locks.semaphore(42, 3)  # type: ignore[arg-type]


def test_mistakes_are_caught_before_they_run() -> None:
    with pytest.raises(ValueError, match=r"retry must be a lockfast.Backoff, not 3"):
        lockfast.connect("memory://typing", retry=3)  # type: ignore[arg-type]
    with lockfast.connect("memory://typing") as locks:
        with pytest.raises(ValueError, match="max_hold"):
            locks.lock("order:42", max_hold="1h")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="string"):
            locks.lock(4.2)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="ttl"):
            locks.lock("order:42", ttl="30")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            locks.lock("order:42", 30)  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            locks.lock("order:42", timeout=30)  # type: ignore[call-arg]
        with locks.lock("order:42") as lease, pytest.raises(AttributeError):
            lease.fence = 7  # type: ignore[misc]


def test_a_lock_is_a_context_manager_that_a_stack_takes() -> None:
    with lockfast.connect("memory://typing") as locks, ExitStack() as stack:
        assert_type(stack.enter_context(locks.lock("stack")), Lease)
        assert_type(stack.enter_context(locks.all("stack:1", "stack:2")), MultiLease)
        assert_type(stack.enter_context(locks.election("stack:3")), Lease)
        manager: AbstractContextManager[Lease] = locks.lock("stack:4")
        with manager as lease:
            assert_type(lease, Lease)
