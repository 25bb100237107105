"""Processes that want one lock all the time, and what they note.

Decides: how competitors are started, commanded and read. Each notes for every hold when it asked, when it was
granted and when it called release, on the clock that all processes of a host share.
Leaves to each backend's file: which locks there are. Leaves to `rounds`: what the notes mean.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
import traceback
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

GUARD_S = 60.0  # seconds after which a process that does not report is given up
_READY = "ready"

Opened = Sequence[Mapping[str, AbstractContextManager[Any]]]  # for each thread, its lock of each kind


class Task(NamedTuple):
    kind: str
    begin: float
    until: float


OpenedTasks = Callable[[Task], "list[array[float]]"]  # carries out the whole stretch by itself
Opener = Callable[..., AbstractContextManager[Opened | OpenedTasks]]


class Competitors:
    """Processes that stay connected from one stretch of time to the next. Each opens its own locks, by `opener`.

    Nothing is sent to a server before the first stretch, by any kind of lock, so that the first stretch of new
    competitors shows the start-up of all kinds alike.
    """

    def __init__(self, processes: int, opener: Opener, *args: object, preload: Sequence[str] = ()) -> None:
        context = multiprocessing.get_context("forkserver")  # they import once together, not each alone
        context.set_forkserver_preload([opener.__module__, *preload])
        self._pipes, self._workers = [], []
        for _ in range(processes):
            here, there = context.Pipe()
            worker = context.Process(target=_serve, args=(there, opener, args))
            worker.start()
            there.close()  # then a worker that dies is noticed at once
            self._pipes.append(here)
            self._workers.append(worker)

    def __enter__(self) -> Competitors:
        try:
            for pipe in self._pipes:
                if _received(pipe, GUARD_S) != _READY:
                    raise RuntimeError("a competing process did not start")
        except BaseException:
            self.__exit__()
            raise
        return self

    def compete(self, kind: str, seconds: float, members: int | None = None) -> tuple[Task, list[array[float]]]:
        """The first `members` processes take part. Each competitor's notes: asked, granted, released, asked, …"""
        pipes = self._pipes[:members]
        begin = time.monotonic() + 0.1 + 0.005 * len(pipes)
        task = Task(kind, begin, begin + seconds)
        for pipe in pipes:
            pipe.send(task)
        return task, [notes for pipe in pipes for notes in _notes(pipe, seconds)]

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for worker in self._workers:
            worker.join(10)
            worker.kill()  # only one that did not end by itself is still there to be killed


def _received(pipe: Connection, seconds: float) -> Any:
    if not pipe.poll(seconds):
        raise TimeoutError("a competing process did not report")
    return pipe.recv()


def _notes(pipe: Connection, seconds: float) -> list[array[float]]:
    answer = _received(pipe, seconds + GUARD_S)
    if isinstance(answer, str):
        raise RuntimeError(f"a competing process failed: {answer}")
    notes: list[array[float]] = answer
    return notes


def _serve(pipe: Connection, opener: Opener, args: tuple[object, ...]) -> None:
    """In a process of its own: follow commands until there are no more."""
    with opener(*args) as competitors:
        pipe.send(_READY)
        while True:
            try:
                task = pipe.recv()
            except EOFError:
                return
            try:
                if callable(competitors):
                    pipe.send(competitors(task))
                else:
                    pipe.send(_compete(task, [every[task.kind] for every in competitors]))
            except Exception:
                pipe.send(traceback.format_exc())


def _compete(task: Task, locks: list[AbstractContextManager[Any]]) -> list[array[float]]:
    if len(locks) == 1:
        return [_hold_again_and_again(task, locks[0])]
    notes: list[array[float]] = []
    threads = [threading.Thread(target=_note, args=(task, lock, notes)) for lock in locks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(notes) < len(locks):
        raise RuntimeError("a thread failed; its traceback is on stderr")
    return notes


def _note(task: Task, lock: AbstractContextManager[Any], notes: list[array[float]]) -> None:
    notes.append(_hold_again_and_again(task, lock))


def _hold_again_and_again(task: Task, lock: AbstractContextManager[Any]) -> array[float]:
    notes, now = array("d"), time.monotonic
    time.sleep(max(0.0, task.begin - now()))
    while (asked := now()) < task.until:
        with lock:
            granted = now()
            released = now()
        notes.extend((asked, granted, released))
    return notes
