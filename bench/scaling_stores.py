"""The stores whose costs are followed: how each is started, how much CPU its server has used, and how big it is.

What is opened can be sent to another process, which measures.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg
from tests.servers.postgres import PostgresServer
from tests.servers.server import Server

from bench.postgres_table_floor import NOT_DURABLE, prepare
from bench.redis_server import client

_PROC = Path("/proc")
_NS_PER_S = 1e9
_COPIES_AT_ONCE: Final = 10_000
_COPY: Final = """local value, ttl = redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])
for number = ARGV[3], ARGV[4] do
  redis.call('SET', ARGV[1] .. string.format('%d', number) .. ARGV[2], value, 'PX', ttl)
end"""
_SIZE = """SELECT sum(pg_total_relation_size(oid)) FROM pg_class
    WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND relname <> 'bare'"""


@dataclass(frozen=True)
class OpenedStore:
    url: str
    size: Callable[[str], int]  # bytes, from the url
    pid: int | None = None  # of the server; None if there is none
    at_once: int = 500  # requests with which it is filled fastest
    copy_name: Callable[[str, str, int, int], None] | None = (
        None  # see _copy_name; None where a used name leaves nothing
    )
    forget_lists: Callable[[str], None] | None = (
        None  # makes the next `list` as the first one; None where all are alike
    )

    def bytes(self) -> int:
        return self.size(self.url)

    def cpu(self) -> float | None:
        """Seconds that the server and its children have run; None where that cannot be known."""
        if self.pid is None or not (_PROC / str(self.pid) / "schedstat").exists():
            return None
        return sum(map(_ran, [self.pid, *_children(self.pid)]))


def _ran(pid: int) -> float:
    with suppress(OSError):  # it has just ended
        return sum(int(task.read_text().split()[0]) for task in _PROC.glob(f"{pid}/task/*/schedstat")) / _NS_PER_S
    return 0.0


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(child) for child in (_PROC / f"{pid}/task/{pid}/children").read_text().split()]
    return []


class Store(NamedTuple):
    name: str
    opened: Callable[[Path], AbstractContextManager[OpenedStore]]  # from a path of its own


@contextmanager
def _redis(_: Path) -> Iterator[OpenedStore]:
    with Server() as server:
        yield OpenedStore(server.url, _redis_size, server.pid, copy_name=_copy_name, forget_lists=_forget_lists)


def _redis_size(url: str) -> int:
    return int(_client_of(url).info("memory")["used_memory"])


def _client_of(url: str) -> Any:
    return client(int(url.rpartition(":")[2].partition("/")[0]))


def _copy_name(url: str, name: str, first: int, n: int) -> None:
    """What the used `name`-0 has left, once more for each number: a million uses would take minutes."""
    server = _client_of(url)
    keys = list(server.scan_iter(f"*{name}-0}}*"))
    if not keys:
        raise RuntimeError("a used name has left no key that could be copied")
    for key in keys:
        before, _, after = key.decode().partition(f"{name}-0")
        for start in range(first, n, _COPIES_AT_ONCE):
            numbers = (start, min(start + _COPIES_AT_ONCE, n) - 1)
            server.eval(_COPY, 1, key, f"{before}{name}-", after, *numbers)


def _forget_lists(url: str) -> None:
    _client_of(url).delete("lockfast:listed")


@contextmanager
def _postgres(_: Path) -> Iterator[OpenedStore]:
    with PostgresServer(NOT_DURABLE) as server:
        prepare(server.url)
        yield OpenedStore(server.url, _postgres_size, server.pid)


def _postgres_size(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        (size,) = connection.execute(_SIZE).fetchone() or (0,)
        return int(size)


@contextmanager
def _sqlite(path: Path) -> Iterator[OpenedStore]:
    yield OpenedStore(f"sqlite:///{path.with_suffix('.db')}", _sqlite_size, at_once=1)


def _sqlite_size(url: str) -> int:
    """Of the file; its log is of bounded length."""
    file = url.removeprefix("sqlite:///")
    return os.path.getsize(file) if os.path.exists(file) else 0


STORES: Final = (Store("Redis", _redis), Store("PostgreSQL table", _postgres), Store("SQLite", _sqlite))
