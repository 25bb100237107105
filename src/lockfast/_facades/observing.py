"""What `connect(observe=…)` turns on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from lockfast._text import shown

L = TypeVar("L")
Install = Callable[[Any], object]
Observers = Iterable[str | Install]


def installers(observe: Observers) -> list[Install]:
    """A function for each entry, to be called with the `Locks`. Raises ValueError, or ImportError for an extra."""
    if isinstance(observe, str) or not isinstance(observe, Iterable):
        raise ValueError(f"observe must be a list, such as ['prometheus'], not {shown(observe)}")
    return [_installer(one) for one in observe]


def _installer(one: str | Install) -> Install:
    if one == "prometheus":
        from lockfast.observe import prometheus

        return prometheus.install
    if one == "otel":
        from lockfast.observe import otel

        return otel.install
    if one == "stats":
        return _begin_stats
    if isinstance(one, str) or not callable(one):
        raise ValueError(
            f"observe takes 'prometheus', 'otel', 'stats' and functions that take the Locks, not {shown(one)}"
        )
    return one


def _begin_stats(locks: Any) -> None:
    locks.stats()


def observed(locks: L, installs: list[Install]) -> L:
    """The same locks, with all of that installed."""
    for install in installs:
        install(locks)
    return locks
