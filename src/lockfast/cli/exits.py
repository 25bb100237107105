"""Exit codes: what the shell sees. The numbers are those of sysexits(3) where it has one that fits.

Decides: which error means which number. They are part of the interface and do not change.
"""

from __future__ import annotations

from typing import Final

from lockfast.errors import AcquireTimeout, BackendUnavailable, LeaseLost, LockError, Unsupported

OK: Final = 0
NO: Final = 1  # nothing to break; free, when asked to check; the demo did not see what it should
USAGE: Final = 64
UNAVAILABLE: Final = 69
INTERNAL: Final = 70
LOST: Final = 74
BUSY: Final = 75
CANNOT_EXECUTE: Final = 126
NOT_FOUND: Final = 127
SIGNAL: Final = 128  # plus the signal's number
INTERRUPTED: Final = SIGNAL + 2
BROKEN_PIPE: Final = SIGNAL + 13


class CommandError(Exception):
    """A command cannot go on, for a reason that has an exit code of its own."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def meaning(error: BaseException) -> tuple[int, str]:
    """The exit code for an error, and its message."""
    if isinstance(error, CommandError):
        return error.code, str(error)
    if isinstance(error, AcquireTimeout):
        return BUSY, str(error)
    if isinstance(error, LeaseLost):
        return LOST, str(error)
    if isinstance(error, BackendUnavailable | Unsupported):
        return UNAVAILABLE, str(error)
    if isinstance(error, ValueError):
        return USAGE, str(error)
    if isinstance(error, LockError | OSError):
        return INTERNAL, str(error)
    return INTERNAL, f"unexpected {type(error).__name__}: {error} (LOCKFAST_DEBUG=1 shows where)"
