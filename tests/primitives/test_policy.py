"""What a caller may choose of renewals and retries reaches every primitive, in both worlds, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import lockfast
from lockfast import Backoff
from lockfast.engine.request import Request

WORLDS = pytest.mark.parametrize("connect", [lockfast.connect, lockfast.aio.connect], ids=["threads", "asyncio"])

MAKERS: dict[str, tuple[Callable[..., Any], Callable[[Any], list[Request]]]] = {
    "lock": (lambda locks, **policy: locks.lock("a", **policy), lambda logic: [logic.request]),
    "semaphore": (lambda locks, **policy: locks.semaphore("a", 2, **policy), lambda logic: [logic.request]),
    "rwlock": (lambda locks, **policy: locks.rwlock("a", **policy), lambda logic: [logic._read, logic._write]),
    "all": (lambda locks, **policy: locks.all("a", "b", **policy), lambda logic: logic._requests),
    "election": (lambda locks, **policy: locks.election("a", **policy), lambda logic: [logic._request]),
}


@WORLDS
@pytest.mark.parametrize("maker", MAKERS)
def test_every_primitive_takes_the_policy_of_its_renewals(connect: Callable[..., Any], url: str, maker: str) -> None:
    make, requests_of = MAKERS[maker]
    chosen = requests_of(make(connect(url), ttl=30, max_hold=timedelta(minutes=2), renew_every=5)._logic)
    assert [(request.max_hold, request.renew_every) for request in chosen] == [(120.0, 5.0)] * len(chosen)
    usual = requests_of(make(connect(url))._logic)
    assert [(request.max_hold, request.renew_every) for request in usual] == [(None, None)] * len(usual)


@WORLDS
@pytest.mark.parametrize("maker", MAKERS)
def test_renewals_too_rare_for_the_ttl_are_refused(connect: Callable[..., Any], url: str, maker: str) -> None:
    make, _ = MAKERS[maker]
    with pytest.raises(ValueError, match="renew_every must be at most 90% of the ttl of 30 seconds, not 30"):
        make(connect(url), ttl=30, renew_every=30)


def test_a_decorated_function_runs_with_the_policy_of_its_lock(locks: lockfast.Locks) -> None:
    @locks.locked("a", max_hold=60, renew_every=5, lease_as="lease")
    def work(lease: lockfast.Lease) -> tuple[object, object]:
        return lease._request.max_hold, lease._request.renew_every

    @locks.singleton("b", max_hold=60, renew_every=5, lease_as="lease")
    def alone(lease: lockfast.Lease) -> tuple[object, object]:
        return lease._request.max_hold, lease._request.renew_every

    assert work() == alone() == (60.0, 5.0)


CONNECTS: list[Callable[..., Any]] = [
    lockfast.connect,
    lockfast.aio.connect,
    lockfast.DistributedLock,
    lockfast.aio.AsyncDistributedLock,
]


def _engine(made: Any) -> Any:
    logic = made._logic
    return getattr(logic, "locks", logic).engine


@pytest.mark.parametrize("connect", CONNECTS, ids=["threads", "asyncio", "manager", "asyncio's manager"])
def test_the_pauses_between_retries_can_be_chosen(connect: Callable[..., Any], url: str) -> None:
    chosen = Backoff(base=0.1, cap=timedelta(seconds=2), jitter=0.5)
    assert _engine(connect(url, retry=chosen)).retry == chosen == (0.1, 2.0, 0.5)
    assert _engine(connect(url)).retry == Backoff() == (0.02, 1.0, 1.0)
    with pytest.raises(ValueError, match=r"retry must be a lockfast\.Backoff, not 3"):
        connect(url, retry=3)
