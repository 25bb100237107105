"""The connections of a quorum in threads: all are made at once, no caller waits twice for one that takes long, and what
has arrived is read before a server is given up."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

import lockfast
from lockfast import BackendUnavailable
from lockfast._time import boot_now
from lockfast._worlds import drive
from lockfast.backends.redis.io.resp import command
from lockfast.backends.redlock.io import blocking as redlock_blocking
from lockfast.backends.redlock.io import connections as redlock_connections
from lockfast.backends.redlock.io import dials, idle, members, rounds
from lockfast.backends.redlock.io.blocking import BlockingFanout
from lockfast.backends.redlock.io.connections import BlockingNodeConnection, ConnectionSet
from lockfast.backends.redlock.io.fanout import Suspended, all_of_them
from lockfast.backends.redlock.io.rounds import Round
from tests.polling import HOUR
from tests.servers.quorum import quorum
from tests.servers.waiting import LIMIT_S, happens, join, stand_still, until

PING = [command("PING")] * 3


class SlowToConnect:
    """Connections to one of the servers, or to all, take until the test ends them; all others are made as usual."""

    def __init__(self, node: int) -> None:
        self.node: int | None = node  # None: all of them
        self.begun, self.end = threading.Event(), threading.Event()
        self.dialled = [0, 0, 0]
        self.made: list[BlockingNodeConnection] = []

    def __call__(self, node: int, member: Any, within: float) -> BlockingNodeConnection:
        self.dialled[node] += 1
        if self.node is None or node == self.node:
            self.begun.set()
            assert self.end.wait(HOUR)
        self.made.append(BlockingNodeConnection(node, member, LIMIT_S))
        return self.made[-1]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowToConnect]:
    slow = SlowToConnect(2)
    monkeypatch.setattr(redlock_blocking, "BlockingNodeConnection", slow)
    yield slow
    slow.end.set()


@pytest.fixture
def locks(tmp_path: Any) -> Iterator[lockfast.Locks]:
    with lockfast.connect(quorum(3).url(tmp_path)) as locks:
        yield locks


def fanout_of(locks: lockfast.Locks) -> BlockingFanout:
    backend: Any = locks._logic.engine.backend
    fanout: BlockingFanout = backend._fanout
    return fanout


def in_a_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    join(thread)


def ask(locks: lockfast.Locks, within: float) -> Sequence[Any]:
    return drive(fanout_of(locks).ask(PING, all_of_them, within=within))


def add_all(connections: ConnectionSet) -> None:
    """Until no connection is being made for that set."""

    def is_over() -> bool:
        connections.add_dialled(0.0)
        return not connections.dialling

    until(is_over, "all connections to be made")


def test_a_connection_that_takes_long_is_waited_for_once_and_used_when_it_is_there(
    locks: lockfast.Locks, slow: SlowToConnect
) -> None:
    answers: list[Any] = []

    def work() -> None:
        until(lambda: ask(locks, 1.0)[:2] == [b"PONG"] * 2, "the other connections")
        answers.extend(ask(locks, HOUR))  # a quarter of this would be longer than the test

    in_a_thread(work)
    assert [type(answer) for answer in answers] == [bytes, bytes, BackendUnavailable]
    slow.end.set()
    until(lambda: ask(locks, HOUR) == [b"PONG"] * 3, "the connection to be used")
    assert slow.dialled == [1, 1, 1]


def test_without_a_majority_a_connection_that_takes_long_is_waited_for_again(
    locks: lockfast.Locks, slow: SlowToConnect, monkeypatch: pytest.MonkeyPatch
) -> None:
    fanout = fanout_of(locks)
    fanout.members[1].failures, fanout.members[1].try_at = 1, HOUR * 1e6
    monkeypatch.setattr(fanout._stragglers, "start", lambda: None)
    answers: list[Any] = []
    asking = threading.Event()

    def work() -> None:
        until(lambda: ask(locks, 0.1)[0] == b"PONG", "the only other connection")
        asking.set()
        answers.extend(ask(locks, HOUR))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    happens(asking, "the end of a request that found no majority")
    slow.end.set()
    join(thread)
    assert [type(answer) for answer in answers] == [bytes, BackendUnavailable, bytes]
    assert slow.dialled == [1, 0, 1]


def test_a_few_connections_at_a_time_are_made_to_each_server(locks: lockfast.Locks, slow: SlowToConnect) -> None:
    fanout = fanout_of(locks)
    sets = [fanout._new_set() for _ in range(3 * dials.MAX_DIALS)]

    def fill() -> None:
        for each in sets:
            fanout._start_dials(each, HOUR)
        for each in sets:
            until(lambda each=each: each.add_dialled(0.0) and each.is_majority, "the others")  # type: ignore[misc]

    in_a_thread(fill)
    assert slow.dialled == [len(sets), len(sets), dials.MAX_DIALS]
    slow.end.set()
    for each in sets:
        add_all(each)
        assert None not in each.connections
        each.close()
    assert slow.dialled == [len(sets)] * 3


def test_a_connection_does_not_wait_for_one_that_hangs(locks: lockfast.Locks, slow: SlowToConnect) -> None:
    fanout = fanout_of(locks)
    first, second = fanout._new_set(), fanout._new_set()
    fanout._start_dials(first, HOUR)
    until(lambda: slow.dialled[2] == 1, "the first to be begun")
    fanout._start_dials(second, HOUR)
    until(lambda: slow.dialled[2] == 2, "the second to be begun")
    slow.end.set()
    for each in (first, second):
        add_all(each)
        each.close()


def test_a_server_that_has_become_unreachable_is_not_dialled_for_those_that_wait(
    locks: lockfast.Locks, slow: SlowToConnect, monkeypatch: pytest.MonkeyPatch
) -> None:
    fanout = fanout_of(locks)
    monkeypatch.setattr(fanout._stragglers, "start", lambda: None)
    sets = [fanout._new_set() for _ in range(3 * dials.MAX_DIALS)]
    for each in sets:
        fanout._start_dials(each, HOUR)
    until(lambda: slow.dialled[2] == dials.MAX_DIALS, "the first of them to be dialled")
    fanout.members[2].failures, fanout.members[2].try_at = 1, HOUR * 1e6
    slow.end.set()
    for each in sets:
        add_all(each)
        each.close()
    assert slow.dialled[2] == dials.MAX_DIALS


def test_a_connection_that_is_made_after_its_set_was_closed_is_closed(slow: SlowToConnect, tmp_path: Any) -> None:
    with lockfast.connect(quorum(3).url(tmp_path)) as locks:
        in_a_thread(lambda: ask(locks, 1.0))
        happens(slow.begun, "the connection to be begun")
    slow.end.set()
    until(lambda: len(slow.made) == 3, "the connection to be made")
    until(lambda: all(each.socket.fileno() == -1 for each in slow.made), "all connections to be closed")


class NewThreads:
    """Threads that have no connections yet: the first of them connects, and the others wait."""

    def __init__(self, locks: lockfast.Locks, waiting: int, times: int = 1) -> None:
        self._locks, self._times = locks, times
        self.answered: list[int] = []  # which thread was, in that order
        self.threads: list[threading.Thread] = []
        for number in range(1 + waiting):
            self.threads.append(in_the_background(partial(self._work, number)))
            stand_still(self.threads[-1])  # the next one comes after it

    def _work(self, number: int) -> None:
        for _ in range(self._times):
            assert ask(self._locks, 10 * HOUR) == [b"PONG"] * 3
            self.answered.append(number)


def in_the_background(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_set_of_connections_that_is_put_back_goes_to_the_thread_that_has_waited_longest(
    locks: lockfast.Locks, slow: SlowToConnect
) -> None:
    """A thread that has been served goes to the end of the queue, while another still connects."""
    fanout = fanout_of(locks)
    fanout.node_timeout = HOUR
    of_another_thread = set_of(fanout, slow)
    new = NewThreads(locks, waiting=3, times=3)
    fanout._put_back(of_another_thread)
    waiting = [1, 2, 3]
    join(*[new.threads[number] for number in waiting])
    assert new.answered == waiting * 3
    assert slow.dialled == [2] * 3  # for that set, and for the first thread
    slow.end.set()
    join(*new.threads)


def set_of(fanout: BlockingFanout, slow: SlowToConnect) -> ConnectionSet:
    """A set that has all connections, while all others are slow to connect."""
    slow.end.set()
    connections = fanout._new_set()
    fanout._fill(connections, HOUR)
    slow.node = None
    slow.end.clear()
    return connections


def test_a_thread_that_has_waited_for_long_connects_though_another_still_does(
    locks: lockfast.Locks,
) -> None:
    sets, first, second = fanout_of(locks)._idle, idle.WaitingThread(), idle.WaitingThread()
    assert sets.wait(first, HOUR, HOUR) is None
    assert sets.wait(second, 0.001, HOUR) is None
    assert sets.connecting == 2


def test_when_a_thread_has_connected_the_one_that_has_waited_longest_connects(
    locks: lockfast.Locks, slow: SlowToConnect
) -> None:
    fanout_of(locks).node_timeout = HOUR
    slow.node = None
    new = NewThreads(locks, waiting=3)
    slow.end.set()
    join(*new.threads)
    assert sorted(new.answered) == list(range(len(new.threads)))


def test_a_thread_waits_for_others_no_longer_than_a_part_of_its_time(
    locks: lockfast.Locks, slow: SlowToConnect, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("USUAL_CONNECTING", "MAX_CONNECTING"):
        monkeypatch.setattr(idle, limit, 0)
    slow.end.set()
    in_a_thread(lambda: until(lambda: ask(locks, 1.0) == [b"PONG"] * 3, "an answer"))  # this machine may stand still


def test_a_set_with_a_vote_under_way_is_taken_last_and_what_has_arrived_there_is_read() -> None:
    """Else what that vote's claim asks next, by other connections, may overtake the vote."""

    class Set:
        used_at, read = 0.0, 0

        def read_replies(self, seconds: float) -> None:
            self.read += seconds == 0.0

    sets: Any = idle.IdleSets()
    late, later, other = Set(), Set(), Set()
    for each in (late, later):
        sets.put(each, is_late=True)
    sets.put(other)
    assert len(sets) == 3
    assert [sets.take() for _ in range(4)] == [other, late, later, None]
    assert [each.read for each in (late, later, other)] == [1, 1, 0]
    sets.put(late, is_late=True)
    assert sets.take_this(late)
    assert not sets.take_this(late)
    sets.put(late, is_late=True)
    assert sets.take_unused(0.0) is None
    assert sets.take_unused(1.0) is late


