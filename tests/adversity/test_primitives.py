"""Limiters, cells and elections shared by real processes, some of which are killed."""

from __future__ import annotations

import signal
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator
from queue import Queue
from threading import Thread

import pytest

import lockfast
from tests.adversity.actor import Actor
from tests.adversity.worker import Worker
from tests.polling import HOUR, never_poll
from tests.servers.waiting import LIMIT_S, join

pytestmark = pytest.mark.slow

Start = Callable[..., Actor]
Employ = Callable[..., list[Worker]]


@pytest.fixture
def employ(url: str) -> Iterator[Employ]:
    """Start that many processes on the test's store, and let them begin together."""
    workers: list[Worker] = []

    def employ(number: int, job: str, *numbers: float) -> list[Worker]:
        employed = [Worker(url, job, *numbers) for _ in range(number)]
        workers.extend(employed)
        for worker in employed:
            worker.begin()
        return employed

    yield employ
    for worker in workers:
        worker.close()


def test_six_processes_never_get_more_than_the_rate_in_any_window(employ: Employ) -> None:
    rate, burst, each = 100, 10, 25
    received = [worker.line() for worker in employ(6, "take_permits", rate, burst, each)]
    permits = [(before, after) for worker in received for before, after in worker["permits"]]
    assert excess(permits, rate, burst) <= 0
    assert len(permits) == 6 * each
    assert sum(worker["refused"] for worker in received) > 0, "else the limit was never put to the test"


def excess(permits: list[tuple[float, float]], rate: float, burst: int) -> float:
    """By how much the worst window from before one permit to after another has too many; each was given in between."""
    worst = float("-inf")
    ends: list[float] = []  # of the permits that began in the window
    for begin, end in sorted(permits, reverse=True):
        insort(ends, end)
        for last in ends:
            given = bisect_right(ends, last)
            worst = max(worst, given - burst - (last - begin) * rate - 1e-6)
    return worst


def test_the_judge_of_windows_finds_one_permit_too_many() -> None:
    even = [(at / 10, at / 10) for at in range(30)]
    assert excess([*even, (1.0, 1.0)], rate=10, burst=2) <= 0
    assert excess([*even, (1.0, 1.0), (1.5, 1.5)], rate=10, burst=2) > 0.9


def test_processes_that_increment_a_cell_lose_nothing(employ: Employ, locks: lockfast.Locks) -> None:
    workers, times = 4, 100
    versions = [version for worker in employ(workers, "increment", times) for version in worker.rest()]
    assert sorted(versions) == list(range(1, workers * times + 1))  # each version was written by one of them
    assert locks.cell("count").read() == (workers * times, workers * times)


@pytest.mark.parametrize("after", [1, 20, 60])
def test_a_kill_in_the_middle_of_an_update_loses_nothing(employ: Employ, locks: lockfast.Locks, after: int) -> None:
    workers = employ(3, "increment", 1_000_000)
    received = [[worker.line() for _ in range(after)] for worker in workers]
    for worker in workers:
        worker.kill()
    confirmed = [version for seen, worker in zip(received, workers, strict=True) for version in seen + worker.rest()]
    value, version = locks.cell("count").read()
    assert value == version
    assert len(set(confirmed)) == len(confirmed) <= value <= len(confirmed) + 3  # one unconfirmed each, at most
    assert locks.cell("count").update(lambda count: count + 1) == (value + 1, version + 1)


def test_an_observer_in_another_process_receives_the_leaders_death_and_the_next_leader(
    start: Start, locks: lockfast.Locks
) -> None:
    leader, follower = start(), start()
    changes = locks.election("lead").observe()
    assert next(changes).vacant
    first = leader.ask("acquire", name="lead", ttl=2)["fence"]
    assert next(changes).term == first
    follower.send("acquire", name="lead")
    leader.signal(signal.SIGKILL)
    assert next(changes) == (None, first)
    second = follower.expect()["fence"]
    received = next(changes)
    assert received.term == second > first
    assert received.leader == follower.ask("inspect", name="lead")["holders"][0]["holder"]
    follower.ask("release")
    assert next(changes) == (None, second)
    changes.close()


def test_an_observer_in_another_process_is_woken_and_not_by_its_timer(
    start: Start, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_poll(monkeypatch)
    leader = start()
    received: Queue[lockfast.Leadership] = Queue()

    def observe() -> None:
        for change in locks.election("lead").observe():
            received.put(change)

    with lockfast.connect(url) as locks:
        observer = Thread(target=observe)
        observer.start()
        assert received.get(timeout=LIMIT_S).vacant
        for _ in range(5):
            elected = leader.ask("acquire", name="lead", ttl=HOUR)
            assert received.get(timeout=LIMIT_S).term == elected["fence"]
            leader.ask("release")
            assert received.get(timeout=LIMIT_S) == (None, elected["fence"])
    join(observer)  # it ends with its `Locks`
