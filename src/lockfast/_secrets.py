"""What a message may show of a caller's URL, or of a text of a server or a client library: nothing secret.

Decides: which options are secret, and how a text is shown without its secrets. Every message that repeats such a text
gets it from here. Leaves to the drivers: the URL of an endpoint that was parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode

from lockfast._text import shown

# Of redis-py, and of libpq.
SECRET_OPTIONS: Final = frozenset(
    {
        "password",
        "sentinel_password",
        "ssl_password",
        "sslpassword",
        "oauth_client_secret",
        "scram_client_key",
        "scram_server_key",
    }
)
_HIDDEN: Final = "***"
_ARGUMENTS: Final = re.compile(r"(with args beginning with: ).*", re.DOTALL)  # from a Redis server without AUTH
_HOST: Final = r"(?:\[[0-9a-fA-F:.]*\]|[^@/?#:\[\],]*)(?::\d*)?"
_URL: Final = re.compile(rf"([\w+.-]+://)(?:[^@/?#]*@)?({_HOST}(?:,{_HOST})*(?:/[^@?#]*)?)(\?[^@#]*)?")


def shown_url(url: str | SplitResult) -> str:
    """The URL without its login and the values of its options; only its scheme where an `@`, a `#` or a port is
    misplaced, which may be a part of the password."""
    text = url if isinstance(url, str) else _whole(url)
    found = _URL.fullmatch(text)
    if found is None:
        scheme, ends, _ = text.partition("://")
        return f"{scheme}://…" if ends and re.fullmatch(r"[\w+.-]+", scheme) else "…"
    return found[1] + found[2] + ("?…" if found[3] else "")


def _whole(parts: SplitResult) -> str:
    """As it was written; `geturl()` leaves out an empty host."""
    query, fragment = (f"{mark}{text}" if text else "" for mark, text in (("?", parts.query), ("#", parts.fragment)))
    return f"{parts.scheme}://{parts.netloc}{parts.path}{query}{fragment}"


def shown_option(name: str, query: str) -> str:
    """The name of an unknown option, unless an `@` in the query shows that it may be a part of the password."""
    return shown(name) if "@" not in unquote(query) else "…"


def without_secrets(query: str) -> str:
    """The query of a URL that was parsed."""
    return urlencode([(name, value) for name, value in parse_qsl(query) if name not in SECRET_OPTIONS])


def secrets_in(*settings: Mapping[str, Any]) -> list[str]:
    """The secret values of these settings."""
    found = [value for given in settings for name, value in given.items() if name in SECRET_OPTIONS and value]
    return [value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in found]


def hide(text: str, secrets: Iterable[str]) -> str:
    """A text of a server or a client library, without these secrets and without the arguments of a command."""
    for secret in sorted(secrets, key=len, reverse=True):  # one may be the beginning of another
        for written in (secret, repr(secret)[1:-1]):
            text = text.replace(written, _HIDDEN)
    return _ARGUMENTS.sub(rf"\1{_HIDDEN}", text)
