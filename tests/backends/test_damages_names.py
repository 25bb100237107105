"""Records under a text that is no name: listed as damaged, and freed by a break of just that text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lockfast
from lockfast._model import Claim, Terms
from lockfast._reentry import drive
from lockfast.cli import main
from lockfast.primitives.names import flaw_in
from tests.servers import shared
from tests.servers.postgres_tables import table
from tests.servers.quorum import quorum
from tests.servers.waiting import LIMIT_S

pytestmark = pytest.mark.slow

STORES: dict[str, Callable[[Path], str]] = {
    "sqlite": lambda folder: f"sqlite:///{folder}/locks.db",
    "redis": lambda folder: shared.valkey().url(folder),
    "quorum": lambda folder: quorum(3).url(folder),
    "postgres": lambda folder: table().url(folder),
}
NAMES = ("a\nb", "\x1b[2J", "\x7f", "x" * 300)
KEPT = [  # those that a store can have
    (store, name) for store in STORES for name in NAMES if not (store == "postgres" and len(name) > 255)
]


@pytest.fixture
def url(store: str, tmp_path: Path) -> str:
    return STORES[store](tmp_path)


@pytest.fixture
def locks(url: str) -> Iterator[lockfast.Locks]:
    with lockfast.connect(url) as locks:
        yield locks


def file(locks: lockfast.Locks, key: str) -> None:
    """As a client does that checks nothing."""
    claim = Claim("c0", Terms(key, key, "h", 600.0))
    drive(locks._logic.engine.backend.acquire(claim, enqueue=False, within=LIMIT_S))


@pytest.mark.parametrize(("store", "name"), KEPT)
def test_what_is_filed_under_no_name_is_listed_as_damaged_and_freed_by_a_break(
    locks: lockfast.Locks, url: str, name: str
) -> None:
    file(locks, name)
    with locks.lock("sound", ttl=60):
        found = {info.name: info for info in locks.list()}
        assert sorted(found) == sorted([name, "sound"])
        assert found[name].damage == f"a lock name {flaw_in(name)}"
        assert not found["sound"].damage
        before = locks.break_lock(name)
        assert [one.holder for one in before.holders] == ["h"]
        assert [info.name for info in locks.list()] == ["sound"]
    with pytest.raises(ValueError, match="a lock name"), lockfast.connect(url) as others:
        others.break_lock(name)  # which it has not listed


@pytest.mark.parametrize("store", STORES)
def test_what_is_no_name_and_not_listed_either_is_refused(locks: lockfast.Locks, store: str) -> None:
    file(locks, "a\nb")
    file(locks, "others\x1fa")
    file(locks, "\x1fturn\x1fapi")
    assert [info.name for info in locks.list()] == ["a\nb"]
    refused = ["a\n", "a\nbc", "others\x1fa", "\x1fturn\x1fapi", "\udc80"]
    for name in refused if store != "sqlite" else [*refused, ""]:  # there the empty text is the store's own
        with pytest.raises(ValueError, match="a lock name"):
            locks.break_lock(name)
    for use in (locks.inspect, locks.lock):
        with pytest.raises(ValueError, match="control characters"):
            use("a\nb")
    assert [info.name for info in locks.list()] == ["a\nb"]


@pytest.mark.parametrize("store", ["sqlite", "redis", "postgres"])
def test_each_namespace_breaks_its_own(locks: lockfast.Locks, url: str) -> None:
    file(locks, "a\nb")
    file(locks, "others\x1fa\nb")
    assert locks.list()
    with lockfast.connect(url, namespace="others") as others:
        assert others.list()
        assert others.break_lock("a\nb").locked
        assert others.list() == []
        assert [info.name for info in locks.list()] == ["a\nb"]


@pytest.mark.parametrize("store", ["sqlite", "redis", "postgres"])
def test_the_command_line_breaks_it_too(locks: lockfast.Locks, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    file(locks, "a\nb")
    assert main(["ls", "--json", "--url", url]) == 0
    [listed] = json.loads(capsys.readouterr().out)
    assert main(["break", "--url", url, listed["name"]]) == 0
    assert r"a\nb" in capsys.readouterr().out
    assert locks.list() == []
    assert main(["break", "--url", url, listed["name"]]) == 64
