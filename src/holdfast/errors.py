"""Everything that can go wrong, and whose turn it is.

`AcquireTimeout` is nobody's fault, `LeaseLost` is time's, `NotHeld` and `Unsupported` are the caller's,
`BackendUnavailable` is the server's. Bad names and times are plain `ValueError`s. Each error carries the
facts of its message as attributes and survives pickling.
"""

from __future__ import annotations

from typing import Any


class LockError(Exception):
    """The base of all errors of holdfast."""

    name: str | None = None

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        vars(self).update(facts)


class AcquireTimeout(LockError, TimeoutError):
    """The lock was not to be had within `wait`. Nothing is left behind on the server."""

    waited: float = 0.0
    holder: str | None = None  # somebody who was in the way when last asked


class LeaseLost(LockError):
    """The lease ended while its holder still wanted it. Somebody else may hold the lock now."""

    fence: int = 0
    holder: str | None = None
    held_for: float = 0.0
    reason: str = ""


class NotHeld(LockError, RuntimeError):
    """Released or extended what is not held. Nothing was changed."""


class BackendUnavailable(LockError):
    """The backend could not be asked, or did not answer. What was asked may still have happened.

    `transient` tells whether trying again could help: False for a read-only, full or corrupt store.
    """

    transient: bool = True


class Unsupported(LockError):
    """This backend, or this platform, cannot do what was asked; nothing was sent."""
