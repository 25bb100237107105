"""From a URL, a ready client or parameters of PostgreSQL to the lock table; and the script that makes the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple
from urllib.parse import SplitResult

from lockfast.backends.opening import BackendFactory, ConnectOptions, refuse_fragment
from lockfast.backends.postgres.io.endpoint import Place, place_of_client, place_of_url
from lockfast.backends.postgres_table.backend import PostgresTableBackend
from lockfast.backends.postgres_table.io.blocking import open_driver
from lockfast.backends.postgres_table.requests import Catalogue
from lockfast.backends.postgres_table.schema import VERSION, script, valid_schema
from lockfast.errors import Unsupported


def open_url(parts: SplitResult, options: ConnectOptions) -> BackendFactory:
    _refuse(options, f"{parts.scheme}://")
    refuse_fragment(parts)
    return _at(place_of_url(parts), options)


def open_client(client: object, options: ConnectOptions) -> BackendFactory | None:
    """None if it is no client of PostgreSQL."""
    _refuse(options, "PostgreSQL")
    place = place_of_client(client)
    return None if place is None else _at(place, options)


def _refuse(options: ConnectOptions, where: str) -> None:
    if options.replicas:
        raise Unsupported("PostgreSQL waits for replicas if its synchronous_standby_names say so; nothing was sent")
    options.refuse_all_but("schema", where=where)


def _at(place: Place, options: ConnectOptions) -> BackendFactory:
    place = _in_schema(place, options.schema)
    catalogue = Catalogue(valid_schema(place.schema))
    return lambda world, clock: PostgresTableBackend(
        open_driver(place, world, clock, catalogue.many, VERSION), catalogue
    )


def _in_schema(place: Place, schema: str | None) -> Place:
    """As if the URL had said so."""
    return place if schema is None else replace(place, schema=schema)


class Migration(NamedTuple):
    script: str
    run: Callable[[Callable[[str], None]], None]  # reports the messages of the script
    url: str  # where, without a password


def migration(parts: SplitResult, schema: str | None) -> Migration:
    from lockfast.backends.postgres_table.io.migrate import run_script

    place = _in_schema(place_of_url(parts), schema)
    text = script(valid_schema(place.schema))
    return Migration(text, partial(run_script, place, text), place.url)
