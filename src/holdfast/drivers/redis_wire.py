"""What goes over the wire to Redis, and what comes back: shared by both drivers.

Decides: how a request is written, and what the server's errors mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import hiredis

from holdfast.errors import BackendUnavailable

ReplyError: Final = hiredis.ReplyError
NOTHING: Final = object()  # what a reader says when it has nothing yet
RECEIVE: Final = 65536
ASKING: Final = b"*1\r\n$6\r\nASKING\r\n"

# Asked again a little later, these may come out otherwise; every other error stays what it is.
_PASSING: Final = (
    "BUSY",
    "LOADING",
    "MASTERDOWN",
    "TRYAGAIN",
    "CLUSTERDOWN",
    "READONLY",
    "OOM",
    "MISCONF",
    "NOREPLICAS",
)


_TELLING: Final = {*_PASSING, "NOPERM", "CROSSSLOT"}


class Script(NamedTuple):
    """Sent by its digest. Who does not know it gets the text: that changes neither the words nor their number."""

    digest: bytes  # the first two words of a request, packed
    text: bytes  # and what stands there when the digest is not known


def script(source: str, sha: str) -> Script:
    return Script(words("EVALSHA", sha), words("EVAL", source))


def words(*values: str | bytes | int) -> bytes:
    """A part of a request."""
    parts = []
    for value in values:
        plain = value if isinstance(value, bytes) else str(value).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(plain), plain))
    return b"".join(parts)


def command(*values: str | bytes | int) -> bytes:
    """A whole request."""
    return b"*%d\r\n%b" % (len(values), words(*values))


def call(script: Script, keys: Sequence[str], args: Sequence[str | bytes | int]) -> bytes:
    """A whole request that runs a script."""
    return b"*%d\r\n%b%b" % (3 + len(keys) + len(args), script.digest, words(len(keys), *keys, *args))


def whole(script: Script, request: bytes) -> bytes:
    """The same request with the script's text."""
    return request.replace(script.digest, script.text, 1)


def unavailable(server: str, what: str, *, transient: bool = True) -> BackendUnavailable:
    return BackendUnavailable(f"the lock server {server} {what}", transient=transient)


def kind_of(error: Any) -> str:
    """The word that says what it is. An older server puts it somewhere into the text of a script's error."""
    first, *others = str(error).split() or [""]
    telling = [word.lstrip("-") for word in others if word.lstrip("-") in _TELLING]
    return telling[0] if first == "ERR" and telling else first


def refusal(server: str, error: Any) -> BackendUnavailable:
    """What an error of the server's means to a caller."""
    text, kind = str(error), kind_of(error)
    if kind == "READONLY":
        return unavailable(server, f"is a read-only replica, or has become one: {text}")
    if kind in ("MOVED", "ASK", "CROSSSLOT"):
        return unavailable(server, "is a node of a cluster: connect with redis+cluster://", transient=False)
    if kind == "NOPERM":
        return unavailable(server, f"does not allow this user what locks need: {text}", transient=False)
    return unavailable(server, f"refuses: {text}", transient=kind in _PASSING)
