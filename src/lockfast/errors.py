"""Everything that can go wrong, and whose turn it is.

`AcquireTimeout` is nobody's fault, `LeaseLost` is time's, `NotHeld` and `Unsupported` are the caller's,
`BackendUnavailable` is the server's. Bad names and times are plain `ValueError`s. Each error carries the
facts of its message as attributes and survives pickling.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AcquireTimeout",
    "BackendUnavailable",
    "Conflict",
    "LeaseLost",
    "LimitMismatch",
    "LockError",
    "NotHeld",
    "SelfDeadlock",
    "StaleFence",
    "Unsupported",
]


class LockError(Exception):
    """The base of all errors of lockfast."""

    name: str | None = None

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        vars(self).update(facts)


class AcquireTimeout(LockError, TimeoutError):
    """The lock was not acquired within `wait`. Nothing is left behind on the server."""

    waited: float = 0.0
    holder: str | None = None  # one that held it when it was last asked for


class LeaseLost(LockError):
    """The lease ended while its holder still wanted it. Another holder may have the lock now."""

    fence: int = 0
    holder: str | None = None
    held_for: float = 0.0
    reason: str = ""


class NotHeld(LockError, RuntimeError):
    """Released or extended what is not held. Nothing was changed."""


class SelfDeadlock(LockError, RuntimeError):
    """The body of a `with` would wait without end for what that `with` holds. Nothing was changed."""


class LimitMismatch(LockError, ValueError):
    """The name is in use with another limit. Nothing was changed."""

    limit: int | None = None  # the one in use; None: readers of a read/write lock, which has none
    asked: int | None = None


class Conflict(LockError):
    """The cell was written meanwhile: its version is not the one expected. Nothing was changed."""

    version: int = 0
    expected: int = 0


class StaleFence(LockError):
    """A higher fence was used before: the writer has lost its lock since. Nothing was changed."""

    fence: int = 0
    last: int = 0  # the highest that was seen


class BackendUnavailable(LockError):
    """The backend could not be asked, or did not answer. What was asked may still have happened.

    `transient` says whether trying again could help: False for a read-only, full or corrupt store.
    `sent` is False if nothing of it can have reached the server, since there was no connection to it.
    `retry_after` is how many seconds have to pass first, if the backend answers and says so.
    `hint` is the end of the message: a command that shows more, where there is one.
    `kind` is what the server calls its refusal, where it does.
    """

    transient: bool = True
    sent: bool = True
    retry_after: float | None = None
    hint: str = ""
    kind: str = ""


class Unsupported(LockError):
    """This backend, or this platform, cannot do what was asked; nothing was sent."""
