"""From a URL, a ready client or parameters of PostgreSQL to the lock table; and the script that makes the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple
from urllib.parse import SplitResult

from lockfast.backends.opening import BackendFactory, ConnectOptions, refuse_fragment
from lockfast.backends.postgres.io.endpoint import PostgresEndpoint, endpoint_of_client, endpoint_of_url
from lockfast.backends.postgres_table.backend import PostgresTableBackend
from lockfast.backends.postgres_table.io.driver import open_driver
from lockfast.backends.postgres_table.requests import Catalogue
from lockfast.backends.postgres_table.schema import VERSION, script, script_in_one, valid_schema
from lockfast.errors import Unsupported


def open_url(parts: SplitResult, options: ConnectOptions) -> BackendFactory:
    _refuse(options, f"{parts.scheme}://")
    refuse_fragment(parts)
    return _at(endpoint_of_url(parts), options)


def open_client(client: object, options: ConnectOptions) -> BackendFactory | None:
    """None if it is no client of PostgreSQL."""
    _refuse(options, "PostgreSQL")
    endpoint = endpoint_of_client(client)
    return None if endpoint is None else _at(endpoint, options)


def _refuse(options: ConnectOptions, where: str) -> None:
    if options.replicas:
        raise Unsupported("PostgreSQL waits for replicas if its synchronous_standby_names say so; nothing was sent")
    options.refuse_all_but("schema", where=where)


def _at(endpoint: PostgresEndpoint, options: ConnectOptions) -> BackendFactory:
    endpoint = _in_schema(endpoint, options.schema)
    catalogue = Catalogue(valid_schema(endpoint.schema))
    return lambda world, clock: PostgresTableBackend(
        open_driver(endpoint, world, clock, catalogue.many, VERSION), catalogue
    )


def _in_schema(endpoint: PostgresEndpoint, schema: str | None) -> PostgresEndpoint:
    """As if the URL had said so."""
    return endpoint if schema is None else replace(endpoint, schema=schema)


class Migration(NamedTuple):
    script: str  # for a transaction of the caller's
    adopting: str  # with transactions of its own, which adopt a lock table of the user's too
    run: Callable[[Callable[[str], None]], None]  # reports the messages of the script
    url: str  # where, without a password


def migration(parts: SplitResult, schema: str | None) -> Migration:
    from lockfast.backends.postgres_table.io.migrate import run_script

    endpoint = _in_schema(endpoint_of_url(parts), schema)
    schema = valid_schema(endpoint.schema)
    text = script(schema)
    return Migration(script_in_one(schema), text, partial(run_script, endpoint, text), endpoint.url)
