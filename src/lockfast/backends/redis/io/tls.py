"""TLS to Redis and Valkey: what the options `ssl_…` mean, and one context for all connections.

Decides: which options there are, and when a context is built. Building one takes longer than the rest of connecting, so
connections with the same options share it until one of the files that it was built from changes.
Leaves to `endpoints`: to connect. Leaves to redis-py's own connections: options that are not known here, such as OCSP.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from inspect import signature
from itertools import chain
from typing import Any, Final, NamedTuple

import redis

from lockfast._reentry import Mutex, critical_section
from lockfast._text import shown

_PREFIX: Final = "ssl_"
_MODES: Final = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_OF_REDIS_PY: Final = signature(redis.SSLConnection).parameters
_CHECKS_HOST_NAMES: Final = bool(_OF_REDIS_PY["ssl_check_hostname"].default)  # redis-py 5 does not by default
_NONE_IS_NO: Final = frozenset({"ssl_cert_reqs", "ssl_check_hostname"})  # where a client of redis-py means no by None
_MAX_CONTEXTS: Final = 16
_HASHED: Final = re.compile(r"[0-9a-f]{8}\.r?\d+")  # a certificate or a revocation list, by the hash of its subject


class Tls(NamedTuple):
    """The options; each field is one of them, without its prefix."""

    certfile: str | None = None
    keyfile: str | None = None
    password: str | None = None
    ca_certs: str | None = None
    ca_path: str | None = None
    ca_data: str | bytes | None = None
    cert_reqs: ssl.VerifyMode = ssl.CERT_REQUIRED
    check_hostname: bool = _CHECKS_HOST_NAMES
    include_verify_flags: tuple[ssl.VerifyFlags, ...] = ()
    exclude_verify_flags: tuple[ssl.VerifyFlags, ...] = ()
    min_version: ssl.TLSVersion | None = None
    ciphers: str | None = None

    @property
    def trust(self) -> dict[str, Any]:
        """Which certificates it trusts, as options of a URL."""
        mode = next(word for word, mode in _MODES.items() if mode == self.cert_reqs)
        return {"ssl_cert_reqs": mode, "ssl_check_hostname": self.check_hostname}


def is_tls(option: str) -> bool:
    return option.startswith(_PREFIX)


# In URLs.
OPTIONS: Final = {*(_PREFIX + field for field in Tls._fields), *filter(is_tls, _OF_REDIS_PY)} - {"ssl_ocsp_context"}
USUAL: Final = Tls(check_hostname=True).trust  # the defaults of a URL


def says_something(option: str, value: Any) -> bool:
    """False for an option that is not set: a client of the other world may not know it."""
    unset = value is None or (option.startswith("ssl_validate_ocsp") and not value)
    return option in _NONE_IS_NO or not unset


def tls_of(settings: Mapping[str, Any]) -> Tls | None:
    """None if redis-py must build the context. Raises ValueError for options that make no sense."""
    given = {name.removeprefix(_PREFIX): value for name, value in settings.items() if is_tls(name)}
    known = {name: _read(name, value) for name, value in given.items() if name in Tls._fields}
    tls = Tls(**known)
    if tls.keyfile and not tls.certfile:
        raise ValueError("ssl_keyfile is the key of a certificate: ssl_certfile says where that is")
    if tls.cert_reqs == ssl.CERT_NONE:
        tls = tls._replace(check_hostname=False)
    return tls if len(known) == len(given) else None


def checks_host_names(settings: Mapping[str, Any]) -> bool:
    """True unless the URL says otherwise. redis-py 5 does not by default, and would send the password to any server
    that has a certificate of a trusted authority."""
    verified = settings.get("ssl_cert_reqs") != "none"
    asked = settings.get("ssl_check_hostname")
    if asked and not verified:
        raise ValueError("ssl_check_hostname=true has no certificate to check: ssl_cert_reqs is none")
    return verified if asked is None else bool(asked)


def _read(name: str, value: Any) -> Any:
    try:
        return _READ[name](value) if name in _READ else value
    except (KeyError, ValueError, TypeError, ssl.SSLError):
        known = f"; known are {', '.join(_MODES)}" if name == "cert_reqs" else ""
        raise ValueError(f"{_PREFIX}{name} cannot be {shown(value)}{known}") from None


def _mode(value: Any) -> ssl.VerifyMode:
    return _MODES[value] if isinstance(value, str) else ssl.VerifyMode(value or ssl.CERT_NONE)


def _flags(value: Any) -> tuple[ssl.VerifyFlags, ...]:
    """From a list, or from its text in a URL."""
    if isinstance(value, str):
        return tuple(ssl.VerifyFlags[name.strip()] for name in value.strip("[]").split(","))
    return tuple(map(ssl.VerifyFlags, value))


def _version(value: Any) -> ssl.TLSVersion:
    version = ssl.TLSVersion(int(value))
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).minimum_version = version
    return version


def _ciphers(value: Any) -> str:
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).set_ciphers(value)
    return str(value)


def _path(value: Any) -> str:
    if b"\0" in os.fsencode(value):
        raise ValueError
    return os.fsdecode(value)


def _certificates(value: Any) -> str | bytes:
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=value)
    return value if isinstance(value, str) else bytes(value)


_READ: Final[dict[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(("certfile", "keyfile", "ca_certs", "ca_path"), _path),
    "ca_data": _certificates,
    "cert_reqs": _mode,
    "check_hostname": bool,
    "include_verify_flags": _flags,
    "exclude_verify_flags": _flags,
    "min_version": _version,
    "ciphers": _ciphers,
}


_mutex = Mutex()  # held while a context is looked up or built


def context_of(tls: Tls) -> ssl.SSLContext:
    """Raises OSError, ssl.SSLError among them, for files that are missing or hold no certificates."""
    usual = ssl.get_default_verify_paths()
    folders = (tls.ca_path, os.environ.get(usual.openssl_capath_env, usual.openssl_capath))
    files = (tls.certfile, tls.keyfile, tls.ca_certs, usual.cafile, *chain(*map(_certificates_in, folders)))
    states = tuple(map(_state, files))
    with critical_section(_mutex):  # of threads that connect together, the first builds it for all
        return _build(tls, states)


def _certificates_in(folders: str | None) -> list[str]:
    """The files that OpenSSL reads there, when a connection first needs one, and keeps in the context. Writing one of
    them does not change the state of the folder."""
    found: list[str] = []
    for folder in os.fsdecode(folders or "").split(os.pathsep):
        with suppress(OSError), os.scandir(folder) as entries:
            found += sorted(entry.path for entry in entries if _HASHED.fullmatch(entry.name))
    return found


def _state(file: str | None) -> tuple[object, ...]:
    """It differs once the file has been written or replaced."""
    try:
        found = os.stat(file) if file else None
    except OSError:
        found = None
    return (file,) if found is None else (file, found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)


@lru_cache(maxsize=_MAX_CONTEXTS)
def _build(tls: Tls, states: tuple[tuple[object, ...], ...]) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = tls.check_hostname
    context.verify_mode = tls.cert_reqs
    for flag in tls.include_verify_flags:
        context.verify_flags |= flag
    for flag in tls.exclude_verify_flags:
        context.verify_flags &= ~flag
    if tls.certfile:
        context.load_cert_chain(tls.certfile, tls.keyfile, tls.password)
    if tls.ca_certs or tls.ca_path or tls.ca_data:
        context.load_verify_locations(tls.ca_certs, tls.ca_path, tls.ca_data)
    if tls.min_version is not None:
        context.minimum_version = tls.min_version
    if tls.ciphers:
        context.set_ciphers(tls.ciphers)
    return context


def _after_fork() -> None:
    global _mutex
    _mutex = Mutex()  # another thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
