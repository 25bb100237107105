"""Events add up: every acquire and every grant has exactly one end, whatever goes wrong.

The runs of the simulation check it too, each of them (tests/simulation): there messages are lost, late and repeated,
machines freeze, holds are broken and expire, and acquires are cancelled at any suspension. Here a client is closed in
the middle of that, and the two real worlds have their turn.
"""

from __future__ import annotations

import asyncio
import random
import threading
import uuid
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import lockfast
from lockfast import Event
from lockfast._worlds import Clock, World
from lockfast.backends.base import Backend
from lockfast.engine import reporting
from lockfast.engine.reporting import AskReport
from lockfast.testing import FaultyBackend, open_backend
from lockfast.testing.event_ledger import EventLedger
from lockfast.testing.simulation import Run
from tests.scale import by_scale
from tests.servers.waiting import LIMIT_S, join

CLOSED_RUNS = by_scale(30, soak=2000, quick=10)
EXAMPLES = by_scale(25, soak=500, quick=8)
ROUNDS = 6  # of each caller in a real world


# The simulated world


class ClosingRun(Run):
    """Each client is closed at some moment. What its callers received meanwhile is not judged here, the events are."""

    def close_some(self) -> None:
        for client in self.clients:
            self.simulation.later(20.0 * self.random.random() ** 2, partial(self._close, client))

    def _close(self, client: Any) -> None:
        if not client.world.crashed:
            client.world.task(client.engine.close(), "closes")

    def run(self) -> list[EventLedger]:
        try:
            for worker, client in list(self.workers.items()):
                self._start(worker, client)
            self.simulation.later(0.5, self.nemesis)
            self.close_some()
            self.simulation.run(60.0)
            self.network.faults = self.network.faults.times(0.0)
            self.simulation.run(self.simulation.time + 120.0)
            return [client.ledger for client in self.clients if not client.world.crashed and client.engine.closed]
        finally:
            self.simulation.close()


def closing_runs(seeds: range) -> tuple[Counter[str], list[str]]:
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    for seed in seeds:
        for ledger in ClosingRun(seed).run():
            outcomes += ledger.outcomes
            wrong += [f"seed {seed}: {line}" for line in ledger.wrong()]
    return outcomes, wrong


def test_events_add_up_where_a_client_is_closed_in_the_middle() -> None:
    outcomes, wrong = closing_runs(range(CLOSED_RUNS))
    assert not wrong, wrong[:5]
    expected = ("granted granted", "released released", "not_granted closed", "not_granted timeout", "lost lost")
    assert all(outcomes[what] for what in expected), outcomes


def _drop(dropped: str, patch: pytest.MonkeyPatch) -> None:
    emit = lockfast.Events.emit

    def leaky(self: lockfast.Events, event: Event) -> None:
        if f"{event.kind} {event.outcome}" != dropped:
            emit(self, event)

    patch.setattr(lockfast.Events, "emit", leaky)


