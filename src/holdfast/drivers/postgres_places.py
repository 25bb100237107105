"""Where a PostgreSQL is, from whatever tells it: a URL, a psycopg pool or connection, parameters, Django.

Decides: which settings of these are ours, what the place is called without its secrets, and in which order its hosts
are tried. Leaves to libpq: what its own parameters mean.

A ready pool or connection tells where the server is; ours are made anew beside it, because a lock must not be part of
a transaction that somebody else may roll back, and because a waiter would keep it from everybody else.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

PUBLIC: Final = "public"
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


@dataclass(frozen=True)
class Place:
    params: Mapping[str, str]  # of libpq, with secrets
    schema: str = PUBLIC
    synchronous_commit: str | None = None  # None: as the server has it

    def __repr__(self) -> str:
        return f"Place({self.name!r})"

    @cached_property
    def name(self) -> str:
        """A URL that leads there, but for who is asking and how they show it."""
        host, ports = self.params.get("host", ""), self.params.get("port", "").split(",")
        options = {"host": host} if host.startswith("/") else {}
        hosts = [""] if options else host.split(",")
        where = ",".join(f"{one}:{port}" if port else one for one, port in zip(hosts, cycle(ports), strict=False))
        if self.schema != PUBLIC:
            options["schema"] = self.schema
        database = quote(self.params.get("dbname", ""))
        return f"postgresql://{where}/{database}" + (f"?{urlencode(options, safe='/')}" if options else "")

    @property
    def hosts(self) -> list[dict[str, str]]:
        """The parameters for each host that is named: libpq itself would wait for the first without end."""
        params = {"fallback_application_name": "holdfast", **self.params, "client_encoding": "UTF8"}
        params.pop("connect_timeout", None)  # ours is told each time
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
        return found


def conninfo(params: Mapping[str, str]) -> bytes:
    return make_conninfo("", **params).encode()


def place_of_url(parts: SplitResult) -> Place:
    """Raises ValueError, with nothing of the URL in it that could be a secret."""
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    schema = options.pop("schema", None)
    commit = options.pop("synchronous_commit", None)
    url = parts._replace(scheme="postgresql", query=urlencode(options, quote_via=quote)).geturl()
    if not parts.netloc:  # which `geturl` leaves out
        url = url.replace("postgresql:", "postgresql://", 1) if "://" not in url else url
    return _place(_read(url), schema, commit)


def _read(text: str) -> dict[str, Any]:
    try:
        return dict(conninfo_to_dict(text))
    except psycopg.Error as error:
        unknown = re.search(r'invalid (?:URI query parameter|connection option):? "(\w+)"', str(error))
        what = f"has no option {unknown[1]!r}" if unknown else "does not understand this"
        raise ValueError(f"PostgreSQL {what}; is something in its password not percent-encoded?") from None


def place_of_client(client: object) -> Place | None:
    """Where a ready pool, connection, or mapping of parameters leads; None if it is nothing of that kind."""
    if isinstance(client, Mapping):
        return _of_mapping(client)
    if callable(parameters := getattr(client, "get_connection_params", None)):  # a connection of Django's
        return _of_mapping(parameters())
    if isinstance(client, psycopg.Connection | psycopg.AsyncConnection):
        return _of_connection(client)
    if hasattr(client, "conninfo") and hasattr(client, "kwargs"):
        return _of_mapping({**_read(_settled(client.conninfo) or ""), **(_settled(client.kwargs) or {})})
    return None


def _settled(setting: Any) -> Any:
    """What a pool was told, which may be a function."""
    answer = setting() if callable(setting) else setting
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise ValueError("this pool asks a coroutine where its server is; give connect() a URL or parameters instead")
    return answer


def _of_connection(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> Place:
    try:
        params: dict[str, Any] = {**connection.info.get_parameters(), "password": connection.info.password}
    except psycopg.Error:
        raise ValueError("this connection is closed, so it cannot tell where its server is") from None
    return _place(params, None, None)


def _of_mapping(given: Mapping[str, Any]) -> Place:
    """psycopg's parameters, those of Django's connection, or an entry of Django's DATABASES."""
    params = dict(given)
    if "ENGINE" in params:
        params = {**(params.get("OPTIONS") or {}), **{_DJANGO[name]: params.get(name) for name in _DJANGO}}
    schema, commit = params.pop("schema", None), params.pop("synchronous_commit", None)
    nested = params.pop("conninfo", "")
    return _place({**_read(nested or ""), **params}, schema, commit)


def _place(params: Mapping[str, Any], schema: str | None, commit: str | None) -> Place:
    if commit is not None and commit not in _COMMITS:
        raise ValueError(f"synchronous_commit is one of {', '.join(_COMMITS)}, not {commit!r}")
    kept = {name: str(value) for name, value in params.items() if value not in (None, "") and name not in _OF_PSYCOPG}
    ports = [port for port in kept.get("port", "").split(",") if port]
    if not all(port.isdecimal() and 0 < int(port) < 65536 for port in ports):
        raise ValueError("a port is a number from 1 to 65535; is something in its password not percent-encoded?")
    try:
        make_conninfo("", **kept)
    except psycopg.Error as error:
        raise ValueError(f"PostgreSQL does not understand these parameters: {sorted(kept)}") from error
    return Place(kept, PUBLIC if schema is None else schema, commit)
