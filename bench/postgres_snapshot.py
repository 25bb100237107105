"""PostgreSQL's lock table while a transaction keeps an old snapshot, such as pg_dump: does a lock that is taken often
become slower? And do many leases slow down a step whose plan was made while the table was empty?

No dead version of a row can be removed while the snapshot is open, so a step that visits all versions of its key
becomes slower with every cycle. synchronous_commit is off: the disk would hide it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from statistics import median

import psycopg
from tests.servers.postgres import PostgresServer

import lockfast
from bench.harness import Finding, Setting, per_cycle
from bench.postgres_table_floor import NOT_DURABLE, prepare

THREADS = 8
LEASES = 20_000
_FILL = """INSERT INTO distributed_locks (lock_name, holder_id, expires_at, claim, fence)
    SELECT 'other-' || n, 'h', clock_timestamp() + interval '1 hour', 'o' || n, n FROM generate_series(1, %s) AS n"""


def run(setting: Setting) -> list[Finding]:
    """Findings for `python -m bench --only postgres_snapshot`."""
    cycles = setting.scaled(20_000, 4_000)
    with PostgresServer(NOT_DURABLE) as server:
        prepare(server.url)
        found = [
            _beside_a_snapshot(server, "one thread", _alone, cycles),
            _beside_a_snapshot(server, f"{THREADS} threads that want one lock", _contended, cycles),
        ]
    with PostgresServer(NOT_DURABLE) as server:
        prepare(server.url)
        return [*found, _with_many_leases(server, setting.scaled(1000, 200))]


def _beside_a_snapshot(
    server: PostgresServer, who: str, measured: Callable[[lockfast.Locks, int], float], cycles: int
) -> Finding:
    """The last tenth of the cycles, against as many before the snapshot was taken."""
    part = cycles // 10
    with lockfast.connect(server.url) as locks, psycopg.connect(server.url) as reader:
        measured(locks, part)
        before = median(measured(locks, part) for _ in range(3))
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM distributed_locks")
        times = [measured(locks, part) for _ in range(10)]
    detail = {"before_us": before * 1e6, "meanwhile_us": [seconds * 1e6 for seconds in times]}
    what = f"table, {who}: acquire+release after {cycles} beside an open snapshot / before it"
    return Finding(what, times[-1] / before, "×", at_most=2, detail=detail)


def _alone(locks: lockfast.Locks, cycles: int) -> float:
    lock = locks.lock("bench")

    def cycle() -> None:
        lock.acquire()
        lock.release()

    return per_cycle(cycle, cycles)


def _contended(locks: lockfast.Locks, cycles: int) -> float:
    def several() -> None:
        for _ in range(cycles // THREADS):
            with locks.lock("contended"):
                pass

    def all_at_once() -> None:
        threads = [threading.Thread(target=several) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return per_cycle(all_at_once, 1) / cycles


def _with_many_leases(server: PostgresServer, cycles: int) -> Finding:
    with closing(psycopg.connect(server.url, autocommit=True)) as other, lockfast.connect(server.url) as locks:
        other.execute("VACUUM distributed_locks, lockfast_queue")  # from here on they are known to be empty
        before = [_alone(locks, cycles) for _ in range(4)][1:]
        other.execute(_FILL, (LEASES,))
        after = [_alone(locks, cycles) for _ in range(3)]
    what = f"table, {LEASES} leases since the plans were made: acquire+release / in an empty table"
    return Finding(what, median(after) / median(before), "×", at_most=2)
