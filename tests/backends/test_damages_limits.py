"""The limits of holder ids and metadata hold at a Redis server too: for peers that run its scripts without checks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import lockfast
from lockfast import BackendUnavailable
from lockfast._records import LARGEST_METADATA, LONGEST_NAME
from tests.backends.damages import HUGE, ask
from tests.servers import shared
from tests.servers.quorum import quorum

pytestmark = pytest.mark.slow

TOO_MUCH = {
    "deep": ("h", "[" * 51 + "]" * 51),
    "very deep": ("h", "[" * 3000 + "]" * 3000),
    "large": ("h", f'"{"x" * LARGEST_METADATA}"'),
    "two lines": ("h", "[\n]"),
    "a long holder": ("h" * (LONGEST_NAME + 1), ""),
    "a long holder that is escaped": ("é" * (LONGEST_NAME + 1), ""),
    "a huge holder": ("h" * HUGE, ""),
}
ENOUGH = {
    "deep": ("h", "[" * 50 + "]" * 50),
    "wide": ("h", f"[{'[],' * 1000}[]]"),
    "brackets in a string": ("h", f'"{"[" * 1000}"'),
    "quotes in a string": ("h", f'"{chr(92)}"{"[" * 1000}"'),
    "large": ("h", f'"{"x" * (LARGEST_METADATA - 2)}"'),
    "a long holder": ("h" * LONGEST_NAME, '"m"'),
    "a long holder that is escaped": ("é€😀" * (LONGEST_NAME // 3), '"m"'),
    "brackets in a holder": ("[" * LONGEST_NAME, '"m"'),
}


@pytest.fixture(params=["redis", "redlock"])
def locks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[lockfast.Locks]:
    url = shared.valkey().url(tmp_path) if request.param == "redis" else quorum(3).url(tmp_path)
    with lockfast.connect(url) as locks:
        yield locks


@pytest.mark.parametrize("what", TOO_MUCH)
def test_what_is_too_much_is_refused_by_the_scripts(locks: lockfast.Locks, what: str) -> None:
    for _ in range(2):  # free, and then held
        for enqueue in (False, True):
            with pytest.raises(BackendUnavailable, match=r"at most|line end"):
                ask(locks, "c0", *TOO_MUCH[what], enqueue=enqueue)
        locks.lock("x", ttl=60).acquire(timeout=0)
    assert locks.inspect("x").waiters == 0
    assert locks.inspect("x").holders[0].holder == locks.holder


@pytest.mark.parametrize("what", ENOUGH)
def test_what_is_not_too_much_is_kept(locks: lockfast.Locks, what: str) -> None:
    holder, _ = ENOUGH[what]
    ask(locks, "c0", *ENOUGH[what], enqueue=False)
    info = locks.inspect("x")
    assert (info.holders[0].holder, info.damage) == (holder, "")