def test_a_set_that_comes_when_its_waiter_has_left_is_idle() -> None:
    sets, waiter = idle.IdleSets(), idle.WaitingThread()
    connections: Any = "a set of connections"
    waiter.given.put(connections)
    sets.leave(waiter)
    assert list(sets) == [connections]


def test_a_thread_that_connects_after_it_has_waited_in_vain_is_given_no_set_that_others_could_use() -> None:
    sets, waiters = idle.IdleSets(), [idle.WaitingThread() for _ in range(idle.MAX_CONNECTING + 1)]
    for waiter in waiters:
        assert sets.wait(waiter, 0, 0) is None
    assert sets.connecting == idle.MAX_CONNECTING  # the last one had no time to wait for its turn
    sets.put(connections := ConnectionSet([], lambda nodes, within: []))
    assert sets.take() is connections
    for waiter in waiters:
        sets.leave(waiter)


def test_threads_that_wait_for_connections_when_all_are_closed_raise(
    slow: SlowToConnect, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle, "USUAL_CONNECTING", 0)
    errors: list[BaseException] = []

    def work(locks: lockfast.Locks) -> None:
        try:
            ask(locks, HOUR)
        except BackendUnavailable as error:
            errors.append(error)

    with lockfast.connect(quorum(3).url(tmp_path)) as ours:
        thread = in_the_background(partial(work, ours))
        stand_still(thread)
    join(thread)
    assert "closed" in str(errors)


