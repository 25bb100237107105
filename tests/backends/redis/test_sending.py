"""A request is written at once, and what the kernel has no room for is written within the time limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from os import write
from typing import Any
from urllib.parse import urlsplit

import pytest

from lockfast.backends.redis.io import blocking_connection
from lockfast.backends.redis.io.blocking_connection import BlockingConnection
from lockfast.backends.redis.io.resp import command
from lockfast.backends.redis.io.urls import endpoint_of_url
from tests.servers.server import Server
from tests.servers.waiting import LIMIT_S

LONG = b"x" * 20_000_000  # more than the sockets of both ends can hold

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def connection() -> Iterator[Any]:
    with Server() as server:
        connection = BlockingConnection(endpoint_of_url(urlsplit(server.url)), None, LIMIT_S)
        yield connection
        connection.close()


def _no_room(_: int, __: bytes) -> int:
    raise BlockingIOError


def _room_for_three(number: int, request: bytes) -> int:
    return write(number, request[:3])


@pytest.mark.parametrize("written", [_no_room, _room_for_three])
def test_what_did_not_fit_follows(
    connection: Any, monkeypatch: pytest.MonkeyPatch, written: Callable[[int, bytes], int]
) -> None:
    monkeypatch.setattr(blocking_connection, "write", written)
    assert connection.ask(command("ECHO", "all of it"), LIMIT_S) == b"all of it"
    assert connection.ask(command("ECHO", "and the next"), LIMIT_S) == b"and the next"


def test_a_request_may_be_larger_than_the_kernel_can_hold(connection: Any) -> None:
    assert connection.ask(command("STRLEN", LONG), LIMIT_S) == 0
    assert connection.ask(command("ECHO", "the next"), LIMIT_S) == b"the next"
