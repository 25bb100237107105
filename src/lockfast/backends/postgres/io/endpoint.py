"""Where a PostgreSQL server is, from a URL, a psycopg pool or connection, parameters, Django, SQLAlchemy.

Decides: which settings of these are ours, how the endpoint is shown without its secrets, and in which order its hosts
are tried. Leaves to libpq: what its own parameters mean.

A ready pool or connection only says where the server is. We make our own connections beside it, because a lock must
not be part of a transaction that the caller may roll back, and because a waiter would occupy the connection.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import cycle
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from lockfast._secrets import SECRET_OPTIONS, shown_option
from lockfast._text import shown
from lockfast.backends.connecting.second_tries import SecondTries

PUBLIC: Final = "public"
SAFE_PATH: Final = "pg_catalog, pg_temp"  # a search_path on which no other role can create what is found first
WAITING: Final = 16  # sessions of advisory locks, besides the main one, in which waiters of one name queue
# So that a NAT does not forget a connection that is idle, and a dead one ends after a minute.
_KEEPALIVE: Final = {"keepalives_idle": "30", "keepalives_interval": "10", "keepalives_count": "3"}
_COMMITS: Final = ("on", "off", "local", "remote_write", "remote_apply")
_DJANGO: Final = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
_OF_PSYCOPG: Final = {  # what pools and Django hand to psycopg itself
    "autocommit",
    "context",
    "cursor_factory",
    "prepare_threshold",
    "row_factory",
    "server_side_binding",
    "isolation_level",
    "assume_role",
    "pool",
}


# Options of a URL of SQLAlchemy or asyncpg: those with another name there, and those of the client itself.
_SAME: Final = {"database": "dbname", "ssl": "sslmode"}
_SSL: Final = {"true": "require", "false": "disable"}
_HOST_AND_PORT: Final = re.compile(r"([^:/,]+):(\d+)")  # no path of a socket, IPv6 address or list
_OF_CLIENTS: Final = {"prepared_statement_cache_size", "prepared_statement_name_func", "async_fallback"}

# What is secret, what a URL says elsewhere, and what we set ourselves.
_NOT_SHOWN: Final = SECRET_OPTIONS | {"host", "port", "user", "dbname", "client_encoding", "passfile"}
_ELSEWHERE: Final = ("hostaddr", "service", "servicefile")  # what says where the server is, besides the rest of a URL
_PLACE: Final = ("host", "port", "hostaddr")
_OF_TABLE: tuple[str, ...] = ("schema", "synchronous_commit")
_OF_ADVISORY: tuple[str, ...] = ("waiting", "pooler")


@dataclass(frozen=True)
class PostgresEndpoint:
    params: Mapping[str, str]  # of libpq, with secrets
    schema: str = PUBLIC  # of the lock table, as is the next
    synchronous_commit: str | None = None  # None: as the server has it
    advisory: bool = False  # advisory locks, not the table
    waiting: int = WAITING  # of advisory locks, as is the next
    pooler: str = ""  # "session": there is one, which gives out whole sessions
    second_tries: SecondTries = field(default_factory=SecondTries, compare=False)
    _good: list[dict[str, str]] = field(default_factory=list, compare=False)  # with which a connection was made last

    def __repr__(self) -> str:
        return f"PostgresEndpoint({self.name!r})"

    @cached_property
    def name(self) -> str:
        """A URL without user, and with few options: two endpoints with one name are one store."""
        return self._url("", {name: self.params[name] for name in _ELSEWHERE if name in self.params})

    @cached_property
    def url(self) -> str:
        """A URL that leads there, with the name of the user and without a password."""
        user = quote(self.params.get("user", ""), safe="")
        options = {name: value for name, value in self.params.items() if name not in _NOT_SHOWN}
        ours = {"synchronous_commit": self.synchronous_commit, "pooler": self.pooler}
        options |= {name: value for name, value in ours.items() if value}
        options |= {} if self.waiting == WAITING else {"waiting": str(self.waiting)}
        return self._url(f"{user}@" if user else "", options)

    def _url(self, login: str, more: Mapping[str, str]) -> str:
        host, ports = self.params.get("host", ""), self.params.get("port", "").split(",")
        options = {"host": host} if host.startswith("/") else {}
        hosts = [""] if options else [f"[{one}]" if ":" in one else one for one in host.split(",")]
        where = ",".join(f"{one}:{port}" if port else one for one, port in zip(hosts, cycle(ports), strict=False))
        if self.schema != PUBLIC:
            options["schema"] = self.schema
        options |= more
        database = quote(self.params.get("dbname", "") or self._usual_database)
        scheme = "postgresql+advisory" if self.advisory else "postgresql"
        return f"{scheme}://{login}{where}/{database}" + (f"?{urlencode(options, safe='/')}" if options else "")

    @property
    def _usual_database(self) -> str:
        """Of libpq, where nothing else names one: that of the user."""
        elsewhere = "service" in self.params or "PGSERVICE" in os.environ or "PGDATABASE" in os.environ
        return "" if elsewhere else self.params.get("user", "")

    def remember(self, params: dict[str, str]) -> None:
        """A connection was made with these."""
        self._good[:] = [params]

    def in_order(self, several: list[dict[str, str]]) -> list[dict[str, str]]:
        """As they are tried: first where a connection was made last, so that a silent host costs time once."""

        def differs(params: dict[str, str]) -> bool:
            return any(name in params and params[name] != good.get(name) for good in self._good for name in _PLACE)

        return sorted(several, key=differs)

    @property
    def hosts(self) -> list[dict[str, str]]:
        """The parameters for each host that is named: libpq itself would wait for the first without end."""
        params = {"fallback_application_name": "lockfast", **_KEEPALIVE, **self.params, "client_encoding": "UTF8"}
        params.pop("connect_timeout", None)  # each request brings its own
        hosts = params.get("host", "").split(",")
        if len(hosts) == 1:
            return [params]
        params.setdefault("target_session_attrs", "read-write")  # of several servers one can grant locks
        ports = params.get("port", "").split(",")
        addresses = params.get("hostaddr", "").split(",")
        found = []
        for number, host in enumerate(hosts):
            one = {**params, "host": host, "port": ports[number % len(ports)]}
            if len(addresses) == len(hosts):
                one["hostaddr"] = addresses[number]
            found.append({name: value for name, value in one.items() if value})
        return self.in_order(found)


def conninfo(params: Mapping[str, str]) -> bytes:
    return make_conninfo("", **params).encode()


def endpoint_of_url(parts: SplitResult, *, advisory: bool = False) -> PostgresEndpoint:
    """Raises ValueError, with nothing of the URL in it that could be a secret."""
    options = _of_query(parse_qsl(parts.query, keep_blank_values=True))
    ours = {name: options.pop(name) for name in (*_OF_TABLE, *_OF_ADVISORY) if name in options}
    url = parts._replace(scheme="postgresql", query=urlencode(options, quote_via=quote)).geturl()
    if not parts.netloc:  # which `geturl` leaves out
        url = url.replace("postgresql:", "postgresql://", 1) if "://" not in url else url
    return _endpoint({**_read(url), **ours}, advisory)


def _of_query(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Options of libpq, from those behind the `?` of a URL, which may be one of SQLAlchemy or asyncpg."""
    options: dict[str, str] = {}
    hosts = [value for name, value in pairs if name == "host"]
    for name, value in pairs:
        if name not in _OF_CLIENTS:
            options[_SAME.get(name, name)] = _SSL.get(value, value) if name == "ssl" else value
    if hosts:  # as SQLAlchemy names servers: host=a:5432&host=b:5432
        found = [_HOST_AND_PORT.fullmatch(host) for host in hosts]
        options["host"] = ",".join(match[1] if match else host for match, host in zip(found, hosts, strict=True))
        if any(found):
            options["port"] = ",".join(match[2] if match else "5432" for match in found)
    return options


