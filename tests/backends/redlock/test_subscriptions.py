"""The inbox of a quorum: closed with its `Locks`, whatever became of its subscriptions."""

from __future__ import annotations

from typing import Any

import lockfast
from lockfast import BackendUnavailable

NOWHERE = "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"
ALL = range(3)


def test_an_inbox_for_which_no_server_could_be_subscribed_to_is_closed() -> None:
    with lockfast.connect(NOWHERE) as locks:
        backend: Any = locks._logic.engine.backend
        fanout = backend._fanout
        assert [type(error) for error in fanout._subscribe(ALL, 1.0)] == [BackendUnavailable] * 3
        inbox = fanout.wakeups.inbox()
    assert [end.fileno() for end in (inbox._reader, inbox._writer)] == [-1, -1]


def test_no_inbox_is_made_once_all_is_closed() -> None:
    with lockfast.connect(NOWHERE) as locks:
        backend: Any = locks._logic.engine.backend
    errors = backend._fanout._subscribe(ALL, 1.0)
    assert all("this Locks is closed; connect again" in str(error) for error in errors)
    assert backend._fanout.wakeups._inbox is None
