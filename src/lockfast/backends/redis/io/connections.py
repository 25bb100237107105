"""redis-py's connection classes, adapted: each kind for threads and for asyncio.

Decides: how long a whole handshake may take, that connections share one TLS context, how one is closed, and which of
our classes stands for the class of a ready client.
Leaves to `endpoints`: where to, and with which settings. Leaves to redis-py: the handshake.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from inspect import signature
from typing import Any, Final

import redis
import redis.asyncio

from lockfast._time import boot_now

_LIBRARIES: Final = ("redis", "redis.asyncio", "valkey", "valkey.asyncio")  # of which the last two may be missing
_KIND_OF_CLASS: Final = {"SSLConnection": "tls", "Connection": "tcp", "UnixDomainSocketConnection": "unix"}
_WITHOUT_EFFECT: Final = frozenset({"repr_pieces", "description_format"})  # on how a connection is made
_SPECIAL: Final = frozenset({"__init__", "__new__", "__getattribute__", "__setattr__"})  # methods with an effect on it
_OF_POOLS: Final = frozenset(
    {"make_connection", "get_connection", "get_available_connection", "ensure_connection", "get_master_address"}
)
_OF_SENTINELS: Final = frozenset({"discover_master", "discover_slaves", "discover_replicas", "check_master_state"})


def kind_of_class(given: Any) -> str:
    """The kind of connection that a class of a ready client makes: "tcp", "tls" or "unix".

    Raises ValueError for a class that changes how connections are made: ours would leave that out, and so might send a
    login unencrypted, or to another server.
    """
    if not isinstance(given, type):  # such as a functools.partial
        raise unsupported_client(f"connection class is a {type(given).__name__} and no class of redis-py")
    changed = _changed_by(given)
    for name, kind in _KIND_OF_CLASS.items():  # a class for TLS is one for TCP too
        if issubclass(given, _of_libraries(name)) and not changed:
            return kind
    why = f"changes {', '.join(changed)}" if changed else "is no class of redis-py"
    raise unsupported_client(f"connection class {given.__name__} {why}")


def check_pool(pool: object) -> None:
    """Raises ValueError for a pool, or a class of pools, that makes connections in a way of its own."""
    _must_not_define(pool, "connection pool", _OF_POOLS)


def check_sentinels(manager: object) -> None:
    """Raises ValueError for a manager of Sentinels that finds the primary in a way of its own."""
    _must_not_define(manager, "Sentinel manager", _OF_SENTINELS)


def unsupported_client(what: str) -> ValueError:
    return ValueError(
        f"connect() makes its own connections, and this client's {what}, which they would leave out; pass a client "
        "without it, or a URL (a credential_provider is used)"
    )


def _must_not_define(given: object, what: str, names: frozenset[str]) -> None:
    kind = given if isinstance(given, type) else type(given)
    defined = _defined_outside(kind) | ({*getattr(given, "__dict__", {})} if kind is not given else set())
    if changed := sorted(defined & (names | {"__getattribute__"})):
        raise unsupported_client(f"{what} {kind.__name__} changes {', '.join(changed)}")


def _of_libraries(name: str) -> tuple[type, ...]:
    return tuple(getattr(sys.modules[library], name) for library in _LIBRARIES if library in sys.modules)


def _is_of_libraries(one: type) -> bool:
    return one.__module__.partition(".")[0] in _LIBRARIES


def _defined_outside(given: type) -> set[str]:
    """What classes outside of the libraries define."""
    return {name for one in given.__mro__ if not _is_of_libraries(one) and one is not object for name in vars(one)}


def _changed_by(given: type) -> list[str]:
    """What classes outside of the libraries put in place of what the libraries' class does, or of its settings."""
    theirs = next(filter(_is_of_libraries, given.__mro__), object)
    settings = {"ssl_context", *(name for one in theirs.__mro__ for name in signature(one.__init__).parameters)}  # type: ignore[misc]
    changed = [
        name
        for name in _defined_outside(given) - _WITHOUT_EFFECT
        if hasattr(theirs, name) or {name.lstrip("_"), f"ssl_{name}"} & settings
    ]
    return sorted(name for name in changed if not name.startswith("__") or name in _SPECIAL)


def is_of_a_closed_connection(error: RuntimeError) -> bool:
    """uvloop raises it for a write after the end of a connection and before `connection_lost`."""
    return "handler is closed" in str(error)


def hang_up(connection: Any) -> None:
    """Close it abruptly; redis-py has nothing to close later."""
    writer = connection._writer
    connection._reader = connection._writer = None
    if writer is not None:
        with suppress(RuntimeError):  # its event loop is closed: it is collected with that
            _see_end(writer)
            writer.transport.abort()


def _see_end(writer: Any) -> None:
    """A connection that broke in the handshake leaves its error in a future of asyncio's streams, which reports it as
    never retrieved unless its protocol is finalized first: in a cycle of garbage that is not certain."""
    ended = getattr(writer._protocol, "_closed", None)
    if isinstance(ended, asyncio.Future):
        ended.add_done_callback(_retrieve)


def _retrieve(ended: asyncio.Future[Any]) -> None:
    if not ended.cancelled():
        ended.exception()


class _Timed:
    """redis-py limits the time of each reply of the handshake; this limits all of them together."""

    until = 0.0
    before_first_byte: Callable[[socket.socket], None] | None = None  # called once, when the server has to answer

    def read_response(self, *args: Any, **options: Any) -> Any:
        connection: Any = super()
        self._sock: Any
        self.wait_for_first_byte(self._sock)
        self._sock.settimeout(max(0.001, self.until - boot_now()))
        return connection.read_response(*args, **options)

    def wait_for_first_byte(self, connected: socket.socket) -> None:
        wait, self.before_first_byte = self.before_first_byte, None
        if wait is not None:
            wait(connected)


class _Tcp(_Timed, redis.Connection):
    pass


class _Tls(_Timed, redis.Connection):
    def __init__(self, *, context: ssl.SSLContext, **settings: Any) -> None:
        super().__init__(**settings)  # type: ignore[no-untyped-call]
        self._context = context

    def _connect(self) -> ssl.SSLSocket:
        plain = super()._connect()  # type: ignore[no-untyped-call]
        tls = None
        try:
            tls = self._context.wrap_socket(plain, server_hostname=self.host, do_handshake_on_connect=False)
            tls.settimeout(0)
            with suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
                tls.do_handshake()
            self.wait_for_first_byte(tls)
            tls.settimeout(max(0.001, self.until - boot_now()))
            tls.do_handshake()
        except BaseException:
            (tls or plain).close()
            raise
        return tls


class _TlsOfRedisPy(_Timed, redis.SSLConnection):
    pass


class _Unix(_Timed, redis.UnixDomainSocketConnection):
    pass


KINDS: dict[str, Any] = {"tcp": _Tcp, "tls": _Tls, "tls of redis-py": _TlsOfRedisPy, "unix": _Unix}


class _Abrupt:
    """redis-py closes a connection in good order even if the server refused it, which may outlast the loop with TLS."""

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
