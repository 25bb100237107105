"""A listener that calls a library with mutexes of its own harms nobody: no thread, no child of a fork, no caller."""

from __future__ import annotations

import logging
import os
import threading

import pytest

from lockfast.observe.events import Event, Events
from lockfast.observe.shielding import ShieldedListener, listen_once
from tests.observe.numbers import event
from tests.servers.waiting import happens, join


def test_an_event_in_the_middle_of_a_call_is_passed_on_after_it() -> None:
    library = threading.Lock()  # as in a client library: not to be taken twice
    seen: list[str] = []

    def count(one: Event) -> None:
        assert library.acquire(blocking=False)
        if one.claim_id == "outer":
            listener(event("asked", "of a finalizer"))
            other(event("asked", "to another registry"))
        seen.append(one.claim_id)
        library.release()

    listener, other = ShieldedListener(count, "metrics"), ShieldedListener(count, "other metrics")
    listener(event("asked", "outer"))
    assert seen == ["outer", "of a finalizer", "to another registry"]


def test_an_error_of_the_library_is_logged_once_and_raised_never(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Event] = []

    def fail(one: Event) -> None:
        seen.append(one)
        raise OSError("no space left on device")

    listener = ShieldedListener(fail, "metrics")
    with caplog.at_level(logging.ERROR, "lockfast"):
        for _ in range(3):
            listener(event("asked"))
    assert len(seen) == 3
    assert [record.getMessage() for record in caplog.records] == [
        "metrics fail, and are incomplete; further errors are not logged"
    ]


def test_an_interrupt_in_the_middle_leaves_nothing_marked() -> None:
    seen: list[str] = []

    def count(one: Event) -> None:
        seen.append(one.claim_id)
        if one.claim_id == "first":
            raise KeyboardInterrupt

    listener = ShieldedListener(count, "metrics")
    with pytest.raises(KeyboardInterrupt):
        listener(event("asked", "first"))
    listener(event("asked", "second"))
    assert seen == ["first", "second"]


def test_a_fork_waits_until_no_thread_is_in_the_middle_of_a_call() -> None:
    library = threading.Lock()
    inside, forks = threading.Event(), threading.Event()
    os.register_at_fork(before=forks.set)  # called before ours: the last one registered is the first

    def count(one: Event) -> None:
        with library:
            if one.claim_id == "slow":
                inside.set()
                happens(forks)

    listener = ShieldedListener(count, "metrics")
    thread = threading.Thread(target=listener, args=(event("asked", "slow"),))
    thread.start()
    happens(inside)
    pid = os.fork()
    if pid == 0:
        free = library.acquire(blocking=False)
        if free:
            library.release()
            listener(event("asked"))
        os._exit(0 if free else 1)
    join(thread)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_listener_is_subscribed_once() -> None:
    events, seen = Events(), list[Event]()
    for _ in range(2):
        listen_once(events, seen.append)
    events.emit(event("asked"))
    assert len(seen) == 1
