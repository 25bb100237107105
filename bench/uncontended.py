"""SQLite, without contention: what does acquire + release cost?

The floor is a bare pair of upserts in the same file with the same settings: two autocommitted writes, which is the
least that a lock with a durable record can do. The peer is `filelock.FileLock`, which keeps no record at all.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lockfast
from bench.harness import Finding, Setting, per_cycle, ratio, take_turns, work_of
from bench.peers import need

_UPSERT = (
    "INSERT INTO bench_floor VALUES (?, ?, ?)"
    " ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at"
)


def run(setting: Setting) -> list[Finding]:
    """Findings for `python -m bench --only uncontended`."""
    cycles, rounds = setting.scaled(400, 100), setting.scaled(41, 9)
    file = setting.folder / "uncontended.db"
    locks = lockfast.connect(f"sqlite:///{file}")
    lock = locks.lock("bench")
    with lock:
        pass  # the file and its schema are made here
    floor = _floor(file)
    peer = need("filelock").FileLock(setting.folder / "uncontended.lock")
    samples = take_turns(
        {
            "lockfast": lambda: per_cycle(lambda: _hold(lock), cycles),
            "two upserts": lambda: per_cycle(floor, cycles),
            "filelock": lambda: per_cycle(lambda: _hold(peer), cycles),
        },
        rounds,
    )
    locks.close()
    with asyncio.Runner() as runner:  # after the others: its thread would share the interpreter with them
        alocks = lockfast.aio.connect(f"sqlite:///{file}")
        alock = alocks.lock("bench-aio")
        asamples = take_turns(
            {
                "lockfast.aio": lambda: runner.run(_hold_async(alock, cycles)),
                "two upserts": lambda: per_cycle(floor, cycles),
            },
            rounds,
        )
        runner.run(alocks.close())
    work = work_of("SQLite, acquire + release", samples, floor="two upserts", peers=["filelock"])
    return [
        ratio("SQLite acquire+release / two bare upserts", samples, "lockfast", "two upserts", at_most=2.5, work=work),
        ratio("SQLite acquire+release / filelock", samples, "lockfast", "filelock", at_most=1.0, work=work),
        ratio("the same in asyncio / two bare upserts", asamples, "lockfast.aio", "two upserts"),
    ]


def _hold(lock: Any) -> None:
    lock.acquire()
    lock.release()


async def _hold_async(lock: lockfast.aio.AsyncLock, cycles: int) -> float:
    loop = asyncio.get_running_loop()
    started = loop.time()
    for _ in range(cycles):
        await lock.acquire()
        await lock.release()
    return (loop.time() - started) / cycles


def _floor(file: Path) -> Callable[[], None]:
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("CREATE TABLE bench_floor (name TEXT PRIMARY KEY, holder TEXT, expires_at REAL)")

    def pair() -> None:
        connection.execute(_UPSERT, ("bench", "me", 30.0))
        connection.execute(_UPSERT, ("bench", None, 0.0))

    return pair
