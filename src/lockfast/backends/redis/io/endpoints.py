"""Servers of Redis and Valkey, and how redis-py connects to them.

Decides: with which settings a connection is made, and what a failure means.
Leaves to `urls` and `sentinels`: where the server is. Leaves to `tls`: what TLS needs. Leaves to redis-py: passwords
and the handshake; its retries are switched off. Leaves to the drivers: every request on the connection.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from lockfast._secrets import SECRET_OPTIONS, hide, secrets_in
from lockfast._time import boot_now
from lockfast.backends.connecting.first_ready import first_ready
from lockfast.backends.connecting.second_tries import SecondTries
from lockfast.backends.redis.io.beside import connect_beside
from lockfast.backends.redis.io.connections import ASYNC_KINDS, KINDS, hang_up, is_of_a_closed_connection
from lockfast.backends.redis.io.resp import no_connection
from lockfast.backends.redis.io.tls import USUAL, context_of, is_tls, says_something, tls_of
from lockfast.errors import BackendUnavailable

PORT = 6379
LOGIN = ("username", "password")

# Settings of one connection in a URL or a client; the others are about pools, retries and replies of redis-py.
URL_OPTIONS = ("db", "username", "password", "client_name", "socket_keepalive")
_WANTED = (*URL_OPTIONS, "credential_provider", "socket_keepalive_options", "socket_type")

# How servers show us in CLIENT LIST. A redis-py that makes this for each connection reads its own version from the file
# system each time, which takes as long as the rest of the handshake.
_SEEN_AS: dict[str, Any] = {}
with suppress(ImportError):  # an older redis-py has it ready
    from redis.driver_info import DriverInfo

    _SEEN_AS["driver_info"] = DriverInfo(lib_version=redis.__version__)


# The last two: redis-py does not know a setting, or a value is impossible, such as the name of a host.
_NO_CONNECTION = (redis.RedisError, OSError, TypeError, ValueError)


class Address(NamedTuple):
    host: str  # or the path of a unix socket
    port: int = 0  # then none

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.port else self.host

    @property
    def netloc(self) -> str:
        """As a URL has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.port else host


