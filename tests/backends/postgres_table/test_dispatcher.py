"""Which request goes next, with which others, on which connection: decided without a server, a thread or a clock."""

from __future__ import annotations

import math
from typing import Any
from urllib.parse import urlsplit

import pytest

from lockfast.backends.postgres.io.endpoint import endpoint_of_url
from lockfast.backends.postgres.io.refusals import Broken, RolledBack, StatementRefused
from lockfast.backends.postgres_table.io.batching import (
    LISTEN_AGAIN_AFTER_S,
    MAX_BATCH,
    MAX_CONNECTIONS,
    MAX_SPARE,
    MIN_TO_SPLIT,
    RETRY_ALONE,
    RETRY_BLOCKED,
    STUCK_AFTER_S,
    Many,
    TableRequest,
)
from lockfast.backends.postgres_table.io.dispatcher import SILENT_AFTER_S, Dispatcher, DispatchStep, PendingRequest
from lockfast.backends.postgres_table.io.session import PreparedStatement
from lockfast.errors import BackendUnavailable

ENDPOINT = endpoint_of_url(urlsplit("postgresql://localhost/db"))
MANY = Many(PreparedStatement(b"many", b""), (("release", 6), ("acquire", 3)))
GONE = BackendUnavailable("gone")


class Connection:
    stale = False
    closed = False

    def close(self) -> None:
        self.closed = True


class Answer(list[Any]):
    """Where a result is put, in either world."""

    def done(self) -> bool:
        return bool(self)


class World:
    """A driver that does what it is told at once, and remembers it."""

    def __init__(self, *, blocking: bool) -> None:
        self.dispatcher = Dispatcher(ENDPOINT, MANY, blocking=blocking)
        self.now = 100.0

    def ask(self, *names: str, blocked: bool = False, until: float = 1000.0, kind: str = "acquire") -> list[Any]:
        asked = []
        for name in names:
            request = TableRequest(PreparedStatement(b"", b""), ("", name, "claim"), ("250", None), kind)
            request.blocked = blocked
            asked.append(PendingRequest(request, until, Answer()))
            self.dispatcher.submit(asked[-1])
        return asked

    def next(self) -> DispatchStep | None:
        return self.dispatcher.next(self.now)

    def sent(self, step: DispatchStep | None) -> list[str | None]:
        """The names in the batch that is sent by that step."""
        assert step is not None
        assert step.connection is not None, "it is to connect"
        return [request.columns[1] for request in self.dispatcher.batch(step)]

    def connect(self) -> Connection:
        step = self.next()
        assert step is not None
        assert step.connection is None, "it is to send"
        made = Connection()
        self.dispatcher.connected(step, made, self.now)
        return made

    def idle(self) -> Connection:
        """A connection that nobody uses."""
        self.ask("warm")
        made = self.connect()
        step = self.dispatcher._busy.get(made) or self.next()
        assert self.sent(step) == ["warm"]
        assert self.finish(made, {}) == [{}]
        return made

    def finish(self, connection: Any, answer: Any, *, usable: bool = True) -> list[Any]:
        results = self.dispatcher.results(connection, answer)
        self.dispatcher.finished(connection, usable=usable)
        return [value for _, value in results]


@pytest.fixture(params=["threads", "asyncio"])
def world(request: pytest.FixtureRequest) -> World:
    return World(blocking=request.param == "threads")


@pytest.fixture
def threads() -> World:
    return World(blocking=True)


@pytest.fixture
def tasks() -> World:
    return World(blocking=False)


# With whom


def test_requests_that_came_meanwhile_are_one_statement_and_get_a_reply_each(world: World) -> None:
    connection = world.idle()
    world.ask("a", "b", "c")
    assert world.sent(world.next()) == ["a", "b", "c"]
    assert world.finish(connection, [[], [{"fence": 1}, None, {"fence": 3}]]) == [
        {"fence": 1},
        RETRY_BLOCKED,
        {"fence": 3},
    ]


