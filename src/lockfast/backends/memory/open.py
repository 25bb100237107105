"""From `memory://` or `memory://store` to the backend."""

from __future__ import annotations

from urllib.parse import SplitResult

from lockfast._secrets import shown_url
from lockfast._text import shown
from lockfast.backends.memory.backend import MemoryBackend
from lockfast.backends.memory.store import shared_store
from lockfast.backends.opening import BackendFactory, ConnectOptions, refuse_url_options


def open_url(parts: SplitResult, options: ConnectOptions) -> BackendFactory:
    options.refuse_all_but(where="memory://")
    refuse_url_options(parts)
    if parts.path not in ("", "/") or "@" in parts.netloc:
        raise ValueError(f"a memory URL is memory:// or memory://name, not {shown(shown_url(parts))}")
    return lambda world, clock: MemoryBackend(shared_store(parts.netloc or "default", clock), world)
