"""How a wake-up finds its waiter: shared by all backends.

Decides: what a driver offers to waiters, and what an inbox for wake-ups must be able to do.
Leaves to `blocking` and `asyncio_`: how a wake-up reaches a thread or a task. Leaves to each backend: what travels
between processes.
"""

from __future__ import annotations

import re
import select
from collections.abc import Sequence
from typing import Final, Protocol

from lockfast._model import Claim, Grant

# Wakes every waiter of this process: more wake-ups came than the socket can queue, or a subscription ended.
WAKE_ALL: Final = "\ud800*"  # no bytes decode to half of a surrogate pair, so no message from outside equals it

_GRANT: Final = re.compile(r"([^ ]*) ([0-9]{1,16}) ([0-9]{1,16})").fullmatch


def read_wake_up(text: str) -> tuple[str, Grant | None]:
    """The claim that a wake-up is for, and the grant that it carries, if any.

    It is `claim`, or `claim fence acquired` with the moment of the grant in microseconds. To forge
    one, a client must be able to send, and know the claim's id: from the store, or from an earlier wake-up.
    """
    if found := _GRANT(text):
        claim, fence, acquired = found.groups()
        return claim, tuple.__new__(Grant, (int(fence), int(acquired) / 1e6, None))  # costs a call less than `Grant()`
    return text.partition(" ")[0], None


def write_wake_up(claim: str, grant: Grant | None) -> str:
    """The text that `read_wake_up` reads."""
    return claim if grant is None else f"{claim} {grant.fence} {int(grant.acquired_at * 1e6)}"


class Wakeups(Protocol):
    @property
    def address(self) -> str:
        """Where other processes wake our waiters; empty until one is expected."""
        ...

    def expect(self, claim: Claim) -> str:
        """From now on a wake-up for this claim is kept, even if it comes before `wait`; the address for it.

        Called from the thread that runs the transaction.
        """
        ...

    def expects(self, claim: Claim) -> bool:
        """Whether it is in a queue, as far as this process knows."""
        ...

    def forget(self, claim: Claim) -> None:
        """No wake-up is kept for it any more; a call of `wait` returns. Harmless if none was expected."""
        ...

    async def wait(self, claim: Claim, seconds: float) -> bool | Grant:
        """True once woken, or if the claim is not expected; False after `seconds`.

        In place of True the grant that the wake-up carried; then the claim is not expected any more.
        """
        ...

    def wake(self, wake_up: str) -> None:
        """Wake a waiter of this process, from any thread; see `read_wake_up`."""
        ...

    def close(self) -> None: ...
    def after_fork(self) -> None: ...


class Inbox(Protocol):
    """Where wake-ups arrive."""

    address: str
    broken: bool  # no wake-up arrives any more: a new inbox is needed

    poll: select.poll  # has all its sockets

    def read(self, ready: Sequence[tuple[int, int]]) -> list[str]:
        """The wake-ups that came, from the sockets that `poll` has reported as ready; see `read_wake_up`."""
        ...

    def abandon(self) -> None:
        """In the child of a fork: close our copy of the parent's sockets."""
        ...

    def notify(self) -> None:
        """Wake the thread that polls the sockets."""
        ...

    def close(self) -> None: ...
