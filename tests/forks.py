"""What a child of a fork may do while a thread of its parent is in the middle of a step.

Decides: how a test asks that. The thread goes on afterwards: a mutex that it kept would later count as held by any
thread that has its number.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from lockfast._reentry import Mutex
from tests.servers.waiting import happens, join


def child_may_take(mutex: Callable[[], Mutex]) -> bool:
    """Whether the child finds the mutex free that a thread of its parent holds."""
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with mutex():
            held.set()
            happens(go_on)

    thread = threading.Thread(target=hold)
    thread.start()
    happens(held)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if mutex().acquire(timeout=0) else 1)
    go_on.set()
    join(thread)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
