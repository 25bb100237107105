"""What a caller may have meant by a text that is no URL of ours.

Decides: which URL is suggested for a host with a port, the name of a product, a path, or a misspelt scheme.
Leaves to `_connect`: what the schemes mean. Nothing that could be a password is repeated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_PORTS: Final = {  # and the scheme of the server that usually listens there
    "6379": "redis",
    "6380": "rediss",
    "7000": "redis+cluster",
    "26379": "redis+sentinel",
    "5432": "postgresql",
    "5433": "postgresql",
    "6432": "postgresql",
}
_PRODUCTS: Final = {  # and the scheme and address of its server on this host
    "redis": ("redis", "localhost:6379"),
    "valkey": ("valkey", "localhost:6379"),
    "postgres": ("postgresql", "localhost:5432"),
    "postgresql": ("postgresql", "localhost:5432"),
    "sqlite": ("sqlite", "/locks.db"),
    "sqlite3": ("sqlite", "/locks.db"),
    "memory": ("memory", ""),
    "redlock": ("redlock", "HOST1,HOST2,HOST3"),
    "sentinel": ("redis+sentinel", "localhost:26379/SERVICE"),
}
_ALIASES: Final = {  # schemes of other programs, and second names of ours
    "postgres": "postgresql",
    "postgres+advisory": "postgresql+advisory",
    "file": "sqlite",
    "pg": "postgresql",
    "psql": "postgresql",
    "pgsql": "postgresql",
    "redis+ssl": "rediss",
    "redis+tls": "rediss",
    "redis+socket": "unix",
    "sentinel": "redis+sentinel",
    "mem": "memory",
}
_FILE: Final = re.compile(r"\.(db|db3|sqlite|sqlite3)$")
_HOST: Final = re.compile(
    r"^(?:(?P<user>[^@/:]*)(?::[^@/]*)?@)?(?P<host>\[[0-9a-fA-F:]+\]|[\w.-]+)(?::(?P<port>\d+))?(?P<path>/\w*)?$"
)


def suggestion(text: str, schemes: Iterable[str]) -> str:
    """A question such as "did you mean redis://localhost:6379?"; empty without a guess."""
    meant = _meant(text.strip(), tuple(schemes))
    return f"did you mean {' or '.join(meant)}?" if meant else ""


def _meant(text: str, schemes: tuple[str, ...]) -> list[str]:
    scheme, found, _ = text.partition("://")
    if found:
        return [f"{one}://" for one in _schemes_like(scheme.lower(), schemes)]
    product = text.lower().rstrip(":/")
    if product in _PRODUCTS:
        scheme, address = _PRODUCTS[product]
        return [f"{scheme}://{address}"]
    if "@" not in text and (_FILE.search(text) or text.startswith(("/", "./", "../"))):
        return [f"sqlite:///{text.removeprefix('sqlite:')}"]
    hosts = [host for host in map(_HOST.match, text.split(",")) if host is not None]
    if len(hosts) < text.count(",") + 1:
        return []
    return _at(hosts[0]) if len(hosts) == 1 else _at_all(hosts)


def _schemes_like(scheme: str, schemes: tuple[str, ...]) -> list[str]:
    """The nearest scheme, if one is near enough."""
    from difflib import get_close_matches  # here: most programs do not need it

    if scheme in _ALIASES:
        return [_ALIASES[scheme]]
    near = get_close_matches(scheme, schemes, n=1, cutoff=0.85)
    base = scheme.partition("+")[0]
    if not near and base in schemes:  # postgresql+psycopg, as in SQLAlchemy
        near = [base]
    near = near or get_close_matches(scheme, schemes, n=1, cutoff=0.7)
    return [_ALIASES.get(one, one) for one in near]


def _at_all(hosts: list[re.Match[str]]) -> list[str]:
    """For a group of servers, by the port of the first."""
    where = ",".join(_where(host) + (f":{host['port']}" if host["port"] else "") for host in hosts)
    scheme = _PORTS.get(hosts[0]["port"] or "", "redis")
    if scheme == "redis+sentinel":
        return [f"{scheme}://{where}/SERVICE"]
    return [f"redlock://{where}", f"redis+cluster://{where}"] if scheme == "redis" else [f"{scheme}://{where}"]


def _where(host: re.Match[str]) -> str:
    """With the user name, without the password."""
    return f"{host['user']}@{host['host']}" if host["user"] else host["host"]


def _at(host: re.Match[str]) -> list[str]:
    port, path = host["port"], host["path"] or ""
    where = _where(host)
    scheme = _PORTS.get(port or "")
    if scheme == "redis+sentinel":
        return [f"{scheme}://{where}:{port}/SERVICE"]
    if scheme is not None:
        return [f"{scheme}://{where}:{port}{path}"]
    if port is not None:
        return [f"redis://{where}:{port}{path}", f"postgresql://{where}:{port}{path}"]
    return [f"redis://{where}:6379{path}", f"postgresql://{where}:5432{path}"] if _is_host(host["host"]) else []


def _is_host(text: str) -> bool:
    return text == "localhost" or "." in text or text.startswith("[")
