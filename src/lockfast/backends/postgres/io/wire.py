"""PostgreSQL, for both worlds: the steps of connecting and of one exchange with the server.

Leaves to the drivers: to wait for the socket. The steps are generators that yield the socket that they wait for.

psycopg's wrapper of libpq is used directly: its cursors cost as much as the server does for one of our statements.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Any, Final, Literal

import psycopg
from psycopg import pq

from lockfast.backends.postgres.io.refusals import Broken, message_of, one_line

Steps = Generator[tuple[int, Literal["r", "w"]], None, Any]  # yields a socket, and whether to read or to write
MIN_PIPELINE: Final = 140000  # version of libpq
_CONNECTED: Final = (pq.PollingStatus.OK, pq.PollingStatus.FAILED)  # or not at all
_open: weakref.WeakSet[Any] = weakref.WeakSet()  # libpq's connections of this process, also those that are being made


def connect(conninfo: bytes) -> Steps:
    """A connection. Raises Broken. Its socket may change on the way, and there is none once it has failed.

    What is not connected in the end is closed at once, also if these steps are closed before they end: the error keeps
    this frame, so the garbage collector would close its socket some time later.
    """
    pg = None
    try:
        pg = pq.PGconn.connect_start(conninfo)
        _open.add(pg)  # before the first step: a fork may come at any of them
        status: int = pq.PollingStatus.WRITING
        while pg.status != pq.ConnStatus.BAD and status not in _CONNECTED:
            yield pg.socket, "r" if status == pq.PollingStatus.READING else "w"
            status = pg.connect_poll()
        if status != pq.PollingStatus.OK:
            raise Broken(message_of(pg))
        pg.nonblocking = 1
    except BaseException as error:
        if pg is not None:
            pg.finish()
        if isinstance(error, psycopg.Error):
            raise Broken(one_line(str(error))) from error
        raise
    return pg


def last_result(pg: pq.abc.PGconn, send: Callable[[], None]) -> Steps:
    """The last result of what `send` sends. Raises Broken."""
    try:
        send()
        while pg.flush():
            yield pg.socket, "w"
        last = None
        while True:
            while pg.is_busy():
                yield pg.socket, "r"
                pg.consume_input()
            result = pg.get_result()
            if result is None:
                return last
            last = result
    except psycopg.Error as error:
        raise Broken(one_line(str(error))) from error


def pipelined(pg: pq.abc.PGconn, sends: Sequence[Callable[[], None]]) -> Steps:
    """The result of each of these requests, up to the first error, in one round trip. Raises Broken."""
    try:
        pg.enter_pipeline_mode()
        for send in sends:
            send()
        pg.pipeline_sync()
        while pg.flush():
            yield pg.socket, "w"
        results: list[Any] = []
        while True:
            while pg.is_busy():
                yield pg.socket, "r"
                pg.consume_input()
            result = pg.get_result()
            if pg.status == pq.ConnStatus.BAD:
                raise Broken(message_of(pg))
            if result is not None and result.status == pq.ExecStatus.PIPELINE_SYNC:
                with suppress(psycopg.Error):  # a request was sent behind these, see `send_behind`
                    pg.exit_pipeline_mode()
                return results
            if result is not None and result.status != pq.ExecStatus.PIPELINE_ABORTED:
                results.append(result)
    except psycopg.Error as error:
        raise Broken(one_line(str(error))) from error


def send_behind(pg: pq.abc.PGconn, send: Callable[[], None]) -> bool:
    """Send one more request while those of `pipelined` are under way; the server carries it out after them, even if the
    connection is closed meanwhile. Its reply is never read, so the connection must not be used for others.

    False if it cannot be sent. A part of it may be sent only once the socket takes more: libpq has it from then on.
    """
    if pg.pipeline_status != pq.PipelineStatus.ON:
        return False
    with suppress(psycopg.Error):  # the connection has ended
        send()
        pg.pipeline_sync()
        pg.flush()
    return True


def _close_copies() -> None:
    """In a forked child: a copy of a socket would keep the parent's session alive when the parent is killed.

    libpq's connections know that they are in another process now, and send nothing.
    """
    for pg in list(_open):
        with suppress(OSError, psycopg.Error):  # the parent may have lost it, or not have it yet
            os.close(pg.socket)
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_copies)