def _of_sqlalchemy(url: Any) -> dict[str, Any]:
    """From SQLAlchemy's URL. Raises ValueError if it is of another database, or names none."""
    if not url.drivername.startswith("postgresql"):
        raise ValueError(f"of SQLAlchemy's databases only PostgreSQL can keep locks, not {shown(url.drivername)}")
    pairs = [(name, one) for name, given in url.query.items() for one in ([given] if isinstance(given, str) else given)]
    known = {"host": url.host, "port": url.port, "user": url.username, "password": url.password, "dbname": url.database}
    params = {name: value for name, value in known.items() if value is not None}
    if not params and not pairs:
        raise ValueError("the URL of this engine names no server; give connect() a URL or parameters instead")
    return {**params, **_of_query(pairs)}


def _read(text: str) -> dict[str, Any]:
    try:
        return dict(conninfo_to_dict(text))
    except psycopg.Error as error:
        unknown = re.search(r'invalid (?:URI query parameter|connection option):? "(\w+)"', str(error))
        query = text.partition("?")[2]
        what = f"has no option {shown_option(unknown[1], query)}" if unknown else "does not understand this"
        raise ValueError(f"PostgreSQL {what}; is something in its password not percent-encoded?") from None


def endpoint_of_client(client: object, *, advisory: bool = False) -> PostgresEndpoint | None:
    """Where a ready pool, connection, or mapping of parameters leads; None if it is nothing of that kind."""
    params = _params_of(client)
    return None if params is None else _endpoint(params, advisory)


