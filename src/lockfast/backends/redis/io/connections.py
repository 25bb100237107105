"""redis-py's connection classes, adapted: each kind for threads and for asyncio.

Decides: how long a whole handshake may take, that connections share one TLS context, how one is closed, and which of
our classes stands for the class of a ready client.
Leaves to `endpoints`: where to, and with which settings. Leaves to redis-py: the handshake.
"""

from __future__ import annotations

import ssl
import sys
from typing import Any, Final

import redis
import redis.asyncio

from lockfast._time import boot_now

_LIBRARIES: Final = ("redis", "redis.asyncio", "valkey", "valkey.asyncio")  # of which the last two may be missing
_KIND_OF_CLASS: Final = {"SSLConnection": "tls", "Connection": "tcp", "UnixDomainSocketConnection": "unix"}
_WITHOUT_EFFECT: Final = frozenset({"repr_pieces", "description_format"})  # on how a connection is made


def kind_of_class(given: type) -> str:
    """The kind of connection that a class of a ready client makes: "tcp", "tls" or "unix".

    Raises ValueError for a class that changes how connections are made: ours would leave that out, and so might send a
    login unencrypted, or to another server.
    """
    changed = _changed_by(given)
    for name, kind in _KIND_OF_CLASS.items():  # a class for TLS is one for TCP too
        if issubclass(given, _of_libraries(name)) and not changed:
            return kind
    why = f"changes {', '.join(changed)}" if changed else "is no class of redis-py"
    raise ValueError(
        f"connect() makes its own connections, and this client's connection class {given.__name__} {why}, which they "
        "would leave out; pass a client without it, or a URL (a credential_provider is used)"
    )


def _of_libraries(name: str) -> tuple[type, ...]:
    return tuple(getattr(sys.modules[library], name) for library in _LIBRARIES if library in sys.modules)


def _changed_by(given: type) -> list[str]:
    """What classes outside of the libraries put in place of what the libraries' class does."""
    own = [one for one in given.__mro__ if one.__module__.partition(".")[0] not in _LIBRARIES and one is not object]
    theirs = next((one for one in given.__mro__ if one.__module__.partition(".")[0] in _LIBRARIES), object)
    names = {name for one in own for name in vars(one) if hasattr(theirs, name)} - _WITHOUT_EFFECT
    return sorted(name for name in names if not name.startswith("__") or name in ("__init__", "__new__"))


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
