"""Advisory locks of released packages, each on one connection, and the bare statements.

Decides: how a peer is asked for one cycle of acquire and release. One that cannot be used here is not measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg

from bench.peers import Missing, need

Cycle = Callable[[], object]


def bare_pair(url: str) -> Cycle:
    """What django-pglock and many hand-written locks send too."""
    cursor = psycopg.connect(url, autocommit=True).cursor()

    def cycle() -> None:
        cursor.execute("SELECT pg_advisory_lock(%s)", (4711,)).fetchone()
        cursor.execute("SELECT pg_advisory_unlock(%s)", (4711,)).fetchone()

    return cycle


def peers(url: str) -> dict[str, Cycle]:
    found: dict[str, Cycle] = {}
    for name, make in {"pals": _pals, "sqlalchemy-dlock": _dlock, "tooz": _tooz}.items():
        try:
            found[name] = make(url)
        except Missing:
            continue
    return found


def _of_sqlalchemy(url: str) -> str:
    return url.replace("postgresql:", "postgresql+psycopg:")


def _pals(url: str) -> Cycle:
    lock: Any = need("pals").Locker("bench", _of_sqlalchemy(url)).lock("bench")

    def cycle() -> None:
        lock.acquire()
        lock.release()

    return cycle


def _dlock(url: str) -> Cycle:
    connection = need("sqlalchemy").create_engine(_of_sqlalchemy(url)).connect()
    lock: Any = need("sqlalchemy_dlock").create_sadlock(connection, "bench")

    def cycle() -> None:
        lock.acquire()
        lock.release()

    return cycle


def _tooz(url: str) -> Cycle:
    need("psycopg2")
    coordinator: Any = need("tooz.coordination").get_coordinator(url, b"bench")
    coordinator.start()
    lock = coordinator.get_lock(b"bench")

    def cycle() -> None:
        lock.acquire()
        lock.release()

    return cycle
