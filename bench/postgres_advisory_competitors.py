"""Processes that want one advisory lock all the time, and what they note.

Decides: how competitors are started, get their commands and report; see `redis_competitors`.
"""

from __future__ import annotations

import multiprocessing
import time
import traceback
from array import array
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Connection
from typing import Any, Literal, get_args

import psycopg

import lockfast
from bench.redis_competitors import Task, hold_again_and_again, receive

Kind = Literal["lockfast", "bare"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class PostgresCompetitors:
    """Competitors that stay connected from one stretch of time to the next."""

    def __init__(self, url: str, processes: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["bench.postgres_advisory_competitors"])
        self._pipes, self._workers = [], []
        for _ in range(processes):
            here, there = context.Pipe()
            worker = context.Process(target=_serve, args=(url, there))
            worker.start()
            there.close()  # then a worker that dies is noticed at once
            self._pipes.append(here)
            self._workers.append(worker)

    def __enter__(self) -> PostgresCompetitors:
        return self

    def compete(self, kind: Kind, seconds: float) -> tuple[Task, list[array[float]]]:
        begin = time.monotonic() + 0.1 + 0.005 * len(self._pipes)
        task = Task(kind, begin, begin + seconds)  # type: ignore[arg-type]
        for pipe in self._pipes:
            pipe.send(task)
        return task, [notes for pipe in self._pipes for notes in receive(pipe, seconds)]

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for worker in self._workers:
            worker.join(10)
            worker.kill()  # only one that did not end by itself is still there to be killed


class _Bare:
    """The pair of statements, as a context manager."""

    def __init__(self, url: str) -> None:
        self._cursor = psycopg.connect(url, autocommit=True).cursor()

    def __enter__(self) -> None:
        self._cursor.execute("SELECT pg_advisory_lock(%s)", (4711,)).fetchone()

    def __exit__(self, *_: object) -> None:
        self._cursor.execute("SELECT pg_advisory_unlock(%s)", (4711,)).fetchone()


@contextmanager
def _open(url: str) -> Iterator[dict[str, AbstractContextManager[Any]]]:
    with lockfast.connect(url.replace("postgresql:", "postgresql+advisory:")) as locks:
        yield {"lockfast": locks.lock("bench"), "bare": _Bare(url)}


def _serve(url: str, pipe: Connection) -> None:
    """In a process of its own: follow commands until there are no more."""
    with _open(url) as competitors:
        while True:
            try:
                task = pipe.recv()
            except EOFError:
                return
            try:
                pipe.send([hold_again_and_again(task, competitors[task.kind])])
            except Exception:
                pipe.send(traceback.format_exc())
