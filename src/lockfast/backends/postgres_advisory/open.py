"""From a URL, a ready client or parameters of PostgreSQL to its advisory locks."""

from __future__ import annotations

from functools import partial
from urllib.parse import SplitResult

from lockfast.backends.opening import BackendFactory, ConnectOptions, refuse_fragment
from lockfast.backends.postgres.io.endpoint import PostgresEndpoint, endpoint_of_client, endpoint_of_url
from lockfast.backends.postgres_advisory.backend import PostgresAdvisoryBackend
from lockfast.errors import Unsupported


def open_url(parts: SplitResult, options: ConnectOptions) -> BackendFactory:
    _refuse(options)
    refuse_fragment(parts)
    return _at(endpoint_of_url(parts, advisory=True))


def open_client(client: object, options: ConnectOptions) -> BackendFactory | None:
    """None if it is no client of PostgreSQL."""
    _refuse(options)
    endpoint = endpoint_of_client(client, advisory=True)
    return None if endpoint is None else _at(endpoint)


def _refuse(options: ConnectOptions) -> None:
    if options.replicas:
        raise Unsupported("advisory locks are in the memory of one server, and on no replica; nothing was sent")
    if options.schema is not None:
        raise Unsupported("advisory locks have no schema to choose; nothing was sent")
    options.refuse_all_but("advisory", where="PostgreSQL")


def _at(endpoint: PostgresEndpoint) -> BackendFactory:
    return partial(PostgresAdvisoryBackend, endpoint)