@pytest.mark.parametrize(
    "dropped", ["granted granted", "not_granted cancelled", "not_granted closed", "lost lost", "released released"]
)
def test_an_event_that_is_not_emitted_is_missed(dropped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _drop(dropped, monkeypatch)
    assert closing_runs(range(CLOSED_RUNS))[1]


def test_an_end_that_is_reported_twice_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def always(self: AskReport, error: BaseException) -> None:
        self.over = False
        failed(self, error)

    failed = AskReport.failed
    monkeypatch.setattr(reporting.AskReport, "failed", always)
    assert closing_runs(range(CLOSED_RUNS))[1]


# The real worlds, with requests and replies that are lost


VERBS = ("acquire", "renew", "release", "abandon")


class Store:
    """One store for two clients, each behind a wrapper that loses what the seed says."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.url = f"memory://{uuid.uuid4().hex}"
        self.opened: list[FaultyBackend] = []
        self.ledgers: list[EventLedger] = []

    def __call__(self, world: World, clock: Clock | None) -> Backend:
        self.opened.append(FaultyBackend(open_backend(self.url, world, clock), world))
        return self.opened[-1]

    def listen(self, locks: Any) -> None:
        self.ledgers.append(EventLedger())
        locks.events.listen(self.ledgers[-1])

    def disturb(self) -> None:
        """Something goes wrong with a request that comes soon."""
        backend, verb = self.random.choice(self.opened), self.random.choice(VERBS)
        transient = self.random.random() < 0.7
        error = lockfast.BackendUnavailable(f"no {verb}", transient=transient)
        lose = self.random.choice((backend.lose_request, backend.lose_reply))
        lose(verb, self.random.randint(1, 3), error)  # type: ignore[arg-type]

    def options(self) -> dict[str, Any]:
        return {"wait": self.random.choice((0, 0.001, 0.02, None)), "ttl": 30, "renew": self.random.random() < 0.8}

    async def turns(self, most: int) -> None:
        """Let the other tasks run, that many times at most."""
        for _ in range(self.random.randrange(most)):
            await asyncio.sleep(0)

    def judge(self) -> None:
        for ledger in self.ledgers:
            assert ledger.asked
            wrong = list(ledger.wrong())
            assert not wrong, wrong[:5]


PATIENCE_S = 0.02  # of the clients here: the store answers at once, or not at all
RANDOM_RUNS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # threads do not make a shrunk seed a smaller run
    suppress_health_check=list(HealthCheck),
)


@RANDOM_RUNS
@given(st.integers(0, 2**32))
def test_events_add_up_in_threads(seed: int) -> None:
    store = Store(seed)
    clients = [lockfast.connect(store, patience=PATIENCE_S) for _ in range(2)]
    for locks in clients:
        store.listen(locks)

    def work(locks: lockfast.Locks, closes: bool) -> None:
        for _ in range(ROUNDS):
            store.disturb()
            with suppress(lockfast.LockError):
                _once(store, locks)
        if closes:
            locks.close()

    threads = [threading.Thread(target=work, args=(locks, n == 0)) for locks in clients for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        join(thread)
    for locks in clients:
        locks.close()
    store.judge()


def _once(store: Store, locks: lockfast.Locks) -> None:
    what = store.random.randrange(5)
    if what == 0:
        locks.break_lock("a")
    elif what == 1:
        with locks.all("a", "b", **{**store.options(), "wait": 0.01}):
            pass
    elif what == 2:
        lease = locks.lock("a", **{**store.options(), "wait": 0.01}).acquire()
        if lease is not None:
            lease.release()
    else:
        with locks.lock("a", **{**store.options(), "wait": 0.01}) as held:
            held.extend()


@RANDOM_RUNS
@given(st.integers(0, 2**32))
def test_events_add_up_in_asyncio_with_cancellations(seed: int) -> None:
    store = Store(seed)

    async def work(locks: lockfast.aio.AsyncLocks) -> None:
        for _ in range(ROUNDS):
            store.disturb()
            with suppress(lockfast.LockError):
                async with locks.lock(store.random.choice("ab"), **store.options()):
                    await store.turns(3)

    async def nemesis(tasks: list[asyncio.Task[None]]) -> None:
        while not all(task.done() for task in tasks):
            await store.turns(300)
            store.random.choice(tasks).cancel()

    async def main() -> None:
        clients = [lockfast.aio.connect(store, patience=PATIENCE_S) for _ in range(2)]
        for locks in clients:
            store.listen(locks)
        tasks = [asyncio.create_task(work(locks)) for locks in clients for _ in range(3)]
        closing = asyncio.create_task(_later(clients[0]))
        async with asyncio.timeout(LIMIT_S):
            await nemesis(tasks)
            await asyncio.gather(*tasks, closing, return_exceptions=True)
        for locks in clients:
            await locks.close()

    async def _later(locks: lockfast.aio.AsyncLocks) -> None:
        await store.turns(1000)
        await locks.close()

    asyncio.run(main())
    store.judge()
