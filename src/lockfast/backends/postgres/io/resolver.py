"""The addresses behind the name of a PostgreSQL host, looked up without delaying the caller.

Decides: how long a lookup is reused, and how the time to connect is shared between addresses.
Leaves to the drivers of either world: to wait for it.

A lookup cannot be interrupted, and may take as long as the resolver likes: libpq would make its caller wait for that,
or a whole event loop. So a thread of its own does it, and its callers wait only as long as they have time.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, TypeVar

from lockfast._reentry import start_thread
from lockfast._time import boot_now
from lockfast.backends.postgres.io.endpoint import PostgresEndpoint
from lockfast.backends.postgres.io.refusals import Broken

T = TypeVar("T")

FRESH_FOR_S: Final = 5.0  # a caller that gave up, and comes back, finds the addresses


class _Lookup:
    def __init__(self, host: str) -> None:
        self.host = host
        self.found: Future[list[str]] = Future()
        self.found.set_running_or_notify_cancel()  # from here on no caller can cancel it for the others
        self._ended_at = 0.0
        start_thread("lockfast-lookup", self._run)

    @property
    def of_use(self) -> bool:
        if not self.found.done():
            return True
        return self.found.exception() is None and boot_now() - self._ended_at < FRESH_FOR_S

    def _run(self) -> None:
        try:
            answers = socket.getaddrinfo(self.host, None, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no name of a host"
            self.found.set_exception(Broken(f'could not translate host name "{self.host}" to address: {reason}'))
        else:
            self._ended_at = boot_now()
            self.found.set_result(list(dict.fromkeys(str(address[0]) for *_, address in answers)))


class Names:
    """The lookups of one driver."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._lookups: dict[str, _Lookup] = {}  # by host

    def addresses(self, params: Mapping[str, str]) -> Future[list[dict[str, str]]]:
        """Later: the same parameters for each address of their host; or Broken."""
        found: Future[list[dict[str, str]]] = Future()
        found.set_running_or_notify_cancel()
        host = params.get("host") or os.environ.get("PGHOST", "")
        if _needs_no_lookup(host) or "hostaddr" in params or "PGHOSTADDR" in os.environ:
            found.set_result([dict(params)])
        else:
            self._look_up(host).add_done_callback(lambda done: _pass_on(found, params, done))
        return found

    def _look_up(self, host: str) -> Future[list[str]]:
        with self._mutex:
            known = self._lookups.get(host)
            if known is None or not known.of_use:
                known = self._lookups[host] = _Lookup(host)
            return known.found


def _pass_on(found: Future[Any], params: Mapping[str, str], done: Future[list[str]]) -> None:
    error = done.exception()
    if error is not None:
        found.set_exception(Broken(str(error)))  # one of its own for each: an exception remembers where it was raised
    else:
        found.set_result([{**params, "hostaddr": address} for address in done.result()])


def _needs_no_lookup(host: str) -> bool:
    if not host or host.startswith(("/", "@")) or "," in host:
        return True
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError):
            socket.inet_pton(family, host)
            return True
    return False


def each_address(
    names: Names, endpoint: PostgresEndpoint, until: float, reasons: list[Exception]
) -> Iterator[tuple[dict[str, str], float]]:
    """Blocks: parameters for each address of each host, and until when to try it. The others are added to `reasons`."""
    for params, last in shares(endpoint.hosts, until, boot_now):
        try:
            found = names.addresses(params).result(max(0.0, last - boot_now()))
        except TimeoutError:
            reasons.append(TimeoutError(not_found(params)))
        except Broken as reason:
            reasons.append(reason)
        else:
            yield from shares(endpoint.in_order(found), last, boot_now)


def not_found(params: Mapping[str, str]) -> str:
    return f"no address of {params.get('host', '')!r} was found in time"


def shares(several: Sequence[T], until: float, now: Callable[[], float]) -> Iterator[tuple[T, float]]:
    """Each of them, and until when it may be tried so that there is as much time for each of the others."""
    for number, one in enumerate(several):
        started = now()
        yield one, started + (until - started) / (len(several) - number)
