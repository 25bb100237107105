"""How requests for the lock table become one statement, and what becomes of each."""

from __future__ import annotations

from lockfast.backends.postgres.io.refusals import NameInUse, StatementRefused
from lockfast.backends.postgres_table.io.batching import (
    RETRY_ALONE,
    RETRY_BLOCKED,
    Many,
    TableRequest,
    failures_of,
    replies_of,
    statement_for,
)
from lockfast.backends.postgres_table.io.session import PreparedStatement

MANY = Many(PreparedStatement(b"many", b""), (("release", 6), ("acquire", 3)))


def _asked_for(name: str, *, blocked: bool = False) -> TableRequest:
    request = TableRequest(PreparedStatement(b"", b""), ("", name, "claim"), ("250", None), "acquire")
    request.blocked = blocked
    return request


def test_only_a_batch_for_one_name_waits_for_it_and_as_long_as_its_least_patient_request() -> None:
    patient, hasty = _asked_for("a", blocked=True), _asked_for("a", blocked=True)
    hasty.tail = ("50", None)
    assert statement_for([patient, hasty], MANY)[1][-2:] == [b"50", None]
    assert statement_for([_asked_for("a"), _asked_for("b")], MANY)[1][-2:] == [None, None]


def test_a_request_whose_name_is_locked_is_sent_again_with_others_of_that_name() -> None:
    first, second = _asked_for("a"), _asked_for("b")
    assert replies_of([first, second], [[], [None, {}]], MANY) == [RETRY_BLOCKED, {}]
    RETRY_BLOCKED.prepare(first)
    assert (first.blocked, first.alone) == (True, False)
    in_use, fault = NameInUse("in use"), StatementRefused("bad")
    both = [_asked_for("a", blocked=True)] * 2
    assert failures_of(both, in_use) == [in_use] * 2, "it is in use for all of them"
    assert failures_of(both, fault) == [RETRY_ALONE] * 2, "it may be the fault of one"
    assert failures_of([_asked_for("a"), _asked_for("b")], in_use) == [RETRY_ALONE] * 2, "it may be the name of one"
