"""Metrics for Prometheus in its multi-process mode: real processes, and a real gunicorn that serves docs/metrics.md."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.parser import text_string_to_metric_families

from tests.observe.numbers import value
from tests.servers.server import free_port
from tests.servers.waiting import LIMIT_S, until

ROOT = Path(__file__).parent.parent.parent

pytestmark = pytest.mark.slow


@contextmanager
def workers(url: str, folder: Path, count: int, how: str) -> Iterator[list[int]]:
    """Their pids, as soon as each holds what it will hold."""
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)}
    words = [sys.executable, "-m", "tests.observe.worker", url, "5", how]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(words, env=environment, cwd=ROOT, **pipes) for _ in range(count)]  # type: ignore[call-overload]
    try:
        yield [int(process.stdout.readline()) for process in processes]
    finally:
        for process in processes:
            process.communicate(timeout=LIMIT_S)


def collected(folder: Path) -> CollectorRegistry:
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(folder))  # type: ignore[no-untyped-call]
    return registry


@pytest.mark.parametrize("how", ["plain", "fork"])
def test_several_processes_are_added_up_and_a_dead_one_holds_nothing(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "metrics"
    folder.mkdir()
    with workers(f"sqlite:///{tmp_path / 'locks.db'}", folder, 3, how) as pids:
        registry = collected(folder)
        assert value(registry, "lockfast_acquire_wait_seconds_count", pattern="order:{n}:{n}", outcome="granted") == 15
        assert value(registry, "lockfast_lease_hold_seconds_count", pattern="order:{n}:{n}", end="released") == 15
        assert value(registry, "lockfast_leases", pattern="order:{n}:{n}") == 0
        assert value(registry, "lockfast_leases", pattern="held:{n}") == 3
        assert value(registry, "lockfast_leases", pattern="parent:{n}") == (3 if how == "fork" else 0)  # not doubled
        assert value(registry, "lockfast_election_leader", pattern="shard:{n}") == 3
        assert value(registry, "lockfast_acquire_pending") == 0
        assert all("pid" not in one.labels for metric in registry.collect() for one in metric.samples)
        mark_process_dead(pids[0], str(folder))  # type: ignore[no-untyped-call]  # as the hook of gunicorn does
        registry = collected(folder)
        assert value(registry, "lockfast_leases", pattern="held:{n}") == 2
        assert value(registry, "lockfast_election_leader", pattern="shard:{n}") == 2
        assert value(registry, "lockfast_acquire_wait_seconds_count", pattern="order:{n}:{n}") == 15
    assert len(pids) == 3


def blocks_of_the_page() -> dict[str, str]:
    """What docs/metrics.md shows of a program under gunicorn, by the name of the file."""
    text = (ROOT / "docs" / "metrics.md").read_text()
    blocks = [part.partition("\n```")[0] for part in text.split("```python sketch\n")[1:]]
    return {block.splitlines()[0].removeprefix("# "): block for block in blocks}


def test_the_program_of_the_page_is_right_under_gunicorn(tmp_path: Path) -> None:
    folder, port = tmp_path / "metrics", free_port()
    folder.mkdir()
    for name, text in blocks_of_the_page().items():
        (tmp_path / name).write_text(text)
    environment = {
        **os.environ,
        "PROMETHEUS_MULTIPROC_DIR": str(folder),
        "LOCKFAST_URL": f"sqlite:///{tmp_path / 'locks.db'}",
        "GUNICORN_CMD_ARGS": f"--bind 127.0.0.1:{port} --workers 3 --no-control-socket",
    }
    words = [sys.executable, "-m", "gunicorn", "--preload", "app:app"]
    address = f"http://127.0.0.1:{port}"
    with open(tmp_path / "log", "wb") as log:
        server = subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=log, stderr=log)
        try:
            until(lambda: get(f"{address}/charge") == "charged", "gunicorn to answer", despite=(OSError,))
            for _ in range(19):
                assert get(f"{address}/charge") == "charged"
            counted = {
                (sample.name, sample.labels.get("outcome")): sample.value
                for family in text_string_to_metric_families(get(f"{address}/metrics"))
                for sample in family.samples
                if sample.labels.get("pattern") == "order:{n}"
            }
        finally:
            server.terminate()
            server.wait(LIMIT_S)
    assert counted["lockfast_acquire_wait_seconds_count", "granted"] == 20, (tmp_path / "log").read_text()
    assert counted["lockfast_leases", None] == 0


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
        text: str = answer.read().decode()
        return text
