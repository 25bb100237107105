"""`stats()`: what one process did, without any exporter."""

from __future__ import annotations

import asyncio
import json
import os

import pytest

import lockfast
import lockfast.aio
from lockfast.observe.events import Event
from lockfast.testing import FakeClock
from tests.servers.waiting import join
from tests.waiters import in_queue


def test_nothing_is_counted_and_no_event_is_made_before_the_first_call(url: str) -> None:
    with lockfast.connect(url) as locks, locks.lock("a"):
        assert not locks.events.wanted()
        stats = locks.stats()
        assert (stats.leases, stats.pending, stats.measured) == (1, 0, ())
        assert locks.events.wanted()


def test_what_happens_from_then_on_is_counted(url: str) -> None:
    clock = FakeClock()
    with lockfast.connect(url, clock=clock, observe=["stats"]) as locks:
        with locks.lock("order:1", ttl=60):
            clock.advance(2.0)
            locks.lock("order:1", wait=0).acquire()
        locks.limiter("api", rate=1).try_acquire()
        stats = locks.stats()
    assert stats.seconds == 2.0
    assert stats.of("acquire.wait_time").count == 2
    assert stats.of("acquire.wait_time", outcome="busy").count == 1
    held = stats.of("lease.hold_time", pattern="order:{n}", end="released")
    assert (held.count, held.total, held.most, held.mean) == (1, 2.0, 2.0, 2.0)
    assert held.buckets is not None
    assert (held.buckets[1.0], held.buckets[5.0]) == (0, 1)
    assert stats.of("lease.count").count == 0
    assert stats.of("limiter.requests", allowed="true").count == 1
    assert stats.of("lease.lost").count == 0
    assert stats.of("lease.lost", reason="gone").mean == 0.0


def test_a_waiter_is_pending_and_an_observer_of_an_election_is_not(url: str) -> None:
    with lockfast.connect(url) as locks:
        locks.election("e").campaign()
        observer = locks.election("e").observe()
        assert next(iter(observer)).leader == locks.holder
        with locks.lock("a", ttl=60):
            waiter = in_queue(locks.lock("a"), locks)
            assert (locks.stats().leases, locks.stats().pending) == (2, 1)
        join(waiter)
        assert (locks.stats().leases, locks.stats().pending) == (1, 0)


def test_asyncio_has_the_same(url: str) -> None:
    async def main() -> lockfast.Stats:
        async with lockfast.aio.connect(url, observe=["stats"]) as locks, locks.lock("a"):
            assert locks.stats().leases == 1
        return locks.stats()

    stats = asyncio.run(main())
    assert stats.of("lease.hold_time").count == 1
    assert stats.leases == 0


def test_the_manager_has_the_same(url: str) -> None:
    manager = lockfast.DistributedLock(url, observe=["stats"])
    assert manager.acquire("a")
    assert manager.stats().of("lease.count", primitive="manager").count == 1
    manager.close()


def test_the_text_is_for_people_and_the_dictionary_for_json(url: str) -> None:
    with lockfast.connect(url, observe=["stats"]) as locks, locks.lock("order:1"):
        stats = locks.stats()
    first, *rest = str(stats).splitlines()
    assert first.startswith("1 held, 0 pending; counted for ")
    assert any(line.startswith("lease.count") and "pattern=order:{n}" in line for line in rest)
    facts = json.loads(json.dumps(stats.as_dict()))
    assert facts["leases"] == 1
    [waited] = facts["acquire.wait_time"]
    assert (waited["pattern"], waited["outcome"], waited["count"]) == ("order:{n}", "granted", 1)
    assert facts["lease.lost"] == []


@pytest.mark.parametrize(("metric", "labels"), [("acquire.time", {}), ("lease.lost", {"outcome": "lost"})])
def test_a_metric_or_a_label_that_does_not_exist_is_refused(url: str, metric: str, labels: dict[str, str]) -> None:
    with lockfast.connect(url) as locks, pytest.raises(ValueError, match=r"there is no metric|has no label"):
        locks.stats().of(metric, **labels)


def test_a_child_of_a_fork_counts_what_it_does_itself(url: str) -> None:
    with lockfast.connect(url, observe=["stats"]) as locks, locks.lock("a"):
        locks.lock("b").acquire()
        pid = os.fork()
        if pid == 0:
            empty = locks.stats()
            locks.lock("c").acquire()
            full = locks.stats()
            right = (empty.leases, empty.measured) == (0, ()) and (
                full.leases,
                full.of("lease.count").count,
                full.of("acquire.wait_time").count,
            ) == (1, 1, 1)
            os._exit(0 if right else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert locks.stats().of("lease.count").count == 2


@pytest.mark.parametrize("observe", ["prometheus", ["graphite"], [3], None])
def test_what_cannot_observe_is_refused_before_anything_is_opened(url: str, observe: object) -> None:
    for connect in (lockfast.connect, lockfast.aio.connect, lockfast.DistributedLock):
        with pytest.raises(ValueError, match="observe"):
            connect(url, observe=observe)  # type: ignore[arg-type]


def test_a_function_is_called_with_the_locks(url: str) -> None:
    received: list[Event] = []
    with lockfast.connect(url, observe=[lambda locks: locks.events.listen(received.append)]) as locks:
        locks.lock("a").acquire(False)
    assert [one.kind for one in received] == ["asked", "granted", "released"]
