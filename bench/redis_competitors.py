"""Processes that want one Redis lock all the time: ours, those of peers, and a floor.

Decides: which locks compete. Leaves to `competitors`: the processes. Leaves to `rounds`: what the notes mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal

import lockfast
from bench.competitors import Competitors, Opened
from bench.peers import need
from bench.redis_floor import Queue
from bench.redis_peers import LEASE_S

Kind = Literal["lockfast", "bare queue", "python-redis-lock", "redis-py Lock"]


def redis_competitors(port: int, processes: int, name: str, threads: int = 1) -> Competitors:
    """`processes` times `threads` competitors for one name. None of them connects before it first wants its lock."""
    return Competitors(processes, _opened, port, name, threads, preload=("redis", "redis_lock"))


@contextmanager
def _opened(port: int, name: str, threads: int) -> Iterator[Opened]:
    with lockfast.connect(f"redis://127.0.0.1:{port}/0") as locks:
        yield [_of_one_thread(locks, port, name) for _ in range(threads)]


def _of_one_thread(locks: lockfast.Locks, port: int, name: str) -> dict[str, AbstractContextManager[Any]]:
    client = need("redis").Redis(port=port, socket_timeout=None)  # by default it gives up waiting after 5 s
    return {
        "lockfast": locks.lock(name),
        "bare queue": Queue(port, name),
        "python-redis-lock": need("redis_lock").Lock(client, name, expire=LEASE_S),
        "redis-py Lock": client.lock(f"{name}:redis-py", timeout=LEASE_S),
    }
