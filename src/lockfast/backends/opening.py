"""What every package's `open` shares: the options of `connect()`, and how a URL is read.

Decides: the error for an option that the backend does not have, and for a URL that cannot be read.
Leaves to each package's `open`: which options it takes, and what its URLs mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import SplitResult, urlsplit

from lockfast._secrets import shown_url
from lockfast._text import encodable, shown
from lockfast._time import Seconds
from lockfast._worlds import Clock, World
from lockfast.backends.base import Backend
from lockfast.errors import Unsupported

BackendFactory: TypeAlias = Callable[[World, Clock | None], Backend]  # the same store, in either world

_WHY_NOT: Final = {
    "replicas": "has no replicas to wait for",
    "schema": "has no schema to choose",
    "advisory": "has no advisory locks: only PostgreSQL has",
    "rejoin": "is no quorum, so no server is excluded and rejoin has no meaning",
}


class ConnectOptions(NamedTuple):
    """What `connect()` takes besides the URL or the client."""

    replicas: int = 0
    schema: str | None = None
    advisory: bool = False
    rejoin: Seconds | None = None

    def refuse_all_but(self, *taken: str, where: str) -> None:
        """Raises Unsupported for an option that was passed and that the backend does not take. Nothing was sent."""
        for name, why_not in _WHY_NOT.items():
            if name not in taken and getattr(self, name) != self._field_defaults[name]:
                raise Unsupported(f"{where} {why_not}; nothing was sent")


DEFAULT_OPTIONS: Final = ConnectOptions()
UrlOpener: TypeAlias = Callable[[SplitResult, ConnectOptions], BackendFactory]


def split_url(url: str) -> SplitResult:
    """Raises ValueError without any part of the URL that could be a secret."""
    try:
        parts = urlsplit(url)
    except ValueError:  # whose text has the whole URL
        raise ValueError("this is no URL; is something in its password not percent-encoded?") from None
    if parts.scheme != "sqlite" and not encodable(url):  # a file name may be any bytes
        raise ValueError("a URL must be encodable as UTF-8; is something in it not percent-encoded?")
    return parts


def refuse_fragment(parts: SplitResult) -> None:
    if parts.fragment:
        raise ValueError(f"{parts.scheme}:// takes no fragment; is a `#` in its password not percent-encoded?")


def refuse_url_options(parts: SplitResult) -> None:
    if parts.query or parts.fragment:
        raise ValueError(f"{parts.scheme}:// takes no options, but {shown(shown_url(parts))} has some")
