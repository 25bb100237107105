"""A second connection to a Redis server, made by the same thread while the first is silent.

Decides: which of the two counts: the one on which the server answers first.
Leaves to `second_tries`: when there is a second one, and why. Leaves to redis-py: the handshake of each.

redis-py makes a connection in one call. So the second one is made in the middle of that call, where the first waits for
its first byte, and the second waits for either. Until the second has a socket nothing watches the first, so a server
that accepts no more connections costs no more than a moment.
"""

from __future__ import annotations

import math
import select
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import redis

from lockfast._time import boot_now
from lockfast.backends.connecting.second_tries import CHECK_EVERY_S, SecondTries, suspect_after

# Takes until when, in how many seconds the system has to make the connection, and what to call before the first byte.
Connect = Callable[[float, float, Callable[[socket.socket], None]], Any]


class _SecondIsReady(Exception):
    def __init__(self, connection: Any) -> None:
        self.connection = connection


class _FirstAnswers(Exception):
    pass


def connect_beside(tries: SecondTries, connect: Connect, until: float, within: float) -> Any:
    """A connection of redis-py after its handshake. `within` decides when it is suspect, see `suspect_after`.

    Raises as `connect` does for the first of the two.
    """
    now = boot_now()
    wait = partial(_wait_for_first, tries, connect, until, now + suspect_after(within))
    try:
        return connect(until, until - now, wait)
    except _SecondIsReady as ready:
        return ready.connection


def _wait_for_first(
    tries: SecondTries, connect: Connect, until: float, suspect_at: float, first: socket.socket
) -> None:
    """Returns once the server has sent something there, or nothing else can be done than to wait for that."""
    if _readable(suspect_at, first):
        return
    while not tries.may_begin():
        if boot_now() >= until or _readable(min(until, boot_now() + CHECK_EVERY_S), first):
            return
    try:
        second = connect(until, suspect_after(until - boot_now()), partial(_wait_for_either, first, until))
    except (_FirstAnswers, redis.RedisError, OSError):
        return
    tries.worked()
    raise _SecondIsReady(second)


def _wait_for_either(first: socket.socket, until: float, second: socket.socket) -> None:
    if first.fileno() in _readable(until, first, second):
        raise _FirstAnswers


def _readable(until: float, *sockets: socket.socket) -> set[int]:
    """The numbers of those on which something has arrived, or that have ended; empty when the time is over."""
    poll = select.poll()
    for one in sockets:
        poll.register(one.fileno(), select.POLLIN)
    return {number for number, _ in poll.poll(max(0, math.ceil((until - boot_now()) * 1000)))}