def test_a_server_is_not_taken_for_unreachable_while_this_process_makes_other_connections(
    locks: lockfast.Locks, slow: SlowToConnect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time begins when it is connected to."""
    fanout, ahead, pauses = fanout_of(locks), 0.0, 0
    fanout.node_timeout = LIMIT_S
    slow.node = None
    others = [fanout._new_set() for _ in range(dials.MAX_DIALS)]
    for each in others:
        fanout._start_dials(each, HOUR)
    until(lambda: slow.dialled == [dials.MAX_DIALS] * 3, "all other connections to be begun")
    add_dialled = ConnectionSet.add_dialled

    def pass_time(connections: ConnectionSet, seconds: float) -> bool:
        nonlocal ahead, pauses
        if seconds > 0.0:
            pauses += 1
            if pauses < 5:
                ahead += seconds
                return False
            slow.end.set()
            seconds = LIMIT_S
        return add_dialled(connections, seconds)

    monkeypatch.setattr(ConnectionSet, "add_dialled", pass_time)
    for module in (redlock_blocking, redlock_connections, rounds):
        monkeypatch.setattr(module, "boot_now", lambda: boot_now() + ahead)
    answers = ask(locks, HOUR)
    assert [type(answer) for answer in answers].count(bytes) >= 2, answers
    for each in others:
        add_all(each)
        each.close()


def test_a_server_that_is_being_connected_to_is_not_said_to_be_unreachable(
    locks: lockfast.Locks, slow: SlowToConnect
) -> None:
    slow.node = None
    errors: list[Any] = []
    in_a_thread(lambda: errors.extend(ask(locks, 0.1)))
    assert [str(error).partition(" is ")[2] for error in errors] == ["still being connected to"] * 3
    assert not any(error.sent for error in errors)
    slow.end.set()


def test_where_no_thread_can_be_started_the_caller_connects(
    locks: lockfast.Locks, slow: SlowToConnect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    slow.end.set()
    fanout_of(locks).node_timeout = LIMIT_S
    monkeypatch.setattr(dials, "start_thread", none_left)
    assert ask(locks, HOUR) == [b"PONG"] * 3


def test_an_error_that_no_server_causes_is_raised(locks: lockfast.Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(redlock_blocking, "BlockingNodeConnection", breaks)
    with pytest.raises(ZeroDivisionError):
        ask(locks, HOUR)


@pytest.mark.parametrize("limit", ["within", "node_timeout"])
def test_a_server_whose_answer_arrived_while_this_process_stood_still_is_not_given_up(
    locks: lockfast.Locks, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    fanout, ahead = fanout_of(locks), 0.0
    assert ask(locks, HOUR) == [b"PONG"] * 3
    (connections,) = fanout._idle

    def stand_still_until_all_have_answered(_: Round) -> None:
        nonlocal ahead
        for connection in connections.connections:
            assert connection is not None
            assert select.select([connection.socket], [], [], LIMIT_S)[0]
        ahead = 2 * HOUR

    def now() -> float:
        return boot_now() + ahead

    monkeypatch.setattr(connections, "read_in_turn", stand_still_until_all_have_answered)
    for module in (redlock_blocking, rounds, members):
        monkeypatch.setattr(module, "boot_now", now)
    fanout.node_timeout = HOUR if limit == "node_timeout" else 3 * HOUR
    assert ask(locks, HOUR if limit == "within" else 3 * HOUR) == [b"PONG"] * 3
    assert not any(member.absent for member in fanout.members)


class Subscriptions:
    """Counts which servers are subscribed to."""

    def __init__(self) -> None:
        self.nodes: list[int] = []

    def __call__(self, nodes: Sequence[int], within: float) -> Sequence[None]:
        self.nodes += nodes
        return [None] * len(nodes)


async def wants_wakeups() -> None:
    await Suspended(b"", 0)


def test_a_round_that_is_over_subscribes_to_nothing_at_the_cost_of_the_next(locks: lockfast.Locks) -> None:
    subscriptions = Subscriptions()
    connections = ConnectionSet(fanout_of(locks).members, subscriptions)
    fanout_of(locks)._fill(connections, HOUR)
    late: list[tuple[int, Any]] = []
    for report in (None, lambda node, result: late.append((node, result))):
        over = Round([wants_wakeups() for _ in range(3)], all_of_them, fanout_of(locks).members, late=report)
        over.start(connections, HOUR, HOUR)
        over.close()
    connections.read(0.0)
    connections.close()
    assert not subscriptions.nodes
    assert [(node, type(result)) for node, result in late] == [(node, BackendUnavailable) for node in range(3)]


def test_a_server_without_a_connection_is_not_subscribed_to(locks: lockfast.Locks) -> None:
    """What needs the subscription could not be sent to it."""
    subscriptions = Subscriptions()
    connections = ConnectionSet(fanout_of(locks).members, subscriptions)
    asked = Round([wants_wakeups() for _ in range(3)], all_of_them, fanout_of(locks).members)
    asked.start(connections, HOUR, HOUR)
    assert [type(result) for result in asked.close()] == [BackendUnavailable] * 3
    assert not subscriptions.nodes


def test_a_round_has_what_connecting_has_left_of_the_time(
    locks: lockfast.Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    fanout, took, given = fanout_of(locks), 0.0, list[float]()
    connected, start = fanout._connected, Round.start

    def takes_long(connections: ConnectionSet, within: float) -> ConnectionSet:
        nonlocal took
        took = 0.75 * LIMIT_S
        return connected(connections, within)

    def notes_its_time(round: Round, transport: Any, within: float, node_timeout: float) -> None:
        given.append(within)
        start(round, transport, within, node_timeout)

    monkeypatch.setattr(redlock_blocking, "boot_now", lambda: boot_now() + took)
    monkeypatch.setattr(fanout, "_connected", takes_long)
    monkeypatch.setattr(Round, "start", notes_its_time)
    ask(locks, LIMIT_S)
    assert given[0] <= 0.25 * LIMIT_S