def _params_of(client: object) -> Mapping[str, Any] | None:
    if isinstance(client, Mapping):
        return _of_mapping(client)
    url = getattr(client, "url", client)  # of an engine of SQLAlchemy
    if hasattr(url, "drivername"):
        return _of_sqlalchemy(url)
    if callable(parameters := getattr(client, "get_connection_params", None)):  # a connection of Django's
        return _of_mapping(parameters())
    if isinstance(client, psycopg.Connection | psycopg.AsyncConnection):
        return _of_connection(client)
    if hasattr(client, "conninfo") and hasattr(client, "kwargs"):
        return _of_mapping({**_read(_settled(client.conninfo) or ""), **(_settled(client.kwargs) or {})})
    return None


def _settled(setting: Any) -> Any:
    """A setting of a pool, which may be a function."""
    answer = setting() if callable(setting) else setting
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise ValueError("this pool asks a coroutine where its server is; give connect() a URL or parameters instead")
    return answer


def _of_connection(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> dict[str, Any]:
    try:
        return {**connection.info.get_parameters(), "password": connection.info.password}
    except psycopg.Error:
        raise ValueError("this connection is closed, so it does not say where its server is") from None


def _of_mapping(given: Mapping[str, Any]) -> dict[str, Any]:
    """psycopg's parameters, those of Django's connection, or an entry of Django's DATABASES."""
    params = dict(given)
    if "ENGINE" in params:
        params = {**(params.get("OPTIONS") or {}), **{_DJANGO[name]: params.get(name) for name in _DJANGO}}
    nested = params.pop("conninfo", "")
    return {**_read(nested or ""), **params}


def _text(value: object) -> str:
    """Of a parameter; empty if it is not given. What it is may be a password, so only its type is named."""
    if value is None:
        return ""
    try:
        return str(value)
    except Exception as error:
        raise ValueError(f"a parameter of PostgreSQL must be text, not a {type(value).__name__}") from error


def _endpoint(given: Mapping[str, Any], advisory: bool) -> PostgresEndpoint:
    """Parameters of libpq, and our own options among them."""
    params = dict(given)
    ours = {name: params.pop(name) for name in (*_OF_TABLE, *_OF_ADVISORY) if name in params}
    kept = {name: _text(value) for name, value in params.items() if name not in _OF_PSYCOPG}
    kept = {name: text for name, text in kept.items() if text}
    ports = [port for port in kept.get("port", "").split(",") if port]
    if not all(port.isdecimal() and 0 < int(port) < 65536 for port in ports):
        raise ValueError("a port is a number from 1 to 65535; is something in its password not percent-encoded?")
    try:
        make_conninfo("", **kept)
    except (psycopg.Error, UnicodeEncodeError) as error:
        raise ValueError(f"PostgreSQL does not understand these parameters: {shown(sorted(kept))}") from error
    ours = {name: value for name, value in ours.items() if value is not None}
    return PostgresEndpoint(kept, advisory=advisory, **_checked(ours, advisory))


def _checked(ours: dict[str, Any], advisory: bool) -> dict[str, Any]:
    """Our own options, if this kind of locks has them and they make sense."""
    for name in ours:
        if name not in (_OF_ADVISORY if advisory else _OF_TABLE):
            kinds = ("the lock table", "advisory locks")
            raise ValueError(f"{name} is an option of {kinds[not advisory]}, and this is about {kinds[advisory]}")
    commit, waiting, pooler = ours.get("synchronous_commit"), str(ours.get("waiting", WAITING)), ours.get("pooler", "")
    if commit is not None and commit not in _COMMITS:
        raise ValueError(f"synchronous_commit is one of {', '.join(_COMMITS)}, not {shown(commit)}")
    if not waiting.isascii() or not waiting.isdigit() or int(waiting) > 10_000:
        raise ValueError(f"waiting must be a number of connections from 0 to 10000, not {shown(waiting)}")
    if pooler not in ("", "session"):
        raise ValueError(f"pooler can only be 'session', not {shown(pooler)}: advisory locks belong to a session")
    return {**ours, "waiting": int(waiting)}
