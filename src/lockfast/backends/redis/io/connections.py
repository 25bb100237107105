"""redis-py's connection classes, adapted: each kind for threads and for asyncio.

Decides: how long a whole handshake may take, that connections share one TLS context, and how one is closed.
Leaves to `endpoints`: where to, and with which settings. Leaves to redis-py: the handshake.
"""

from __future__ import annotations

import ssl
from typing import Any

import redis
import redis.asyncio

from lockfast._time import boot_now


def is_of_a_closed_connection(error: RuntimeError) -> bool:
    """uvloop raises it for a write after the end of a connection and before `connection_lost`."""
    return "handler is closed" in str(error)


def hang_up(connection: Any) -> None:
    """Close it abruptly; redis-py has nothing to close later."""
    writer = connection._writer
    connection._reader = connection._writer = None
    if writer is not None:
        writer.transport.abort()


class _Timed:
    """redis-py limits the time of each reply of the handshake; this limits all of them together."""

    until = 0.0

    def read_response(self, *args: Any, **options: Any) -> Any:
        connection: Any = super()
        self._sock: Any
        self._sock.settimeout(max(0.001, self.until - boot_now()))
        return connection.read_response(*args, **options)


class _Tcp(_Timed, redis.Connection):
    pass


class _Tls(_Timed, redis.Connection):
    def __init__(self, *, context: ssl.SSLContext, **settings: Any) -> None:
        super().__init__(**settings)  # type: ignore[no-untyped-call]
        self._context = context

    def _connect(self) -> ssl.SSLSocket:
        plain = super()._connect()  # type: ignore[no-untyped-call]
        try:
            return self._context.wrap_socket(plain, server_hostname=self.host)
        except BaseException:
            plain.close()
            raise


class _TlsOfRedisPy(_Timed, redis.SSLConnection):
    pass


class _Unix(_Timed, redis.UnixDomainSocketConnection):
    pass


KINDS: dict[str, Any] = {"tcp": _Tcp, "tls": _Tls, "tls of redis-py": _TlsOfRedisPy, "unix": _Unix}


class _Abrupt:
    """redis-py says goodbye to a server that refused it. With TLS that may take longer than the event loop lives."""

    async def disconnect(self, *args: Any, **options: Any) -> None:
        hang_up(self)


class _AsyncTcp(_Abrupt, redis.asyncio.Connection):
    pass


class _AsyncTls(_Abrupt, redis.asyncio.Connection):
    def __init__(self, *, context: ssl.SSLContext, **settings: Any) -> None:
        super().__init__(**settings)
        self._context = context

    def _connection_arguments(self) -> Any:
        return {**super()._connection_arguments(), "ssl": self._context}


class _AsyncTlsOfRedisPy(_Abrupt, redis.asyncio.SSLConnection):
    pass


class _AsyncUnix(_Abrupt, redis.asyncio.UnixDomainSocketConnection):
    pass


ASYNC_KINDS: dict[str, Any] = {
    "tcp": _AsyncTcp,
    "tls": _AsyncTls,
    "tls of redis-py": _AsyncTlsOfRedisPy,
    "unix": _AsyncUnix,
}
