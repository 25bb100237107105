"""Where the servers of Redis' kind are, and how redis-py connects to them.

Decides: what a URL or a ready client says about that, and which of several Sentinels is believed.
Leaves to redis-py: URLs, passwords, the handshake. Leaves to `tls`: what TLS needs. Leaves to the drivers:
everything that is said on a connection afterwards. redis-py repeats nothing here: its retries are switched off.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qs, quote, unquote, urlencode

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from lockfast._secrets import SECRET_OPTIONS, hide, secrets_in, shown_option
from lockfast._time import boot_now
from lockfast.backends.redis.io.connections import ASYNC_KINDS, KINDS, hang_up, is_of_a_closed_connection
from lockfast.backends.redis.io.resp import command, no_connection
from lockfast.backends.redis.io.tls import OPTIONS, USUAL, checks_host_names, context_of, is_tls, says_something, tls_of
from lockfast.errors import BackendUnavailable

PORT = 6379
_LOGIN = ("username", "password")
SENTINEL_PORT = 26379
SENTINEL_WITHIN_S = 1.0  # seconds that each Sentinel may take: there are others to ask
_MASTERS = command("SENTINEL", "MASTERS")
_AS_BYTES = "surrogateescape"  # the name of a service need not be UTF-8

# What a URL or a client says about one connection; the rest is about their own pools, retries and answers.
_IN_URLS = ("db", "username", "password", "client_name", "socket_keepalive")
_WANTED = (*_IN_URLS, "credential_provider", "socket_keepalive_options", "socket_type")

_SWITCHES = ("socket_keepalive", "ssl_check_hostname", "ssl_validate_ocsp", "ssl_validate_ocsp_stapled")
_YES, _NO = ("true", "yes", "t", "y", "1"), ("false", "no", "f", "n", "0")  # for redis-py all the rest is true

# Whom servers see in CLIENT LIST. Where redis-py makes that for each connection anew, it looks up its own version in
# the file system each time, which takes as long as all the rest of a handshake.
_SEEN_AS: dict[str, Any] = {}
with suppress(ImportError):  # older ones have it ready
    from redis.driver_info import DriverInfo

    _SEEN_AS["driver_info"] = DriverInfo(lib_version=redis.__version__)


# The last two: redis-py does not know one of the settings, or one of them cannot be, such as the name of a host.
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
    variant = ""  # what follows the scheme of its URL

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
        self._to_sentinels: dict[str, Any] = {}  # how to log in there, where there are some

    @property
    def name(self) -> str:
        return str(self.address)

    @property
    def db(self) -> int:
        return int(self._settings.get("db") or 0)

    @property
    def url(self) -> str:
        """A URL that leads there, with the name of the user and without a password."""
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
        """Those of TLS that a URL can say, without secrets and without what is so anyway."""
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
        """A connection of redis-py's after its handshake. Raises BackendUnavailable."""
        until = boot_now() + within
        try:
            where = address or self.find(within)
            settings = self._all(where, max(0.01, until - boot_now()))
            connection = KINDS[self._kind_of_connection](**settings, retry=Retry(NoBackoff(), 0))
            connection.until = until
            connection.connect()
        except _NO_CONNECTION as error:
            raise self.unreachable(address, error) from self.cause(error)
        return connection

    async def dial_async(self, address: Address | None, within: float) -> Any:
        until = boot_now() + within
        try:
            where = address or await self.find_async(within)
            settings = self._all(where, max(0.01, until - boot_now()))
            connection = ASYNC_KINDS[self._kind_of_connection](**settings, retry=AsyncRetry(NoBackoff(), 0))
            try:
                await connection.connect()
            except BaseException:
                hang_up(connection)
                raise
        except _NO_CONNECTION as error:
            raise self.unreachable(address, error) from self.cause(error)
        except RuntimeError as error:
            if not is_of_a_closed_connection(error):
                raise
            raise self.unreachable(address, error) from error
        return connection

    @property
    def _kind_of_connection(self) -> str:
        return "tls of redis-py" if self._kind == "tls" and self._tls is None else self._kind

    def _all(self, address: Address, within: float) -> dict[str, Any]:
        where = {"path": address.host} if self._kind == "unix" else {"host": address.host, "port": address.port}
        settings = {**self._settings, **where, "socket_connect_timeout": within, "socket_timeout": within}
        if self._tls is None:
            return settings
        plain = {name: value for name, value in settings.items() if not is_tls(name)}
        return {**plain, "context": context_of(self._tls)}

    def _ask(self, request: bytes, within: float) -> Any:
        """On a connection of its own. Raises BackendUnavailable."""
        connection = self.dial(self.address, within)
        try:
            connection.send_packed_command([request])
            return connection.read_response()
        except (redis.RedisError, OSError) as error:
            raise self.unreachable(self.address, error) from self.cause(error)
        finally:
            connection.disconnect()

    async def _ask_async(self, request: bytes, within: float) -> Any:
        try:
            async with asyncio.timeout(within):
                connection = await self.dial_async(self.address, within)
                try:
                    await connection.send_packed_command([request])
                    return await connection.read_response()
                finally:
                    hang_up(connection)
        except (redis.RedisError, OSError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not is_of_a_closed_connection(error):
                raise
            raise self.unreachable(self.address, error) from self.cause(error)

    def _without_secrets(self, text: str) -> str:
        """Some releases of redis-py, and some servers, repeat how they were logged in to."""
        return hide(text, secrets_in(self._settings, self._to_sentinels))

    def cause(self, error: Exception) -> BaseException:
        """What a traceback may show of it."""
        root = _root(error)
        root.args = tuple(self._without_secrets(arg) if isinstance(arg, str) else arg for arg in root.args)
        return root

    def unreachable(self, address: Address | None, error: Exception) -> BackendUnavailable:
        root = _root(error)
        distrust = isinstance(root, ssl.SSLCertVerificationError)  # it stays so, however often it is tried
        final = distrust or isinstance(error, redis.AuthenticationError | redis.ResponseError | TypeError | ValueError)
        return no_connection(self.url_of(address), self._without_secrets(_reason(root)), transient=not final)

    def url_of(self, address: Address | None) -> str:
        """The URL of one of its servers, for messages; of all of them, if none is named."""
        return self.url if address is None else f"{'rediss' if self._kind == 'tls' else 'redis'}://{address.netloc}"


def _is_wanted(name: str, value: Any, kind: str) -> bool:
    return name in _WANTED or (kind == "tls" and is_tls(name) and says_something(name, value))


def _root(error: Exception) -> BaseException:
    """The error of the operating system or of TLS that redis-py has wrapped; itself, if there is none.

    The steps of redis-py that led there are not shown with it: they help nobody who reads the traceback.
    """
    root: BaseException | None = error
    while root is not None and not isinstance(root, OSError):
        root = root.__cause__ or root.__context__
    found = error if root is None else root.with_traceback(None)
    found.__cause__ = None  # which leaves out the context too
    return found


def _reason(root: BaseException) -> str:
    """connection refused; name or service not known; the server's own words."""
    text = str(root)
    if isinstance(root, ssl.SSLError):
        return text
    if isinstance(root, OSError):
        number = re.search(r"\[Errno (\d+)\]", text)  # asyncio lists several addresses in one text
        text = os.strerror(int(number[1])) if number else root.strerror or text
    if isinstance(root, OSError | redis.TimeoutError):
        text = text[:1].lower() + text[1:] or "no answer in time"
    return text


class SentinelEndpoint(RedisEndpoint):
    """The primary of a service that Sentinels watch: asked for anew with each connection."""

    variant = "+sentinel"

    def __init__(
        self,
        kind: str,
        settings: dict[str, Any],
        service: str,
        sentinels: Sequence[Address],
        to_sentinels: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(kind, settings, Address(service))
        self._service = service
        self._name = f"{service} (by Sentinels {', '.join(map(str, sentinels))})"
        if to_sentinels is None:
            to_sentinels = {name: settings[f"sentinel_{name}"] for name in _LOGIN if f"sentinel_{name}" in settings}
            to_sentinels |= {name: value for name, value in self._settings.items() if is_tls(name)}
            to_sentinels["ssl"] = kind == "tls"
        self._to_sentinels = to_sentinels
        its_kind = "tls" if to_sentinels.get("ssl") else "tcp"
        self._sentinels = tuple(RedisEndpoint(its_kind, to_sentinels, address) for address in sentinels)

    @property
    def name(self) -> str:
        return self._name

    @property
    def url(self) -> str:
        return self._url(*(sentinel.address for sentinel in self._sentinels))

    def _path(self) -> str:
        return f"/{quote(self._service, safe='', errors=_AS_BYTES)}" + (f"/{self.db}" if self.db else "")

    def _options(self) -> dict[str, str]:
        user = self._to_sentinels.get("username")
        return {**super()._options(), **({"sentinel_username": str(user)} if user else {})}

    def find(self, within: float) -> Address:
        refusals: list[BackendUnavailable] = []
        for sentinel in self._sentinels:
            try:
                masters = sentinel._ask(_MASTERS, self._each(within))
            except BackendUnavailable as error:
                refusals.append(error)
            else:
                if found := self._primary_in(masters, sentinel):
                    return found
        raise self._not_found(refusals)

    async def find_async(self, within: float) -> Address:
        refusals: list[BackendUnavailable] = []
        for sentinel in self._sentinels:
            try:
                masters = await sentinel._ask_async(_MASTERS, self._each(within))
            except BackendUnavailable as error:
                refusals.append(error)
            else:
                if found := self._primary_in(masters, sentinel):
                    return found
        raise self._not_found(refusals)

    def _each(self, within: float) -> float:
        return min(SENTINEL_WITHIN_S, within / len(self._sentinels))

    def _primary_in(self, masters: Any, told_by: RedisEndpoint) -> Address | None:
        """Whom that Sentinel takes for the primary, if it is up. That Sentinel is asked first from now on: one that
        hangs then costs time only once."""
        service = self._service.encode(errors=_AS_BYTES)
        for fields in masters:
            told = dict(zip(fields[::2], fields[1::2], strict=True))
            flags = {*told[b"flags"].split(b",")}
            if told[b"name"] == service and b"master" in flags and not {b"s_down", b"o_down"} & flags:
                self._sentinels = (told_by, *(one for one in self._sentinels if one is not told_by))
                return Address(told[b"ip"].decode(), int(told[b"port"]))
        return None

    def _not_found(self, refusals: Sequence[BackendUnavailable]) -> BackendUnavailable:
        """It stays so if each of the Sentinels has refused us for good."""
        final = len(refusals) == len(self._sentinels) and not any(refusal.transient for refusal in refusals)
        reasons = "; ".join(map(str, refusals)) or "each of its Sentinels has answered"
        return no_connection(self.url, f"no primary of {self._service!r} was found: {reasons}", transient=not final)


class ClusterEndpoint(RedisEndpoint):
    """Many nodes, each with a part of the names; `address` is None wherever a node must be chosen first."""

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
    def url(self) -> str:
        return self._url(*self.seeds)

    def _path(self) -> str:
        return ""


# From a URL


def endpoint_of_url(parts: SplitResult) -> RedisEndpoint:
    """Raises ValueError for a URL that says nothing sensible."""
    scheme = parts.scheme.replace("valkey", "redis", 1)
    base, _, variant = scheme.partition("+")
    tls = base == "rediss"
    kind = "unix" if base == "unix" else "tls" if tls else "tcp"
    settings = dict(_parse(parts, base))
    if tls:
        settings["ssl_check_hostname"] = checks_host_names(settings)
    if "," in parts.netloc and not variant:
        raise ValueError(f"{parts.scheme}:// names one server; for more there are +sentinel and +cluster")
    if not variant:
        if kind != "unix":
            _number(parts.path.strip("/"), parts)
        host, port = settings.get("host", "localhost"), settings.get("port", PORT)
        return RedisEndpoint(kind, settings, Address(settings["path"]) if kind == "unix" else Address(host, port))
    hosts = _hosts(parts, SENTINEL_PORT if variant == "sentinel" else PORT)
    if variant == "cluster":
        if parts.path.strip("/0"):
            raise ValueError(f"{parts.scheme}:// has no database to choose: a cluster has but one, 0")
        return ClusterEndpoint(kind, settings, hosts)
    service, _, db = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError(f"a Sentinel URL names the service: {parts.scheme}://host1,host2/service")
    settings |= {"db": _number(db, parts)} if db else {}
    return SentinelEndpoint(kind, settings, unquote(service, errors=_AS_BYTES), hosts)


def _number(db: str, parts: SplitResult) -> int:
    if not db or db.isdecimal():
        return int(db or 0)
    raise ValueError(f"the database of a {parts.scheme}:// URL is a number")


def _parse(parts: SplitResult, base: str) -> dict[str, Any]:
    """redis-py reads it, with one host instead of several."""
    user, at, hosts = parts.netloc.rpartition("@")
    path = "" if "+" in parts.scheme else parts.path
    first = "" if base == "unix" else hosts.partition(",")[0]
    if any(re.search(r":0+$", host) for host in hosts.split(",")):
        raise ValueError(f"nobody can be reached at port 0 of a {parts.scheme}:// URL")
    if base == "unix" and (not path or hosts):
        raise ValueError("a unix URL names the socket: unix:///path/to/the.sock")
    _hosts(parts, PORT)
    url = f"{base}://{user}{at}{first}{path}?{parts.query}"  # not by geturl(): it would leave out an empty host
    try:
        settings = dict(redis.ConnectionPool.from_url(url).connection_kwargs)
    except ValueError as error:  # which may show a part of the password
        bad = re.search(r"value for ['`](\w+)", str(error))
        what = f"whose option {shown_option(bad[1], parts.query)} has no sensible value" if bad else "without sense"
        raise ValueError(f"a {parts.scheme}:// URL {what}{_about_password(parts)}") from None
    known = {*_IN_URLS, "host", "port", "path", *(f"sentinel_{name}" for name in _LOGIN)}
    if base == "rediss":
        known |= OPTIONS
    for option, values in parse_qs(parts.query).items():
        if option not in known:
            name = shown_option(option, parts.query)
            others = f"with rediss:// {', '.join(sorted(OPTIONS)) if is_tls(option) else 'ssl_…'}"
            raise ValueError(f"{parts.scheme}:// has no option {name}; known are {', '.join(_IN_URLS)}, and {others}")
        if option in _SWITCHES:
            settings[option] = _is_on(option, values[0], parts.query)
    return settings


def _is_on(option: str, value: str, query: str) -> bool:
    if value.lower() not in (*_YES, *_NO):
        raise ValueError(f"{option} cannot be {shown_option(value, query)}; known are true, false")
    return value.lower() in _YES


def _about_password(parts: SplitResult) -> str:
    """A `/`, `?` or `#` in it ends what is read as host and port, and leaves an `@` behind."""
    behind = f"{parts.path}{parts.query}{parts.fragment}"
    return "; is something in its password not percent-encoded?" if "@" in behind else ""


def _hosts(parts: SplitResult, port: int) -> list[Address]:
    hosts = [SplitResult("", host, "", "", "") for host in parts.netloc.rpartition("@")[2].split(",") if host]
    try:
        found = [Address(host.hostname or "localhost", host.port or port) for host in hosts]
    except ValueError:  # as above
        what = f"the port of a {parts.scheme}:// URL is a number from 1 to 65535"
        raise ValueError(f"{what}{_about_password(parts)}") from None
    return found or [Address("localhost", port)]


# From a client


def endpoint_of_client(client: Any) -> RedisEndpoint | None:
    """Where it would connect to, or None if this is no client of redis-py's. Its connections are not used."""
    nodes = getattr(client, "nodes_manager", None)
    if nodes is not None:
        settings = dict(getattr(client, "connection_kwargs", None) or nodes.connection_kwargs)
        seeds = [Address(node.host, int(node.port)) for node in nodes.startup_nodes.values()]
        tls = bool(settings.get("ssl")) or "SSL" in getattr(settings.get("connection_class"), "__name__", "")
        return ClusterEndpoint("tls" if tls else "tcp", settings, seeds)
    pool = getattr(client, "connection_pool", None)
    if pool is None or not hasattr(pool, "connection_kwargs"):
        return None
    settings = dict(pool.connection_kwargs)
    kind = "unix" if "path" in settings else "tls" if "SSL" in pool.connection_class.__name__ else "tcp"
    manager = getattr(pool, "sentinel_manager", None)
    if manager is not None:
        sentinels = [one.connection_pool.connection_kwargs for one in manager.sentinels]
        addresses = [Address(one["host"], int(one["port"])) for one in sentinels]
        return SentinelEndpoint(kind, settings, pool.service_name, addresses, dict(manager.sentinel_kwargs))
    if kind == "unix":
        return RedisEndpoint(kind, settings, Address(settings["path"]))
    return RedisEndpoint(kind, settings, Address(settings.get("host", "localhost"), int(settings.get("port", PORT))))
