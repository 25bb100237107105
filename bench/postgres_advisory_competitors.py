"""Processes that want one advisory lock all the time: ours, and the bare pair of statements.

Decides: which locks compete. Leaves to `competitors`: the processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

import psycopg

import lockfast
from bench.competitors import Competitors, Opened

Kind = Literal["lockfast", "bare"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def advisory_competitors(url: str, processes: int) -> Competitors:
    return Competitors(processes, _opened, url)


@contextmanager
def _opened(url: str) -> Iterator[Opened]:
    with lockfast.connect(url.replace("postgresql:", "postgresql+advisory:")) as locks:
        yield [{"lockfast": locks.lock("bench"), "bare": _Bare(url)}]


class _Bare:
    """The pair of statements, as a context manager."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._cursor: psycopg.Cursor[Any] | None = None

    def __enter__(self) -> None:
        if self._cursor is None:
            self._cursor = psycopg.connect(self._url, autocommit=True).cursor()
        self._cursor.execute("SELECT pg_advisory_lock(%s)", (4711,)).fetchone()

    def __exit__(self, *_: object) -> None:
        assert self._cursor is not None
        self._cursor.execute("SELECT pg_advisory_unlock(%s)", (4711,)).fetchone()
