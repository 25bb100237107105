"""Which requests for the lock table travel together, and which go first, when a transaction has locked a name."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from lockfast.backends.postgres.io.endpoint import endpoint_of_url
from lockfast.backends.postgres.io.refusals import NameInUse, StatementRefused
from lockfast.backends.postgres_table.io.asyncio_ import AsyncioPostgres
from lockfast.backends.postgres_table.io.batching import (
    MAX_CONNECTIONS,
    RETRY_ALONE,
    RETRY_BLOCKED,
    Many,
    TableRequest,
    failures_of,
    replies_of,
    statement_for,
)
from lockfast.backends.postgres_table.io.blocking import BlockingPostgres, _PendingRequest
from lockfast.backends.postgres_table.io.connections_asyncio import PendingTableRequest
from lockfast.backends.postgres_table.io.session import PreparedStatement
from lockfast.errors import BackendUnavailable

MANY = Many(PreparedStatement(b"many", b""), (("release", 6), ("acquire", 3)))
PLACE = endpoint_of_url(urlsplit("postgresql://localhost/db"))


def _asked_for(name: str, *, blocked: bool = False) -> TableRequest:
    request = TableRequest(PreparedStatement(b"", b""), ("", name, "claim"), ("250", None), "acquire")
    request.blocked = blocked
    return request


def _names(batch: Iterable[TableRequest]) -> list[str | None]:
    return [request.columns[1] for request in batch]


def test_blocked_requests_go_together_and_let_others_first_every_second_time() -> None:
    driver = BlockingPostgres(PLACE, None, MANY, 0)
    stuck = [_asked_for(name, blocked=True) for name in ("a", "b", "a", "c")]
    driver._waiting = [_PendingRequest(request, 0.0) for request in (*stuck, _asked_for("free"), _asked_for("other"))]
    sent = []
    while driver._waiting:
        first = driver._first_to_lead()
        driver._waiting.remove(first)
        sent.append(_names([first.request, *(one.request for one in driver._taken_along(first))]))
    assert sent == [["a", "a"], ["free", "other"], ["b"], ["c"]]


def test_blocked_requests_of_tasks_go_together_and_let_others_first_every_second_time() -> None:
    async def story() -> list[list[str | None]]:
        driver = AsyncioPostgres(PLACE, None, MANY, 0)
        stuck = [_asked_for(name, blocked=True) for name in ("a", "b", "a", "c")]
        futures = [asyncio.get_running_loop().create_future() for _ in range(7)]
        batch = (*stuck, _asked_for("gone"), _asked_for("free"), _asked_for("other"))
        driver._waiting.extend(
            PendingTableRequest(request, future, 0.0) for request, future in zip(batch, futures, strict=True)
        )
        futures[4].cancel()
        sent = []
        while driver._waiting:
            sent.append(_names(ticket.request for ticket in driver._next_batch(1)))
        return sent

    assert asyncio.run(story()) == [["a", "a"], ["free", "other"], ["b"], ["c"]]


def test_a_request_that_no_connection_was_free_for_was_not_sent() -> None:
    driver = BlockingPostgres(PLACE, None, MANY, 0)
    driver._free.clear()
    driver._spare.clear()
    with pytest.raises(BackendUnavailable, match="did not answer in time") as raised:
        driver._ask(_asked_for("a"), 0.01)
    assert not raised.value.sent


def test_a_request_of_a_task_that_no_connection_was_free_for_was_not_sent() -> None:
    async def story() -> None:
        driver = AsyncioPostgres(PLACE, None, MANY, 0)
        at_work: Any = SimpleNamespace(since=math.inf, probing=False, batch=[])
        driver._begin()
        driver._busy = [at_work] * MAX_CONNECTIONS
        with pytest.raises(BackendUnavailable, match="did not answer in time") as raised:
            await driver.ask(_asked_for("a"), 0.01)
        assert not raised.value.sent

    asyncio.run(story())


def test_only_those_of_one_name_wait_for_it_and_only_as_long_as_the_least_patient() -> None:
    patient, hasty = _asked_for("a", blocked=True), _asked_for("a", blocked=True)
    hasty.tail = ("50", None)
    assert statement_for([patient, hasty], MANY)[1][-2:] == [b"50", None]
    assert statement_for([_asked_for("a"), _asked_for("b")], MANY)[1][-2:] == [None, None]


def test_what_becomes_of_blocked_requests() -> None:
    first, second = _asked_for("a"), _asked_for("b")
    assert replies_of([first, second], [[], [None, {}]], MANY) == [RETRY_BLOCKED, {}]
    RETRY_BLOCKED.prepare(first)
    assert (first.blocked, first.alone) == (True, False)
    in_use, fault = NameInUse("in use"), StatementRefused("bad")
    both = [_asked_for("a", blocked=True)] * 2
    assert failures_of(both, in_use) == [in_use] * 2, "it is in use for all of them"
    assert failures_of(both, fault) == [RETRY_ALONE] * 2, "it may be the fault of one"
    assert failures_of([_asked_for("a"), _asked_for("b")], in_use) == [RETRY_ALONE] * 2, "it may be the name of one"
