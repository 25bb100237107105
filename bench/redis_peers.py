"""Other people's locks on Redis, each as one acquire and release of a free lock.

Decides: how each of them is used: at its defaults, with a lease of 30 s, on one client that is connected already.
A peer that is not installed, or does not run here, is not in the table and named on stderr; `redis.lock.Lock` and
python-redis-lock, which bounds are stated against, must be there.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from bench.peers import Missing, need

LEASE_S = 30  # seconds
Cycle = Callable[[], object]
AsyncCycle = Callable[[], Awaitable[None]]


def blocking_peers(port: int) -> dict[str, Cycle]:
    """By name, those that ran once without an error."""
    makers = {"pottery": _pottery, "sherlock": _sherlock}
    peers = {"redis-py Lock": _redis_py(port), "python-redis-lock": _python_redis_lock(port)}
    for name, make in makers.items():
        try:
            peers[name] = make(port)
            peers[name]()
        except Exception as error:
            skip_peer(name, error)
            peers.pop(name, None)
    return peers


def skip_peer(name: str, error: Exception) -> None:
    why = str(error) if isinstance(error, Missing) else f"{type(error).__name__}: {error}"
    print(f"  {name} is skipped: {why}", file=sys.stderr)


def _redis_py(port: int) -> Cycle:
    lock = need("redis").Redis(port=port).lock("bench:redis-py", timeout=LEASE_S)
    return held(lock)


def _python_redis_lock(port: int) -> Cycle:
    lock = need("redis_lock").Lock(need("redis").Redis(port=port), "bench:python-redis-lock", expire=LEASE_S)
    return held(lock)


def _pottery(port: int) -> Cycle:
    client = need("redis").Redis(port=port)
    lock = need("pottery").Redlock(key="bench:pottery", masters={client}, auto_release_time=LEASE_S)
    return held(lock)


def _sherlock(port: int) -> Cycle:
    logging.getLogger("sherlock").setLevel(logging.WARNING)
    client = need("redis").StrictRedis(port=port)
    lock = need("sherlock").RedisLock("bench:sherlock", client=client, expire=LEASE_S)
    return held(lock)


def held(lock: Any) -> Cycle:
    """Whatever has `acquire` and `release`, taken and given back."""

    def cycle() -> None:
        _taken(lock.acquire())
        lock.release()

    return cycle


def _taken(lock: Any) -> Any:
    if not lock:
        raise RuntimeError("a free lock was not granted")
    return lock