def test_a_request_that_cannot_be_batched_goes_alone(world: World) -> None:
    connection = world.idle()
    world.ask("list", kind="")
    world.ask("a", "b")
    assert world.sent(world.next()) == ["list"]
    world.finish(connection, [])
    assert world.sent(world.next()) == ["a", "b"]


def test_blocked_requests_of_one_name_go_together_and_others_first_every_second_time(world: World) -> None:
    connection = world.idle()
    world.ask("a", "b", "a", "c", blocked=True)
    world.ask("free", "other")
    sent = []
    while (step := world.next()) is not None and step.connection is not None:
        sent.append(world.sent(step))
        world.finish(connection, GONE)
    assert sent == [["a", "a"], ["free", "other"], ["b"], ["c"]]


def test_a_batch_has_a_limit_and_the_first_are_in_it(world: World) -> None:
    connection = world.idle()
    world.ask(*(str(number) for number in range(MAX_BATCH + 1)))
    batch = world.sent(world.next())
    assert len(batch) == MAX_BATCH
    assert set(batch) == {str(number) for number in range(MAX_BATCH)}
    world.finish(connection, GONE)
    assert world.sent(world.next()) == [str(MAX_BATCH)]


def test_the_thread_with_most_time_leads_since_it_waits_for_all_that_join(threads: World) -> None:
    threads.idle()
    threads.ask("hasty", until=101.0)
    (patient,) = threads.ask("patient", until=500.0)
    threads.ask("also hasty", until=102.0)
    step = threads.next()
    assert step is not None
    assert (step.leader, patient.step) == (patient, step)
    assert threads.sent(step) == ["patient", "hasty", "also hasty"]


def test_requests_that_come_before_the_leader_sends_still_join_it(threads: World) -> None:
    threads.idle()
    threads.ask("a")
    step = threads.next()
    threads.ask("b")
    assert threads.sent(step) == ["a", "b"]


def test_many_requests_of_tasks_are_divided_between_idle_connections(tasks: World) -> None:
    first = tasks.idle()
    tasks.ask(*(str(number) for number in range(2 * MIN_TO_SPLIT)))
    assert len(tasks.sent(tasks.next())) == 2 * MIN_TO_SPLIT, "there is only one connection"
    tasks.connect()  # though nothing waits: the next ones will be as many
    tasks.finish(first, GONE)
    tasks.ask(*(str(number) for number in range(2 * MIN_TO_SPLIT)))
    assert [len(tasks.sent(tasks.next())) for _ in range(2)] == [MIN_TO_SPLIT, MIN_TO_SPLIT]


# When to connect


def test_one_connection_is_made_at_a_time_unless_that_takes_long(world: World) -> None:
    world.ask("a", "b", "c", "d")
    assert world.next() is not None
    assert world.next() is None
    world.now += STUCK_AFTER_S
    assert world.next() is not None
    world.now += STUCK_AFTER_S
    assert world.next() is None, f"there are {MAX_CONNECTIONS} under way"


def test_spare_connections_are_made_only_while_others_are_stuck(world: World) -> None:
    def occupy() -> bool:
        """Whether another connection may be made for a request that waits."""
        world.ask("x", kind="")
        step = world.next()
        if step is None:
            return False
        if step.connection is None:
            world.dispatcher.connected(step, Connection(), world.now)
            step = step.leader.step if step.leader is not None else world.next()
        assert world.sent(step) == ["x"]
        return True

    assert [occupy() for _ in range(MAX_CONNECTIONS + 1)] == [True] * MAX_CONNECTIONS + [False]
    made = MAX_CONNECTIONS
    for _ in range(2 * MAX_SPARE):
        world.now += STUCK_AFTER_S
        made += occupy()
    assert made == MAX_CONNECTIONS + MAX_SPARE


def test_a_connection_that_has_ended_while_it_was_idle_is_replaced(world: World) -> None:
    connection = world.idle()
    connection.stale = True
    world.ask("a")
    world.connect()
    assert connection.closed


