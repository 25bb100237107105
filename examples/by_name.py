"""The manager: a lock that is taken in one place and released in another, by its name alone.

A checkout is reserved by one request and finished by another one, minutes later, so there is no block of code that
could be the body of a `with`. The manager is the holder; it is not renewed, so what is forgotten ends by itself.
"""

from __future__ import annotations

import os
import tempfile
from multiprocessing import get_context

import lockfast


def begin_checkout(locks: lockfast.DistributedLock, order: int) -> lockfast.LockResult:
    return locks.acquire(f"order:{order}:checkout", timeout_seconds=300)


def checkout_was_paid(locks: lockfast.DistributedLock, order: int) -> bool:
    return locks.release(f"order:{order}:checkout")


def begin_on_another_host(url: str, order: int) -> tuple[bool, str | None]:
    with lockfast.DistributedLock(url, holder_id="another host") as locks:
        acquired, _, error = begin_checkout(locks, order)
        return acquired, error


def main(url: str) -> None:
    with lockfast.DistributedLock(url, holder_id="this host") as locks, get_context("spawn").Pool(1) as elsewhere:
        first = begin_checkout(locks, 42)
        assert first, first.error
        again = begin_checkout(locks, 42)  # the customer pressed the button twice: it is extended
        assert again.fence == first.fence

        acquired, error = elsewhere.apply(begin_on_another_host, (url, 42))
        print("on another host:", error)
        assert not acquired

        assert checkout_was_paid(locks, 42)
        assert not checkout_was_paid(locks, 42), "it was not ours any more"
        acquired, error = elsewhere.apply(begin_on_another_host, (url, 42))
        assert acquired, error

        begin_checkout(locks, 43)
        begin_checkout(locks, 44)
        print("released at the end:", released := locks.release_all())
        assert released == 2
        elsewhere.close()
        elsewhere.join()
    print("one host at a time had the checkout, and any request could release it")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(os.environ.get("LOCKFAST_URL") or f"sqlite:///{folder}/locks.db")
