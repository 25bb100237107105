"""From a URL or a ready client of Redis or Valkey to the backend."""

from __future__ import annotations

from urllib.parse import SplitResult

from lockfast.backends.opening import BackendFactory, ConnectOptions, refuse_fragment
from lockfast.backends.redis.backend import RedisBackend
from lockfast.backends.redis.io.blocking import open_driver
from lockfast.backends.redis.io.endpoints import RedisEndpoint
from lockfast.backends.redis.io.urls import endpoint_of_client, endpoint_of_url
from lockfast.backends.redis.requests import read_scripts


def open_url(parts: SplitResult, options: ConnectOptions) -> BackendFactory:
    options.refuse_all_but("replicas", where=f"{parts.scheme}://")
    refuse_fragment(parts)
    return _at(endpoint_of_url(parts), options)


def open_client(client: object, options: ConnectOptions) -> BackendFactory | None:
    """None if it is no client of redis-py or valkey-py."""
    options.refuse_all_but("replicas", where="Redis")
    endpoint = endpoint_of_client(client)
    return None if endpoint is None else _at(endpoint, options)


def _at(endpoint: RedisEndpoint, options: ConnectOptions) -> BackendFactory:
    read_scripts()
    return lambda world, clock: RedisBackend(open_driver(endpoint, world, clock, options.replicas))