def test_a_thread_connects_for_itself_and_goes_on_to_send(threads: World) -> None:
    (caller,) = threads.ask("a")
    made = threads.connect()
    assert caller.step is not None
    assert caller.step.connection is made
    assert threads.sent(caller.step) == ["a"]


# What becomes of requests when something fails


def test_without_a_connection_all_requests_fail_with_its_reason(world: World) -> None:
    asked = world.ask("a", "b")
    step = world.next()
    assert step is not None
    failed = world.dispatcher.not_connected(step, GONE, world.now)
    assert sorted(failed, key=lambda one: str(one[0].request.columns)) == [(one, GONE) for one in asked]
    assert not world.dispatcher.waiting


def test_requests_wait_for_other_connections_if_one_more_could_not_be_made(world: World) -> None:
    first = world.idle()
    world.ask("busy", kind="")
    assert world.sent(world.next()) == ["busy"]
    world.ask("a")
    step = world.next()
    assert step is not None
    assert world.dispatcher.not_connected(step, GONE, world.now) == []
    world.finish(first, {})
    assert world.sent(world.next()) == ["a"]


def test_a_thread_whose_time_is_up_while_it_connects_fails_alone(threads: World) -> None:
    (first,) = threads.ask("a", until=101.0)
    step = threads.next()
    assert step is not None
    (second,) = threads.ask("b")
    assert threads.dispatcher.not_connected(step, GONE, 101.0) == [(first, GONE)]
    threads.now = 101.0
    step = threads.next()
    assert step is not None
    assert step.leader is second


def test_one_bad_request_in_a_batch_harms_no_other(world: World) -> None:
    connection = world.idle()
    asked = world.ask("a", "b")
    world.sent(world.next())
    assert world.finish(connection, StatementRefused("bad")) == [RETRY_ALONE] * 2
    for one in asked:
        world.dispatcher.retry(one.request, RETRY_ALONE, 0.0, 1.0)
        world.dispatcher.submit(one)
    assert world.sent(world.next()) == ["a"]
    refused = StatementRefused("bad")
    assert world.finish(connection, refused) == [refused]


def test_a_connection_that_breaks_is_closed_and_each_caller_has_an_error_of_its_own(world: World) -> None:
    connection = world.idle()
    (pending,) = world.ask("a")
    world.sent(world.next())
    (error,) = world.finish(connection, Broken("reset"), usable=False)
    assert connection.closed
    with pytest.raises(BackendUnavailable, match="ended the connection: reset") as raised:
        world.dispatcher.retry(pending.request, error, 0.0, 1.0)
    assert raised.value is not error


def test_a_request_that_was_rolled_back_is_sent_again_until_its_time_is_up(world: World) -> None:
    (pending,) = world.ask("a")
    world.dispatcher.retry(pending.request, RolledBack("deadlock"), 0.9, 1.0)
    with pytest.raises(BackendUnavailable, match="again and again"):
        world.dispatcher.retry(pending.request, RolledBack("deadlock"), 1.0, 1.0)


def test_a_step_that_ends_twice_changes_nothing_the_second_time(threads: World) -> None:
    """An interrupt may come just after it has ended."""
    threads.ask("a")
    step = threads.next()
    assert step is not None
    assert len(threads.dispatcher.not_connected(step, GONE, threads.now)) == 1
    assert threads.dispatcher.not_connected(step, GONE, threads.now) == []
    connection = threads.idle()
    assert threads.finish(connection, GONE, usable=False) == []
    assert connection.closed
    assert not threads.dispatcher.works


# When to give up


def test_a_request_that_was_withdrawn_is_not_sent(world: World) -> None:
    world.idle()
    first, _ = world.ask("a", "b")
    world.dispatcher.withdraw(first)
    world.dispatcher.withdraw(first)
    assert world.sent(world.next()) == ["b"]


