"""Scripts for which two holds are many, or one is: names with many shared holds have a form of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lockfast.backends.redis import requests

_CACHES = (requests.source, requests.script, requests.acquire, requests.release)


def _forget() -> None:
    for cached in _CACHES:
        cached.cache_clear()


@contextmanager
def many_holds_are(more_than: int, few: int) -> Iterator[None]:
    """Shared holds become rows if there are more, and lines again if there are no more than `few`: see rows.lua."""
    before = dict(requests.CONSTANTS)
    requests.CONSTANTS.update(MANY_HOLDS=more_than, FEW_HOLDS=few)
    _forget()
    try:
        yield
    finally:
        requests.CONSTANTS.update(before)
        _forget()
