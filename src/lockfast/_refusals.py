"""Errors that several backends raise with the same words (pure).

Decides: what these errors say. Leaves to `errors`: which errors there are.
"""

from __future__ import annotations

from lockfast.errors import BackendUnavailable, LimitMismatch, LockError

_CLOSED = "this Locks is closed; connect again"


def closed_locks() -> LockError:
    """The `Locks` that was asked is closed."""
    return LockError(_CLOSED)


def closed_driver(where: str) -> BackendUnavailable:
    """The same from a driver, which knows only `where` its store is; the engine finds a better error for its caller."""
    return BackendUnavailable(f"{where}: {_CLOSED}", transient=False)


def other_event_loop() -> RuntimeError:
    """An `AsyncLocks` is used in a loop while the one that it belongs to is open."""
    return RuntimeError("this AsyncLocks belongs to another event loop; connect once in each loop")


def limit_mismatch(name: str, limit: int | None, asked: int | None) -> LimitMismatch:
    """The error for a backend to raise from `acquire`: `limit` is the one in use, `asked` the other."""
    text = f"{name!r} is in use {_with(limit)}, and was asked for {_with(asked)}; one name has one limit at a time"
    return LimitMismatch(text, name=name, limit=limit, asked=asked)


def _with(limit: int | None) -> str:
    return "by readers, without a limit" if limit is None else f"with limit {limit}"
