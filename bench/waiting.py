"""A process that waits for a SQLite lock held by another: what does the waiting cost?

The CPU time of the waiting process from just before it asks until it gives up, as a share of a core. It should be
nothing: a waiter is woken, and polls only as repair. `filelock` waits the same time by asking again.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import lockfast
from bench.harness import Finding, Setting
from bench.peers import need

Kind = Literal["threads", "asyncio", "filelock"]


def run(setting: Setting) -> list[Finding]:
    """Findings for `python -m bench --only waiting`."""
    seconds = float(setting.scaled(10, 3))
    file, other = setting.folder / "waiting.db", setting.folder / "waiting.lock"
    with lockfast.connect(f"sqlite:///{file}") as locks, locks.lock("bench"), need("filelock").FileLock(other):
        shares = {kind: _apart(kind, path, seconds) for kind, path in _waiters(file, other)}
    return [
        Finding("a blocked waiter: CPU", shares["threads"], "% of a core", at_most=0.25),
        Finding("a waiting task: CPU", shares["asyncio"], "% of a core", at_most=0.25),
        Finding("filelock's blocked waiter: CPU", shares["filelock"], "% of a core"),
    ]


def _waiters(file: Path, other: Path) -> list[tuple[Kind, Path]]:
    return [("threads", file), ("asyncio", file), ("filelock", other)]


def _apart(kind: Kind, path: Path, seconds: float) -> float:
    context = multiprocessing.get_context("spawn")
    pipe, out = context.Pipe(duplex=False)
    worker = context.Process(target=_wait, args=(kind, path, seconds, out))
    worker.start()
    out.close()  # then a worker that dies is noticed at once
    try:
        if not pipe.poll(seconds + 30):
            raise TimeoutError("the waiting process did not report")
        share: float = pipe.recv()
        return share
    finally:
        worker.join(5)
        worker.kill()


def _wait(kind: Kind, path: Path, seconds: float, out: Connection) -> None:
    """In a process of its own: try once to have everything open, then wait in vain and count."""
    if kind == "filelock":
        out.send(_wait_for_file(need("filelock"), path, seconds))
    elif kind == "asyncio":
        out.send(asyncio.run(_wait_async(f"sqlite:///{path}", seconds)))
    else:
        with lockfast.connect(f"sqlite:///{path}") as locks:
            lock = locks.lock("bench")
            lock.acquire(timeout=0.1)
            used = time.process_time()
            _in_vain(lock.acquire(timeout=seconds))
            out.send((time.process_time() - used) / seconds * 100)


async def _wait_async(url: str, seconds: float) -> float:
    async with lockfast.aio.connect(url) as locks:
        lock = locks.lock("bench")
        await lock.acquire(timeout=0.1)
        used = time.process_time()
        _in_vain(await lock.acquire(timeout=seconds))
        return (time.process_time() - used) / seconds * 100


def _wait_for_file(filelock: Any, path: Path, seconds: float) -> float:
    used = time.process_time()
    try:
        _in_vain(filelock.FileLock(path).acquire(timeout=seconds))
    except filelock.Timeout:
        return (time.process_time() - used) / seconds * 100
    raise AssertionError("unreachable")


def _in_vain(lease: object) -> None:
    if lease is not None:
        raise RuntimeError("the lock was to be held by the parent all the time")