def test_requests_whose_time_is_up_are_found_wherever_they_are(tasks: World) -> None:
    tasks.idle()
    (sent,) = tasks.ask("sent", until=101.0, kind="")
    tasks.sent(tasks.next())
    (waits,) = tasks.ask("waits", until=101.0)
    (later,) = tasks.ask("later", until=102.0)
    assert tasks.dispatcher.overdue(100.0) == ([], 101.0)
    assert tasks.dispatcher.overdue(101.0) == ([waits, sent], 102.0)
    assert tasks.dispatcher.waiting == [later]
    sent.answer.append(GONE)
    later.answer.append(GONE)
    assert tasks.dispatcher.overdue(102.0) == ([], math.inf)


def test_a_silent_connection_is_closed_once_all_of_its_callers_have_given_up(tasks: World) -> None:
    connection = tasks.idle()
    first, second = tasks.ask("a", "b")
    tasks.sent(tasks.next())
    first.answer.append(GONE)
    tasks.dispatcher.close_silent(tasks.now + SILENT_AFTER_S)
    assert not connection.closed
    second.answer.append(GONE)
    tasks.dispatcher.close_silent(tasks.now)
    assert not connection.closed
    tasks.dispatcher.close_silent(tasks.now + SILENT_AFTER_S)
    assert connection.closed
    assert tasks.finish(connection, {}) == []


def test_an_error_for_a_late_reply_says_whether_there_was_a_connection(world: World) -> None:
    error = world.dispatcher.late_error()
    assert "cannot reach" in str(error)
    assert not error.sent
    world.idle()
    assert "did not answer in time" in str(world.dispatcher.late_error())


# When to listen


def test_listening_is_tried_again_after_a_while_and_never_behind_a_pooler(world: World) -> None:
    dispatcher = world.dispatcher
    assert dispatcher.should_listen(0.0)
    with pytest.raises(BackendUnavailable):
        dispatcher.cannot_listen_for_now(GONE, world.now)  # nothing else works either
    world.idle()
    with pytest.raises(BackendUnavailable):
        dispatcher.cannot_listen_for_now(BackendUnavailable("refused", transient=False), world.now)
    dispatcher.cannot_listen_for_now(GONE, world.now)
    assert not dispatcher.should_listen(world.now)
    assert dispatcher.should_listen(world.now + LISTEN_AGAIN_AFTER_S)
    dispatcher.listens(receives=True)
    assert dispatcher.should_listen(0.0)
    dispatcher.listens(receives=False)
    assert not dispatcher.should_listen(1e9)


def test_that_waiters_poll_is_logged_once_until_they_are_woken_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.idle()
    for _ in range(3):
        world.dispatcher.cannot_listen_for_now(GONE, world.now)
    assert len(caplog.records) == 1
    world.dispatcher.listens(receives=True)
    world.dispatcher.cannot_listen_for_now(GONE, world.now)
    assert len(caplog.records) == 2


# The end


def test_after_closing_only_what_cleans_up_is_sent_and_no_connection_stays(world: World) -> None:
    before = world.idle()
    world.dispatcher.close()
    assert before.closed
    with pytest.raises(BackendUnavailable, match="closed"):
        world.ask("a")
    cleanup = TableRequest(PreparedStatement(b"", b""), ("", "mine", "claim"), ("250", None), "acquire")
    cleanup.is_cleanup = True
    pending = PendingRequest(cleanup, 1000.0, Answer())
    world.dispatcher.submit(pending)
    made = world.connect()
    assert world.sent(pending.step or world.next()) == ["mine"]
    assert world.finish(made, {}) == [{}]
    assert made.closed


def test_requests_of_tasks_end_with_closing_except_those_that_clean_up(tasks: World) -> None:
    connection = tasks.idle()
    (sent,) = tasks.ask("sent", kind="")
    tasks.sent(tasks.next())
    waits, cleans = tasks.ask("waits", "cleans")
    cleans.request.is_cleanup = True
    assert tasks.next() is not None  # connects
    assert tasks.dispatcher.close(drop=True) == [waits, sent]
    assert connection.closed
    assert tasks.dispatcher.waiting == [cleans]
    tasks.connect()  # what was under way has ended too
    assert tasks.sent(tasks.next()) == ["cleans"]