class RedisEndpoint:
    """One server."""

    clustered = False
    variant = ""  # after the scheme of its URL

    def __init__(self, kind: str, settings: dict[str, Any], address: Address) -> None:
        self._kind = kind  # "tcp", "tls" or "unix"
        wanted = {name: value for name, value in settings.items() if _is_wanted(name, value, kind)}
        self._tls = tls_of(wanted) if kind == "tls" else None
        if self._tls is not None:
            wanted |= self._tls.trust
        if kind != "unix":
            wanted = {"socket_keepalive": True, **wanted}
        wanted = {**_SEEN_AS, **wanted}
        self._settings = {**wanted, "protocol": 2, "decode_responses": False, "health_check_interval": 0}
        self.address = address
        self._tries: dict[Address, SecondTries] = {}
        self._to_sentinels: dict[str, Any] = {}  # the settings for Sentinels, where there are any

    @property
    def name(self) -> str:
        return str(self.address)

    @property
    def store_id(self) -> str:
        """Equal for two endpoints of one store: the server and the database, without a login."""
        return f"redis {self.address} {self.db}"

    @property
    def db(self) -> int:
        return int(self._settings.get("db") or 0)

    @property
    def url(self) -> str:
        """Its URL, with the user name and without a password."""
        return self._url(self.address)

    def _url(self, *hosts: Address) -> str:
        scheme = {"tcp": "redis", "tls": "rediss", "unix": "unix"}[self._kind] + self.variant
        user = quote(str(self._settings.get("username") or ""), safe="")
        login = f"{user}@" if user else ""
        if self._kind == "unix":
            return f"{scheme}://{login}{quote(self.address.host)}" + (f"?db={self.db}" if self.db else "")
        netloc = ",".join(host.netloc for host in hosts)
        options = urlencode(self._options(), safe="/")
        return f"{scheme}://{login}{netloc}{self._path()}" + (f"?{options}" if options else "")

    def _path(self) -> str:
        return f"/{self.db}"

    def _options(self) -> dict[str, str]:
        """The options of TLS that a URL can have, without secrets and without defaults."""
        plain = {
            name: value for name, value in self._settings.items() if is_tls(name) and isinstance(value, str | bool)
        }
        if plain.get("ssl_cert_reqs") == "none":
            plain.pop("ssl_check_hostname", None)
        return {
            name: str(value) for name, value in plain.items() if name not in SECRET_OPTIONS and value != USUAL.get(name)
        }

    def find(self, within: float) -> Address:
        """Where the server is now. Raises redis.RedisError."""
        return self.address

    async def find_async(self, within: float) -> Address:
        return self.address

    def dial(self, address: Address | None, within: float) -> Any:
        """A connection of redis-py after its handshake. Raises BackendUnavailable."""
        until = boot_now() + within
        try:
            where = address or self.find(within)
            connect = partial(self._connect, where)
            return connect_beside(self._second_tries(where), connect, until, within)
        except _NO_CONNECTION as error:
            raise self.unreachable(address, error) from self.cause(error)

    def _connect(
        self, where: Address, until: float, within: float, before_first_byte: Callable[[socket.socket], None]
    ) -> Any:
        settings = self._all(where, max(0.01, until - boot_now())) | {"socket_connect_timeout": max(0.01, within)}
        connection = KINDS[self._kind_of_connection](**settings, retry=Retry(NoBackoff(), 0))
        connection.until, connection.before_first_byte = until, before_first_byte
        try:
            connection.connect()
        except BaseException:
            connection.disconnect()
            raise
        connection.before_first_byte = None  # redis-py may have sent nothing that the server has to answer
        return connection

    def _second_tries(self, where: Address) -> SecondTries:
        return self._tries.setdefault(where, SecondTries())

    async def dial_async(self, address: Address | None, within: float) -> Any:
        until = boot_now() + within
        try:
            where = address or await self.find_async(within)
            connect = partial(self._connect_async, where, until)
            return await first_ready(self._second_tries(where), connect, within, hang_up)
        except _NO_CONNECTION as error:
            raise self.unreachable(address, error) from self.cause(error)
        except RuntimeError as error:
            if not is_of_a_closed_connection(error):
                raise
            raise self.unreachable(address, error) from error

    async def _connect_async(self, where: Address, until: float) -> Any:
        # redis-py would limit each step with `asyncio.wait_for`, which can swallow a cancellation on Python 3.11: the
        # connection was then made for a caller that had gone.
        connection = ASYNC_KINDS[self._kind_of_connection](**self._all(where), retry=AsyncRetry(NoBackoff(), 0))
        try:
            async with asyncio.timeout(max(0.01, until - boot_now())):
                await connection.connect()
        except BaseException:
            hang_up(connection)
            raise
        return connection

    @property
    def _kind_of_connection(self) -> str:
        return "tls of redis-py" if self._kind == "tls" and self._tls is None else self._kind

    def _all(self, address: Address, within: float | None = None) -> dict[str, Any]:
        """All settings of a connection; each of its steps may take that long."""
        where = {"path": address.host} if self._kind == "unix" else {"host": address.host, "port": address.port}
        settings = {**self._settings, **where, "socket_connect_timeout": within, "socket_timeout": within}
        if self._tls is None:
            return settings
        plain = {name: value for name, value in settings.items() if not is_tls(name)}
        return {**plain, "context": context_of(self._tls)}

    def ask(self, request: bytes, within: float) -> Any:
        """The reply on a connection of its own, or BackendUnavailable as the result."""
        try:
            connection = self.dial(self.address, within)
        except BackendUnavailable as error:
            return error
        try:
            connection.send_packed_command([request])
            return connection.read_response()
        except (redis.RedisError, OSError) as error:
            return self.unreachable(self.address, error)
        finally:
            connection.disconnect()

    async def ask_async(self, request: bytes, within: float) -> Any:
        try:
            async with asyncio.timeout(within):
                connection = await self.dial_async(self.address, within)
                try:
                    await connection.send_packed_command([request])
                    return await connection.read_response()
                finally:
                    hang_up(connection)
        except BackendUnavailable as error:
            return error
        except (redis.RedisError, OSError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not is_of_a_closed_connection(error):
                raise
            return self.unreachable(self.address, error)

    def _without_secrets(self, text: str) -> str:
        """Some releases of redis-py, and some servers, repeat the credentials in an error."""
        return hide(text, secrets_in(self._settings, self._to_sentinels))

    def cause(self, error: Exception) -> BaseException:
        """The root of the error, without secrets: a traceback shows it."""
        root = _root(error)
        root.args = tuple(self._without_secrets(arg) if isinstance(arg, str) else arg for arg in root.args)
        return root

    def unreachable(self, address: Address | None, error: Exception) -> BackendUnavailable:
        root = _root(error)
        distrust = isinstance(root, ssl.SSLCertVerificationError)  # not transient
        final = distrust or isinstance(error, redis.AuthenticationError | redis.ResponseError | TypeError | ValueError)
        return no_connection(self.url_of(address), self._without_secrets(_reason(root)), transient=not final)

    def url_of(self, address: Address | None) -> str:
        """The URL of one of its servers, for messages; without an address, the URL of the endpoint."""
        return self.url if address is None else f"{'rediss' if self._kind == 'tls' else 'redis'}://{address.netloc}"


def _is_wanted(name: str, value: Any, kind: str) -> bool:
    return name in _WANTED or (kind == "tls" and is_tls(name) and says_something(name, value))


def _root(error: Exception) -> BaseException:
    """The error of the operating system or of TLS that redis-py has wrapped; itself, if there is none.

    The frames of redis-py are left out: they do not help the reader of a traceback.
    """
    root: BaseException | None = error
    while root is not None and not isinstance(root, OSError):
        root = root.__cause__ or root.__context__
    found = error if root is None else root.with_traceback(None)
    found.__cause__ = None  # which hides the context too
    return found


def _reason(root: BaseException) -> str:
    """For a message: connection refused; name or service not known; the text of the server."""
    text = str(root)
    if isinstance(root, ssl.SSLError):
        return text
    if isinstance(root, OSError):
        number = re.search(r"\[Errno (\d+)\]", text)  # asyncio lists several addresses in one text
        text = os.strerror(int(number[1])) if number else root.strerror or text
    if isinstance(root, OSError | redis.TimeoutError):
        text = text[:1].lower() + text[1:] or "no answer in time"
    return text


class ClusterEndpoint(RedisEndpoint):
    """Many nodes, each with a part of the names. Where an address is None, a node has to be chosen first."""

    clustered = True
    variant = "+cluster"

    def __init__(self, kind: str, settings: dict[str, Any], seeds: Sequence[Address]) -> None:
        super().__init__(kind, settings, seeds[0])
        self._settings.pop("db", None)
        self.seeds = tuple(seeds)

    @property
    def name(self) -> str:
        return f"cluster {', '.join(map(str, self.seeds))}"

    @property
    def store_id(self) -> str:
        return f"redis cluster {' '.join(sorted(map(str, self.seeds)))}"

    @property
    def url(self) -> str:
        return self._url(*self.seeds)

    def _path(self) -> str:
        return ""
