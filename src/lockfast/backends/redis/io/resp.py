"""The protocol of Redis (RESP), shared by both drivers.

Decides: how a request is written, how a reply is parsed (hiredis does it), and what an error reply means.
Leaves to `replies`: what the reply of a script means.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple
from uuid import uuid4

import hiredis

from lockfast.errors import BackendUnavailable

ReplyError: Final = hiredis.ReplyError
ProtocolError: Final = hiredis.HiredisError  # what a reader raises for bytes that are not RESP
NOTHING: Final = object()  # returned by a reader that has no complete reply
RECEIVE_BYTES: Final = 65536
ASKING: Final = b"*1\r\n$6\r\nASKING\r\n"
PING: Final = b"*1\r\n$4\r\nPING\r\n"

CLUSTERED: Final = ":cluster:"  # in an address whose wake-ups may arrive through another node
CONFIRMS: Final = ":confirm:"  # in an address whose waiters are never made holders without asking

SUSPECT_AFTER_S: Final = 1.0  # without a reply on a connection that used to work: then a new connection is made
_MIN_SUSPECT_AFTER_S: Final = 0.05
LONG_S: Final = 3 * SUSPECT_AFTER_S  # a request with as much time or more is suspected no later
MAX_WAIT_S: Final = 1.0  # for replicas
QUIET_S: Final = 5.0  # without a message on a subscription: then the server is asked for a sign of life
PONG_WITHIN_S: Final = 3.0
_PROBES: Final = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}

# Errors that a later request may not meet; every other error stays.
_TRANSIENT: Final = (
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


_REFUSES_WAIT: Final = "ERR WAIT cannot be used with replica"  # a replica's answer, which is that of READONLY elsewhere
_KNOWN_KINDS: Final = {*_TRANSIENT, "NOPERM", "CROSSSLOT"}


def new_reader() -> hiredis.Reader:
    """Parses what is fed to it; its `gets` is the next reply, or NOTHING."""
    return hiredis.Reader(notEnoughData=NOTHING)


class Script(NamedTuple):
    """Sent by its digest, or by its text to a server that does not know it; the other words of a request stay."""

    digest: bytes  # the first two words of a request, packed
    text: bytes  # the same two words for a server that does not know the digest


def script(source: str, sha: str) -> Script:
    return Script(words("EVALSHA", sha), words("EVAL", source))


def words(*values: str | bytes | int) -> bytes:
    """A part of a request."""
    parts = []
    for value in values:
        plain = value if isinstance(value, bytes) else str(value).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(plain), plain))
    return b"".join(parts)


def new_channel(*, clustered: bool = False, confirms: bool = False) -> str:
    """The channel on which the waiters of one `Locks` are woken.

    In a cluster they confirm, too: the server cannot know whether any process receives a grant there.
    """
    how = CLUSTERED + CONFIRMS[1:] if clustered else CONFIRMS if confirms else ":"
    return f"lockfast:wake{how}{uuid4().hex}"


def probe(channel: str) -> bytes:
    """A request whose reply is on how many connections to that server our wake-ups arrive. It wakes no waiter."""
    return command("PUBLISH", channel, "")


def claim_in(message: Any) -> str | None:
    """The wake-up in a message of a subscription; None if it is something else, such as a sign of life."""
    return message[2].decode(errors="replace") if isinstance(message, list) and message[0] == b"message" else None


def command(*values: str | bytes | int) -> bytes:
    """A whole request."""
    return b"*%d\r\n%b" % (len(values), words(*values))


def call(script: Script, keys: Sequence[str], args: Sequence[str | bytes | int]) -> bytes:
    """A whole request that runs a script."""
    return b"*%d\r\n%b%b" % (3 + len(keys) + len(args), script.digest, words(len(keys), *keys, *args))


def whole(script: Script, request: bytes) -> bytes:
    """The same request with the text of the script."""
    return request.replace(script.digest, script.text, 1)


def suspect_after(within: float) -> float:
    """For how long a reply is waited for on a connection that used to work before a new connection is made.

    A third of the time: if the old connection is dead, there is time to ask again on the new one.
    """
    third = within / 3
    if third > SUSPECT_AFTER_S:
        return SUSPECT_AFTER_S
    return third if third > _MIN_SUSPECT_AFTER_S else min(within, _MIN_SUSPECT_AFTER_S)


def wait_for_replicas(within: float) -> float:
    """For how many seconds the server may wait for its replicas, during which it replies to nothing on a connection."""
    return min(within / 2, MAX_WAIT_S)


def suspect_after_wait(within: float) -> float:
    """As `suspect_after`, where the server waits for its replicas."""
    return suspect_after(within) + wait_for_replicas(within)


def keep_alive(connected: Any) -> None:
    """Let the kernel probe whether the other end is there, on a socket that is only read."""
    with suppress(OSError):  # a unix socket has no such options
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _PROBES.items():
            if hasattr(socket, option):  # not every system has all of them
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def unavailable(server: str, what: str, *, transient: bool = True, sent: bool = True) -> BackendUnavailable:
    return BackendUnavailable(f"the lock server {server} {what}", transient=transient, sent=sent)


def unsent(error: BackendUnavailable) -> BackendUnavailable:
    """What failed had to come before the request, of which nothing was sent."""
    error.sent = False
    return error


def no_connection(url: str, reason: str, *, transient: bool = True) -> BackendUnavailable:
    """The request was not sent."""
    text = f"cannot reach {url}: {reason}" if transient else f"{url} cannot be used: {reason}"
    return BackendUnavailable(text, transient=transient, sent=False)


def facts_in(replies: Sequence[Any]) -> dict[str, str]:
    """The fields of replies to INFO. A user without the right to INFO gets an error reply, which has none."""
    texts = [reply.decode(errors="replace") for reply in replies if isinstance(reply, bytes)]  # paths need not be UTF-8
    lines = [line for text in texts for line in text.splitlines()]
    return dict(line.split(":", 1) for line in lines if ":" in line)


def version_and_role(facts: dict[str, str]) -> tuple[str, str]:
    """Of a server, from the fields of INFO; empty where they are missing."""
    role = {"master": "primary", "slave": "replica"}.get(facts.get("role", ""), "")
    return facts.get("valkey_version") or facts.get("redis_version", ""), role


def kind_of(error: Any) -> str:
    """The error code. An older server puts that of a script's error somewhere into the text."""
    if str(error).startswith(_REFUSES_WAIT):
        return "READONLY"
    first, *others = str(error).split() or [""]
    known = [word.lstrip("-") for word in others if word.lstrip("-") in _KNOWN_KINDS]
    return known[0] if first == "ERR" and known else first


def refusal(server: str, error: Any) -> BackendUnavailable:
    """What an error reply means to a caller."""
    text, kind = str(error), kind_of(error)
    if kind == "READONLY":
        return unavailable(server, f"is a read-only replica, or has become one: {text}")
    if kind in ("MOVED", "ASK", "CROSSSLOT"):
        return unavailable(server, "is a node of a cluster: connect with redis+cluster://", transient=False)
    if kind == "NOPERM":
        return unavailable(server, f"does not allow this user what locks need: {text}", transient=False)
    refused = unavailable(server, f"refuses: {text}", transient=kind in _TRANSIENT)
    refused.kind = kind
    return refused
