"""Processes that want one Redis lock all the time, and what they note.

Decides: how competitors are started, commanded and read. Each notes for every hold when it asked, when it was
granted and when it called release, on the clock that all processes of a host share.
Leaves to `redis_contended`: what the notes mean.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
import traceback
from array import array
from contextlib import AbstractContextManager, ExitStack
from multiprocessing.connection import Connection
from typing import Any, Literal, NamedTuple

import lockfast
from bench.peers import need
from bench.redis_floor import Token
from bench.redis_peers import LEASE_S

Kind = Literal["lockfast", "python-redis-lock", "redis-py Lock", "bare BLPOP"]
GUARD_S = 60.0  # seconds after which a process that does not report is given up


class Task(NamedTuple):
    kind: Kind
    begin: float
    until: float


class Competitors:
    """`processes` times `threads` competitors, which stay connected from one stretch of time to the next."""

    def __init__(self, port: int, processes: int, threads: int = 1) -> None:
        context = multiprocessing.get_context("forkserver")  # they import once together, not each alone
        context.set_forkserver_preload(["bench.redis_competitors", "redis", "redis_lock"])
        name = f"bench:{processes}x{threads}"
        Token.mint(port, name)
        self._pipes, self._workers = [], []
        for _ in range(processes):
            here, there = context.Pipe()
            worker = context.Process(target=_serve, args=(port, name, threads, there))
            worker.start()
            there.close()  # then a worker that dies is noticed at once
            self._pipes.append(here)
            self._workers.append(worker)

    def __enter__(self) -> Competitors:
        return self

    def compete(self, kind: Kind, seconds: float, members: int | None = None) -> tuple[Task, list[array[float]]]:
        """The first `members` processes take part. Each competitor's notes: asked, granted, released, asked, …"""
        pipes = self._pipes[:members]
        begin = time.monotonic() + 0.1 + 0.005 * len(pipes)
        task = Task(kind, begin, begin + seconds)
        for pipe in pipes:
            pipe.send(task)
        return task, [notes for pipe in pipes for notes in receive(pipe, seconds)]

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for worker in self._workers:
            worker.join(10)
            worker.kill()  # only one that did not end by itself is still there to be killed


def receive(pipe: Connection, seconds: float) -> list[array[float]]:
    if not pipe.poll(seconds + GUARD_S):
        raise TimeoutError("a competing process did not report")
    answer = pipe.recv()
    if isinstance(answer, str):
        raise RuntimeError(f"a competing process failed: {answer}")
    notes: list[array[float]] = answer
    return notes


def _serve(port: int, name: str, threads: int, pipe: Connection) -> None:
    """In a process of its own: follow commands until there are no more."""
    with ExitStack() as stack:
        locks = stack.enter_context(lockfast.connect(f"redis://127.0.0.1:{port}/0"))
        competitors = [_open(locks, port, name) for _ in range(threads)]
        while True:
            try:
                task = pipe.recv()
            except EOFError:
                return
            try:
                pipe.send(_compete(task, [every[task.kind] for every in competitors]))
            except Exception:
                pipe.send(traceback.format_exc())


def _open(locks: lockfast.Locks, port: int, name: str) -> dict[Kind, AbstractContextManager[Any]]:
    client = need("redis").Redis(port=port, socket_timeout=None)  # by default it gives up waiting after 5 s
    return {
        "lockfast": locks.lock(name),
        "python-redis-lock": need("redis_lock").Lock(client, name, expire=LEASE_S),
        "redis-py Lock": client.lock(f"{name}:redis-py", timeout=LEASE_S),
        "bare BLPOP": Token(port, name),
    }


def _compete(task: Task, locks: list[AbstractContextManager[Any]]) -> list[array[float]]:
    if len(locks) == 1:
        return [hold_again_and_again(task, locks[0])]
    notes: list[array[float]] = []
    threads = [threading.Thread(target=_note, args=(task, lock, notes)) for lock in locks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(notes) < len(locks):
        raise RuntimeError("a thread failed; what it said is on stderr")
    return notes


def _note(task: Task, lock: AbstractContextManager[Any], notes: list[array[float]]) -> None:
    notes.append(hold_again_and_again(task, lock))


def hold_again_and_again(task: Task, lock: AbstractContextManager[Any]) -> array[float]:
    notes, now = array("d"), time.monotonic
    time.sleep(max(0.0, task.begin - now()))
    while (asked := now()) < task.until:
        with lock:
            granted = now()
            released = now()
        notes.extend((asked, granted, released))
    return notes
