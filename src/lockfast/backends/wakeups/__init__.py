"""How a sleeping waiter is found: shared by all backends.

Decides: what a driver offers to those who wait, and what a place where wake-ups arrive must be able to do.
Leaves to `blocking` and `asyncio_`: how a wake-up reaches a thread or a task. Leaves to each backend: what travels
between processes.
"""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Final, Protocol

from lockfast._model import Claim

# Every waiter of this process looks: more wake-ups came than the socket can queue, or a subscription ended.
WAKE_ALL: Final = "\ud800*"  # no bytes decode to half of a surrogate pair, so no message from outside says this


class Wakeups(Protocol):
    @property
    def address(self) -> str:
        """Where other processes reach our waiters; empty until one is expected."""
        ...

    def expect(self, claim: Claim) -> str:
        """From now on a wake-up for this claim is kept, even if it comes before `wait`; the address for it.

        Called from whichever thread runs the transaction.
        """
        ...

    def expects(self, claim: Claim) -> bool:
        """Whether it stands in a queue, as far as this process knows."""
        ...

    def forget(self, claim: Claim) -> None:
        """No wake-up matters to it any more; if it still waits, it looks up. Harmless if none was expected."""
        ...

    async def wait(self, claim: Claim, seconds: float) -> bool:
        """True once woken, or if the claim is not expected; False after `seconds`."""
        ...

    def wake(self, claim: str) -> None:
        """Wake one of our own, from any thread."""
        ...

    def close(self) -> None: ...
    def after_fork(self) -> None: ...


class Inbox(Protocol):
    """Where wake-ups arrive."""

    address: str
    broken: bool  # none arrive any more: another one is needed

    poll: select.poll  # of all its sockets

    def read(self, ready: Sequence[tuple[int, int]]) -> list[str]:
        """The claims that were named since the last reading, at the sockets that `poll` found to be ready."""
        ...

    def abandon(self) -> None:
        """It is the parent's: close only our copy."""
        ...

    def notify(self) -> None:
        """Let whoever sleeps at the sockets look up."""
        ...

    def close(self) -> None: ...
