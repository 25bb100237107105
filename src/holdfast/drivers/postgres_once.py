"""One question to a PostgreSQL server, on a connection of its own that is gone afterwards.

Decides: how it is asked in either world. Nothing is set or prepared there, so any pooler may stand between.
"""

from __future__ import annotations

import asyncio

from psycopg import pq

from holdfast._time import boot_now
from holdfast.drivers.postgres_lines import Late, run
from holdfast.drivers.postgres_places import Place, conninfo
from holdfast.drivers.postgres_wire import Broken, connect, no_connection, talk, unavailable


async def ask_once(place: Place, sql: str, within: float, *, blocking: bool) -> bytes:
    """The one value of the answer. Raises BackendUnavailable."""
    until = boot_now() + within
    if blocking:
        return _ask(place, sql, until)
    return await asyncio.to_thread(_ask, place, sql, until)


def _ask(place: Place, sql: str, until: float) -> bytes:
    error = unavailable(place.name, "has no host")
    hosts = place.hosts
    for left, params in zip(range(len(hosts), 0, -1), hosts, strict=True):  # each has its share of the time
        now = boot_now()
        try:
            return _ask_host(conninfo(params), sql, now + (until - now) / left)
        except Late:
            error = unavailable(place.name, "did not answer in time")
        except Broken as broken:
            error = no_connection(place.name, [broken])
    raise error


def _ask_host(conninfo: bytes, sql: str, until: float) -> bytes:
    pg = run(connect(conninfo), until)
    try:
        result = run(talk(pg, lambda: pg.send_query(sql.encode())), until)
        value = result.get_value(0, 0) if result.status == pq.ExecStatus.TUPLES_OK else None
        if value is None:
            raise Broken(result.error_message.decode(errors="replace").strip())
        return bytes(value)
    finally:
        pg.finish()
