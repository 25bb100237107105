"""What an operator can see: one stream of events, and its listeners.

`lockfast.observe.prometheus` and `lockfast.observe.otel` are public: each has an `install(locks)`. docs/metrics.md has
the table of what is measured.
"""

from __future__ import annotations

from typing import Any, Final

_PUBLIC: Final = ("otel", "prometheus")  # each needs a library that not every program has


def __getattr__(name: str) -> Any:
    """Import it when it is first used."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'lockfast.observe' has no attribute {name!r}")
    import importlib

    return importlib.import_module(f"lockfast.observe.{name}")


def __dir__() -> list[str]:
    return [*globals(), *_PUBLIC]
