"""Metrics for Prometheus, in one process. In several: test_prometheus_processes.py."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import lockfast
import lockfast.aio
import lockfast.observe
from lockfast.observe import prometheus
from lockfast.observe.metrics import METRICS
from tests.observe.numbers import value
from tests.servers.waiting import join


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_every_metric_of_the_table_is_exported_with_its_labels_and_help(url: str, registry: CollectorRegistry) -> None:
    with lockfast.connect(url) as locks:
        prometheus.install(locks, registry)
    exported = {metric.name: metric for metric in registry.collect()}
    for metric in METRICS:
        family = exported.pop(metric.prometheus.removesuffix("_total"))
        assert (family.documentation, family.type) == (metric.help, metric.kind)
    assert exported == {}


def test_what_happens_is_counted(url: str, registry: CollectorRegistry) -> None:
    with lockfast.connect(url, namespace="shop") as locks:
        prometheus.install(locks, registry)
        with locks.lock("order:42", ttl=60):
            assert value(registry, "lockfast_leases", pattern="order:{n}", namespace="shop", primitive="lock") == 1
            assert locks.lock("order:42", wait=0).acquire() is None
    assert value(registry, "lockfast_acquire_wait_seconds_count", outcome="granted", backend="memory") == 1
    assert value(registry, "lockfast_acquire_wait_seconds_count", outcome="busy") == 1
    assert value(registry, "lockfast_lease_hold_seconds_count", end="released") == 1
    assert value(registry, "lockfast_leases") == value(registry, "lockfast_acquire_pending") == 0
    assert 'pattern="order:{n}"' in generate_latest(registry).decode()


def test_to_install_twice_is_to_install_once(url: str, registry: CollectorRegistry) -> None:
    with lockfast.connect(url, observe=[lambda locks: prometheus.install(locks, registry)]) as locks:
        prometheus.install(locks, registry)
        locks.lock("a").acquire(False)
    assert value(registry, "lockfast_acquire_wait_seconds_count") == 1


def test_several_locks_share_one_set_of_metrics(url: str, registry: CollectorRegistry) -> None:
    for namespace in ("a", "b"):
        with lockfast.connect(url, namespace=namespace) as locks:
            prometheus.install(locks, registry)
            locks.lock("x").acquire()
    assert value(registry, "lockfast_acquire_wait_seconds_count") == 2
    assert value(registry, "lockfast_acquire_wait_seconds_count", namespace="b") == 1


def test_one_locks_counts_in_several_registries(url: str, registry: CollectorRegistry) -> None:
    other = CollectorRegistry()
    with lockfast.connect(url) as locks:
        prometheus.install(locks, registry)
        prometheus.install(locks, other)
        locks.lock("x").acquire()
    assert value(registry, "lockfast_acquire_wait_seconds_count") == 1
    assert value(other, "lockfast_acquire_wait_seconds_count") == 1


def test_asyncio_and_the_manager_are_counted_too(url: str, registry: CollectorRegistry) -> None:
    async def main() -> None:
        async with lockfast.aio.connect(url) as locks:
            prometheus.install(locks, registry)
            async with locks.lock("a"):
                assert value(registry, "lockfast_leases") == 1

    asyncio.run(main())
    manager = lockfast.DistributedLock(url)
    prometheus.install(manager, registry)
    assert manager.acquire("b")
    manager.close()
    assert value(registry, "lockfast_lease_hold_seconds_count") == 2
    assert value(registry, "lockfast_acquire_wait_seconds_count", primitive="manager") == 1


def test_threads_lose_no_count(url: str, registry: CollectorRegistry) -> None:
    with lockfast.connect(url) as locks:
        prometheus.install(locks, registry)

        def work() -> None:
            for n in range(50):
                with locks.lock(f"a:{n}"):
                    pass

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        join(*threads)
    assert value(registry, "lockfast_acquire_wait_seconds_count", outcome="granted") == 200
    assert value(registry, "lockfast_lease_hold_seconds_count") == 200
    assert value(registry, "lockfast_leases") == value(registry, "lockfast_acquire_pending") == 0


def test_a_child_of_a_fork_does_not_count_what_its_parent_holds(url: str, registry: CollectorRegistry) -> None:
    with lockfast.connect(url) as locks, locks.lock("before"):
        prometheus.install(locks, registry)
        locks.lock("a").acquire()
        pid = os.fork()
        if pid == 0:
            locks.lock("b").acquire()
            os._exit(0 if value(registry, "lockfast_leases") == 1 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert value(registry, "lockfast_leases") == 1


def test_the_module_is_found_without_an_import_of_its_own() -> None:
    assert lockfast.observe.prometheus is prometheus
    assert {"otel", "prometheus"} <= set(dir(lockfast.observe))
    with pytest.raises(AttributeError, match="no attribute 'statsd'"):
        lockfast.observe.statsd  # noqa: B018
