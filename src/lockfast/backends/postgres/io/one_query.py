"""One query to a PostgreSQL server, on a connection of its own that is closed afterwards.

Decides: how it is sent in either world. It sets and prepares nothing, so any pooler may be between.
"""

from __future__ import annotations

import json
from functools import partial

from psycopg import pq

from lockfast._time import boot_now
from lockfast.backends.postgres.io.endpoint import PostgresEndpoint, conninfo
from lockfast.backends.postgres.io.refusals import Broken, no_connection
from lockfast.backends.postgres.io.resolver import Names, each_address
from lockfast.backends.postgres.io.stepping import Late, run, run_first_ready
from lockfast.backends.postgres.io.wire import connect, last_result

# No operator, which a role could define for its own purposes in a schema of the caller's search_path.
_IDENTITY = """SELECT pg_catalog.json_build_array(
    pg_catalog.current_setting('server_version'), pg_catalog.pg_is_in_recovery())"""


async def identify(endpoint: PostgresEndpoint, within: float, *, blocking: bool) -> tuple[str, str]:
    """Version and role of the server, whatever its database has in it. Raises BackendUnavailable."""
    answer = await ask_once(endpoint, _IDENTITY, within, blocking=blocking)
    version, replica = json.loads(answer)
    return version.partition(" ")[0], "replica" if replica else "primary"


async def ask_once(endpoint: PostgresEndpoint, sql: str, within: float, *, blocking: bool) -> bytes:
    """The one value of the result. Raises BackendUnavailable."""
    until = boot_now() + within
    if blocking:
        return _ask(endpoint, sql, until)
    import asyncio  # takes long to import, and a blocking caller does not need it

    from lockfast._worlds.asyncio_ import in_executor

    return await in_executor(asyncio.get_running_loop(), _ask, endpoint, sql, until)


def _ask(endpoint: PostgresEndpoint, sql: str, until: float) -> bytes:
    reasons: list[Exception] = []
    for params, end in each_address(Names(), endpoint, until, reasons):
        try:
            answer = _ask_host(endpoint, conninfo(params), sql, end)
            endpoint.remember(params)
            return answer
        except (Late, Broken) as reason:
            reasons.append(reason)
    raise no_connection(endpoint, reasons)


def _ask_host(endpoint: PostgresEndpoint, conninfo: bytes, sql: str, until: float) -> bytes:
    pg = run_first_ready(endpoint.second_tries, partial(connect, conninfo), until)
    try:
        result = run(last_result(pg, lambda: pg.send_query(sql.encode())), until)
        value = result.get_value(0, 0) if result.status == pq.ExecStatus.TUPLES_OK else None
        if value is None:
            raise Broken(result.error_message.decode(errors="replace").strip())
        return bytes(value)
    finally:
        pg.finish()
