"""A thread that waits for a lock that another client holds, as long as it takes."""

from __future__ import annotations

import threading

import lockfast
from tests.servers.waiting import until


def in_queue(lock: lockfast.Lock, locks: lockfast.Locks) -> threading.Thread:
    """One that takes and releases the lock once it can; it stands in the queue when this returns.

    A short `wait` would not do: on a busy machine it may pass before the server has received the request.
    """

    def take_and_release() -> None:
        with lock:
            pass

    thread = threading.Thread(target=take_and_release)
    before = locks.inspect(lock.name).waiters
    thread.start()
    until(lambda: locks.inspect(lock.name).waiters == before + 1, "one more to wait")
    return thread
