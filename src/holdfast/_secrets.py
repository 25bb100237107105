"""What a message may show of a URL that a caller wrote: nothing secret.

Decides: which options are secret, and what is left of a URL without its secrets. Every message that repeats one gets it
from here. Leaves to the drivers: how the URL of a place is written that has been understood.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode

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
_HOST: Final = r"(?:\[[0-9a-fA-F:.]*\]|[^@/?#:\[\],]*)(?::\d*)?"
_URL: Final = re.compile(rf"([\w+.-]+://)(?:[^@/?#]*@)?({_HOST}(?:,{_HOST})*(?:/[^@?#]*)?)(\?[^@#]*)?")


def shown(url: str | SplitResult) -> str:
    """The URL without its login and the values of its options; no more than its scheme, where an `@`, a `#` or a port
    is out of place: that may be a part of the password."""
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
    """The name of an option that is not known, unless an `@` in the query says that it is a part of the password."""
    return repr(name) if "@" not in unquote(query) else "…"


def without_secrets(query: str) -> str:
    """The query of a URL that has been understood."""
    return urlencode([(name, value) for name, value in parse_qsl(query) if name not in SECRET_OPTIONS])
