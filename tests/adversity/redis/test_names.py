"""Names from the awkward corners of Unicode: lock, list, inspect and break agree on each, and no two are one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import lockfast
import lockfast.aio
from tests.polling import HOUR, never_poll
from tests.servers.binaries import HAS_REDIS_6
from tests.servers.shared import redis_6, valkey
from tests.servers.waiting import LIMIT_S, until_async

NAMES = (
    "{a}",
    "{a}{b}",
    "{}",
    "}{",
    "}",
    "{",
    "a}:held",
    "a:held",
    "%",
    "%7D",
    "%25",
    "%257D",
    "100%",
    "'\"`\\",
    " leading and trailing ",
    "*",
    "[a-z]?",
    "a*b\\*c",
    "^-",
    "🔒",
    "👨‍👩‍👧‍👦",
    "שלום",
    "\u202eabc",
    "\u0301",
    "e\u0301",
    "é",
    "ﬀ",
    "\ufeffbom",
    "\U0010ffff",
    "lockfast:{x}:held",
    "x" * 255,
    "日本" * 127,
)

REFUSED = ("a\x00b", "line\nbreak", "\r\n$5\r\nhello\r\n", "\t", "", "x" * 10_000, "\ud800")


@pytest.fixture(params=["valkey", *(["redis6"] if HAS_REDIS_6 else [])])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    shared = valkey() if request.param == "valkey" else redis_6()
    return shared.url(tmp_path_factory.mktemp("names"))


@pytest.fixture
def locks(url: str) -> Iterator[lockfast.Locks]:
    with lockfast.connect(url, holder='{%} holder " 🔒') as locks:
        yield locks


def test_lock_list_inspect_and_break_agree_on_every_name(locks: lockfast.Locks) -> None:
    leases = {name: locks.lock(name, metadata={"name": name}).acquire() for name in NAMES}
    assert sorted(info.name for info in locks.list()) == sorted(NAMES)
    for name, lease in leases.items():
        assert lease is not None
        assert lease.name == name
        (holder,) = locks.inspect(name).holders
        assert (holder.fence, holder.metadata, holder.holder) == (lease.fence, {"name": name}, '{%} holder " 🔒')
        assert name in [info.name for info in locks.list(prefix=name)]
        assert all(info.name.startswith(name) for info in locks.list(prefix=name))
        (broken,) = locks.break_lock(name).holders
        assert broken.fence == lease.fence
        assert not locks.lock(name).locked()
    assert locks.list() == []


def test_asyncio_means_the_same_names(url: str, locks: lockfast.Locks) -> None:
    async def check() -> None:
        async with lockfast.aio.connect(url) as others:
            for name in NAMES:
                with locks.lock(name):
                    assert (await others.inspect(name)).locked
                    assert await others.lock(name).acquire(blocking=False) is None
            assert await others.list() == []

    asyncio.run(check())


async def _waits(locks: lockfast.aio.AsyncLocks, name: str) -> int:
    return (await locks.inspect(name)).waiters


def test_waiters_are_woken_whatever_the_name(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    never_poll(monkeypatch)

    async def wait_for_all() -> None:
        async with lockfast.aio.connect(url) as locks, lockfast.aio.connect(url) as others:
            leases = [await locks.lock(name, ttl=HOUR).acquire() for name in NAMES]
            waiters = [asyncio.ensure_future(others.lock(name, wait=LIMIT_S).acquire()) for name in NAMES]
            for name in NAMES:
                await until_async(lambda name=name: _waits(others, name), f"one to wait for {name!r}")  # type: ignore[misc]
            for lease in leases:
                assert lease is not None
                assert await lease.release()
            granted = [await waiter for waiter in waiters]
            assert all(granted)

    asyncio.run(wait_for_all())


def test_values_are_kept_whatever_their_names(locks: lockfast.Locks) -> None:
    for number, name in enumerate(NAMES):
        locks.cell(name).write({"text": name, "number": number})
        assert locks.limiter(name, rate=1).try_acquire()
        assert not locks.limiter(name, rate=1).try_acquire()
    for number, name in enumerate(NAMES):
        assert locks.cell(name).read().value == {"text": name, "number": number}


@pytest.mark.parametrize("name", REFUSED, ids=ascii)
def test_what_no_name_may_be_is_refused_before_anything_is_sent(locks: lockfast.Locks, name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        locks.lock(name)
    with pytest.raises(ValueError, match="name"):
        locks.inspect(name)
    with pytest.raises(ValueError, match="name"):
        locks.break_lock(name)
