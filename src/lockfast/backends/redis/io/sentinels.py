"""The primary of a service that Sentinels watch.

Decides: which of several Sentinels is believed.
Leaves to `endpoints`: how a Sentinel is connected to and asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from lockfast.backends.redis.io.endpoints import LOGIN, Address, RedisEndpoint
from lockfast.backends.redis.io.resp import command, no_connection
from lockfast.backends.redis.io.tls import is_tls
from lockfast.errors import BackendUnavailable

SENTINEL_PORT: Final = 26379
SENTINEL_WITHIN_S: Final = 1.0  # for each Sentinel: there are others to ask
SERVICE_ERRORS: Final = "surrogateescape"  # how bytes that are not UTF-8 stand in the name of a service
_MASTERS: Final = command("SENTINEL", "MASTERS")


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
            to_sentinels = {name: settings[f"sentinel_{name}"] for name in LOGIN if f"sentinel_{name}" in settings}
            to_sentinels |= {name: value for name, value in self._settings.items() if is_tls(name)}
            to_sentinels["ssl"] = kind == "tls"
        self._to_sentinels = to_sentinels
        its_kind = "tls" if to_sentinels.get("ssl") else "tcp"
        self._sentinels = tuple(RedisEndpoint(its_kind, to_sentinels, address) for address in sentinels)

    @property
    def name(self) -> str:
        return self._name

    @property
    def store_id(self) -> str:
        sentinels = sorted(str(sentinel.address) for sentinel in self._sentinels)
        return f"redis service {self._service} {' '.join(sentinels)} {self.db}"

    @property
    def url(self) -> str:
        return self._url(*(sentinel.address for sentinel in self._sentinels))

    def _path(self) -> str:
        return f"/{quote(self._service, safe='', errors=SERVICE_ERRORS)}" + (f"/{self.db}" if self.db else "")

    def _options(self) -> dict[str, str]:
        user = self._to_sentinels.get("username")
        return {**super()._options(), **({"sentinel_username": str(user)} if user else {})}

    def find(self, within: float) -> Address:
        errors: list[BackendUnavailable] = []
        for sentinel in self._sentinels:
            reply = sentinel.ask(_MASTERS, self._each(within))
            if found := self._primary_in(reply, sentinel, errors):
                return found
        raise self._not_found(errors)

    async def find_async(self, within: float) -> Address:
        errors: list[BackendUnavailable] = []
        for sentinel in self._sentinels:
            reply = await sentinel.ask_async(_MASTERS, self._each(within))
            if found := self._primary_in(reply, sentinel, errors):
                return found
        raise self._not_found(errors)

    def _each(self, within: float) -> float:
        return min(SENTINEL_WITHIN_S, within / len(self._sentinels))

    def _primary_in(self, reply: Any, sentinel: RedisEndpoint, errors: list[BackendUnavailable]) -> Address | None:
        """The primary that this Sentinel reports, if it reports it as up.

        From now on this Sentinel is asked first, so one that hangs costs time only once. An error is added to `errors`.
        """
        if isinstance(reply, BackendUnavailable):
            errors.append(reply)
            return None
        service = self._service.encode(errors=SERVICE_ERRORS)
        for fields in reply:
            reported = dict(zip(fields[::2], fields[1::2], strict=True))
            flags = {*reported[b"flags"].split(b",")}
            if reported[b"name"] == service and b"master" in flags and not {b"s_down", b"o_down"} & flags:
                self._sentinels = (sentinel, *(one for one in self._sentinels if one is not sentinel))
                return Address(reported[b"ip"].decode(), int(reported[b"port"]))
        return None

    def _not_found(self, errors: Sequence[BackendUnavailable]) -> BackendUnavailable:
        """Not transient if every Sentinel has refused us for good."""
        final = len(errors) == len(self._sentinels) and not any(error.transient for error in errors)
        reasons = "; ".join(map(str, errors)) or "all of its Sentinels have answered"
        return no_connection(self.url, f"no primary of {self._service!r} was found: {reasons}", transient=not final)
