"""Wake-ups between the processes of a host: whose datagrams count, where they are sent, and what a flood may cost."""

from __future__ import annotations

import array
import asyncio
import os
import socket
import sqlite3
import stat
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest

import lockfast
from lockfast._ids import new_claim_id
from lockfast._model import Claim, Grant, Terms, poll_after
from lockfast._records import LARGEST_NUMBER
from lockfast._values import NS_PER_S, Pacer
from lockfast._worlds import World, drive
from lockfast._worlds.asyncio_ import AsyncioWorld
from lockfast._worlds.threads import ThreadWorld
from lockfast.backends.sqlite.io import datagrams
from lockfast.backends.sqlite.io.asyncio_ import AsyncioSqliteWakeups
from lockfast.backends.sqlite.io.datagrams import DatagramInbox, DatagramSender, open_inbox
from lockfast.backends.sqlite.io.driver import open_driver
from lockfast.backends.sqlite.schema import SCHEMA
from lockfast.backends.wakeups import WAKE_ALL, write_wake_up
from lockfast.backends.wakeups.blocking import BlockingWakeups
from lockfast.backends.wakeups.flood_guard import COST_OF_WAKE_ALL, IN_VAIN, FloodGuard
from lockfast.testing import FakeClock
from tests.capabilities import ABSTRACT_SOCKETS
from tests.polling import HOUR
from tests.servers.waiting import LIMIT_S, join, until

BRIEFLY_S = 0.05  # seconds in which a wake-up that must not come would come

Wakeups = BlockingWakeups | AsyncioSqliteWakeups
Story = Callable[[Wakeups], Coroutine[Any, Any, None]]


class Play(Protocol):
    def __call__(self, story: Story, guard: FloodGuard | None = None) -> None: ...


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store that is of one user."""
    folder = tmp_path / "store"
    folder.mkdir(0o700)
    (folder / "locks.db").touch(0o600)
    return folder / "locks.db"


@pytest.fixture(params=["threads", "asyncio"])
def play(request: pytest.FixtureRequest, store: Path) -> Play:
    """Run a story with the waiters of one `Locks`."""

    def in_threads(story: Story, guard: FloodGuard | None = None) -> None:
        wakeups = BlockingWakeups(None, partial(open_inbox, store), guard or FloodGuard())
        try:
            drive(story(wakeups))
        finally:
            wakeups.close()

    def in_asyncio(story: Story, guard: FloodGuard | None = None) -> None:
        async def main() -> None:
            wakeups = AsyncioSqliteWakeups(None, partial(open_inbox, store), guard or FloodGuard())
            wakeups.read_in(asyncio.get_running_loop())
            try:
                await story(wakeups)
            finally:
                wakeups.close()

        asyncio.run(main())

    return in_threads if request.param == "threads" else in_asyncio


@pytest.fixture
def any_socket() -> Iterator[socket.socket]:
    """A sender that keeps no rule of ours."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        yield sender


def a_claim() -> Claim:
    return Claim(new_claim_id(), Terms("x", "x", "us", 30.0))


def send(address: str, *claims: str) -> None:
    sender = DatagramSender()
    for claim in claims:
        sender.send(address, claim)
    sender.close()


def where(address: str) -> str:
    return "\0" + address[1:] if address.startswith("@") else address


# What counts


def test_a_datagram_without_a_claim_is_ignored(tmp_path: Path, any_socket: socket.socket) -> None:
    url = f"sqlite:///{tmp_path}/locks.db"
    with lockfast.connect(url) as locks, lockfast.connect(url) as others:
        holder = locks.lock("x").acquire()
        waiter = threading.Thread(target=lambda: others.lock("x").acquire())
        waiter.start()
        until(lambda: locks.inspect("x").waiters, "one to wait")
        with sqlite3.connect(tmp_path / "locks.db") as db:
            (address,) = db.execute("SELECT address FROM claims WHERE waiting = 1").fetchone()
        db.close()
        any_socket.sendto(b"\xff", where(address))
        assert holder is not None
        assert holder.release()
        join(waiter)
        assert others.inspect("x").locked


@pytest.mark.parametrize("text", [b"*", WAKE_ALL.encode(errors="surrogatepass")])
def test_no_datagram_wakes_all_waiters(play: Play, any_socket: socket.socket, text: bytes) -> None:
    async def story(wakeups: Wakeups) -> None:
        named, other = a_claim(), a_claim()
        address = {wakeups.expect(named), wakeups.expect(other)}.pop()
        any_socket.sendto(text, where(address))
        send(address, named.id)
        assert await wakeups.wait(named, LIMIT_S), "so what came before it was read too"
        assert not await wakeups.wait(other, BRIEFLY_S)

    play(story)


@ABSTRACT_SOCKETS.needed
def test_a_wake_up_of_a_user_who_cannot_write_the_store_does_not_count(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datagrams, "_users_of", lambda store: frozenset({os.getuid() + 1}))

    async def story(wakeups: Wakeups) -> None:
        claim = a_claim()
        send(wakeups.expect(claim), claim.id)
        assert not await wakeups.wait(claim, BRIEFLY_S)

    play(story)


@ABSTRACT_SOCKETS.needed
def test_a_store_that_is_not_shared_is_woken_by_its_owner_and_by_us_and_by_root(store: Path) -> None:
    assert datagrams._users_of(store) == {store.stat().st_uid, os.getuid(), os.geteuid(), 0}


def test_in_a_store_of_several_users_any_process_that_knows_a_claim_can_wake_it(
    play: Play, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datagrams, "_users_of", lambda store: frozenset({os.getuid() + 1}))
    share(store)

    async def story(wakeups: Wakeups) -> None:
        claim = a_claim()
        send(wakeups.expect(claim), claim.id)
        assert await wakeups.wait(claim, LIMIT_S)

    play(story)


# Whose grants count

GRANT = Grant(8, 5.0)


def is_woken_with(wakeups: Wakeups, claim: Claim, limit_s: float = LIMIT_S) -> Coroutine[Any, Any, bool | Grant]:
    send(wakeups.expect(claim), write_wake_up(claim.id, GRANT))
    return wakeups.wait(claim, limit_s)


def share(store: Path) -> None:
    store.chmod(0o660)
    store.parent.chmod(0o2770)


@pytest.mark.parametrize("shared", [False, True])
def test_a_grant_counts_if_our_own_user_sent_it(play: Play, store: Path, shared: bool) -> None:
    if shared:
        share(store)

    async def story(wakeups: Wakeups) -> None:
        assert await is_woken_with(wakeups, a_claim()) == (GRANT if ABSTRACT_SOCKETS.is_here or not shared else True)

    play(story)


@ABSTRACT_SOCKETS.needed
def test_a_grant_of_a_user_who_may_be_unable_to_write_the_store_is_a_hint(
    play: Play, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user outside of the group knows the claims of a store that all can read, and can send to any inbox."""
    monkeypatch.setattr(datagrams, "_users_of", lambda store: frozenset({os.getuid() + 1}))
    share(store)

    async def story(wakeups: Wakeups) -> None:
        assert await is_woken_with(wakeups, a_claim()) is True

    play(story)


@ABSTRACT_SOCKETS.needed
def test_a_grant_of_a_user_who_cannot_write_the_store_does_not_even_wake(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datagrams, "_users_of", lambda store: frozenset({os.getuid() + 1}))

    async def story(wakeups: Wakeups) -> None:
        assert not await is_woken_with(wakeups, a_claim(), BRIEFLY_S)

    play(story)


@ABSTRACT_SOCKETS.needed
@pytest.mark.parametrize("shared", [False, True])
def test_a_grant_of_nobody_is_a_hint(play: Play, store: Path, monkeypatch: pytest.MonkeyPatch, shared: bool) -> None:
    """The kernel reports nobody's uid for each user outside of our user namespace."""
    monkeypatch.setattr(datagrams, "_NOBODY", os.getuid())
    if shared:
        share(store)

    async def story(wakeups: Wakeups) -> None:
        assert await is_woken_with(wakeups, a_claim()) is True

    play(story)


def test_no_open_file_arrives_with_a_datagram(store: Path, any_socket: socket.socket) -> None:
    inbox = DatagramInbox(store)
    files = array.array("i", [any_socket.fileno()])
    any_socket.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)], 0, where(inbox.address))
    assert inbox.read() == ["x"]
    assert copies_of(any_socket) == 1
    inbox.close()


def copies_of(one: socket.socket) -> int:
    found = 0
    for number in os.listdir("/dev/fd"):
        with suppress(OSError):  # the folder itself, which is closed by now
            found += os.path.sameopenfile(int(number), one.fileno())
    return found


# Where they are sent


def test_a_wake_up_is_sent_only_to_an_inbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address stands in the store, and may be the system's log."""
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.setblocking(False)
        log.bind("log")
        for address in ("log", "./log", "@", "@log", f"@{datagrams._NETWORK}/log"):
            send(address, new_claim_id())
        with pytest.raises(BlockingIOError):
            log.recv(100)


@ABSTRACT_SOCKETS.needed
def test_nothing_is_sent_to_an_abstract_socket_that_is_no_inbox() -> None:
    for name in (f"{datagrams._NETWORK}/log-{new_claim_id()}", f"{datagrams._NETWORK}/lockfast-{new_claim_id()}"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
            log.setblocking(False)
            log.bind("\0" + name)
            send("@" + name, new_claim_id())
            with pytest.raises(BlockingIOError):
                log.recv(100)


def test_nothing_but_a_wake_up_is_sent(store: Path) -> None:
    inbox, claim = DatagramInbox(store), new_claim_id()
    send(inbox.address, "rm -rf /", "*", claim + "\n", "", f"{claim} 8", f"{claim} 8 -5", f"{claim} 8 {'9' * 17}")
    assert inbox.read() == []
    inbox.close()


def test_the_longest_wake_up_arrives_whole(store: Path) -> None:
    inbox, longest = DatagramInbox(store), write_wake_up(new_claim_id(), Grant(LARGEST_NUMBER, 9e9))
    send(inbox.address, longest)
    assert inbox.read() == [longest]
    inbox.close()


def test_a_waiter_whose_address_is_no_inbox_keeps_its_position() -> None:
    assert DatagramSender().send("/dev/log", new_claim_id())


# Where no name is abstract


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datagrams, "_ABSTRACT", False)
    monkeypatch.setattr(datagrams, "_ROOM", 0)


@pytest.mark.usefixtures("files")
def test_an_inbox_that_is_a_file_cannot_be_reached_by_other_users_and_leaves_nothing_behind(store: Path) -> None:
    inbox, claim = DatagramInbox(store), new_claim_id()
    folder = Path(inbox.address).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    send(inbox.address, write_wake_up(claim, GRANT))
    assert inbox.read() == [write_wake_up(claim, GRANT)]
    inbox.close()
    assert not folder.exists()


@pytest.mark.usefixtures("files")
def test_an_inbox_that_is_a_file_can_be_reached_by_users_of_a_shared_store(store: Path) -> None:
    share(store)
    inbox = DatagramInbox(store)
    file = Path(inbox.address)
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o711, "it cannot be listed"
    assert stat.S_IMODE(file.stat().st_mode) == 0o666
    claim = new_claim_id()
    send(inbox.address, write_wake_up(claim, GRANT))
    assert inbox.read() == [claim], "a grant is a hint, because nothing says who sent it"
    inbox.close()


@pytest.mark.usefixtures("files")
def test_an_inbox_that_cannot_be_bound_leaves_no_folder_behind(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 200)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    assert open_inbox(store) is None
    assert list(deep.iterdir()) == []


# Floods


def test_when_more_wake_ups_come_than_fit_all_waiters_are_woken(play: Play) -> None:
    async def story(wakeups: Wakeups) -> None:
        claims = [a_claim(), a_claim()]
        address = {wakeups.expect(claim) for claim in claims}.pop()
        send(address, *(new_claim_id() for _ in range(2 * datagrams._QUEUE_LENGTH)), *(claim.id for claim in claims))
        assert [await wakeups.wait(claim, LIMIT_S) for claim in claims] == [True, True]

    play(story)


def test_a_sender_that_is_quicker_than_the_reader_does_not_keep_it(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = DatagramInbox(store)
    real = inbox.socket
    reads = iter(range(1000))
    monkeypatch.setattr(inbox, "socket", _Endless(reads))
    assert inbox.read()[-1] == WAKE_ALL
    assert next(reads) == datagrams._QUEUE_LENGTH
    monkeypatch.setattr(inbox, "socket", real)
    inbox.close()


class _Endless:
    def __init__(self, reads: Iterator[int]) -> None:
        self._reads = reads

    def recvmsg(self, size: int, room: int) -> tuple[bytes, list[Any], int, None]:
        next(self._reads)
        return b"x", [], 0, None


class _Strict(Pacer):
    """After one reading in vain the inbox is left unread for that long."""

    __slots__ = ("_seconds",)

    def __init__(self, seconds: float) -> None:
        super().__init__(IN_VAIN)
        self._seconds = seconds

    def pause(self, now: float, cost: int = 1) -> float:
        return self._seconds


def strict(seconds: float) -> FloodGuard:
    guard = FloodGuard()
    guard._pacer = _Strict(seconds)
    return guard


@pytest.mark.parametrize("text", [b"\xff", new_claim_id().encode()], ids=["junk", "a claim that does not wait"])
def test_an_inbox_that_gets_only_wake_ups_in_vain_is_left_unread(
    play: Play, any_socket: socket.socket, text: bytes
) -> None:
    async def story(wakeups: Wakeups) -> None:
        claim = a_claim()
        address = wakeups.expect(claim)
        any_socket.sendto(text, where(address))
        assert not await wakeups.wait(claim, BRIEFLY_S)
        send(address, claim.id)
        assert not await wakeups.wait(claim, BRIEFLY_S), "that lies there unread"

    play(story, strict(HOUR))


def test_what_lies_unread_is_read_later(play: Play) -> None:
    async def story(wakeups: Wakeups) -> None:
        claim = a_claim()
        address = wakeups.expect(claim)
        for _ in range(5):
            send(address, new_claim_id())
            assert not await wakeups.wait(claim, 0.001)
            send(address, claim.id)
            assert await wakeups.wait(claim, LIMIT_S)

    play(story, strict(0.002))


def test_a_wake_up_for_a_claim_that_is_woken_already_is_in_vain(play: Play) -> None:
    async def story(wakeups: Wakeups) -> None:
        named, other = a_claim(), a_claim()
        address = {wakeups.expect(named), wakeups.expect(other)}.pop()
        for _ in range(2):
            send(address, named.id)
            assert not await wakeups.wait(other, BRIEFLY_S)
        send(address, other.id)
        assert not await wakeups.wait(other, BRIEFLY_S), "that lies there unread"
        assert await wakeups.wait(named, LIMIT_S)

    play(story, strict(HOUR))


def test_an_inbox_that_gets_wake_ups_of_its_waiters_is_never_left_unread(play: Play) -> None:
    async def story(wakeups: Wakeups) -> None:
        claims = [a_claim() for _ in range(2 * datagrams._QUEUE_LENGTH)]
        address = {wakeups.expect(claim) for claim in claims}.pop()
        for _ in range(3):  # more than fit
            send(address, *(claim.id for claim in claims))
            assert [await wakeups.wait(claim, LIMIT_S) for claim in claims] == [True] * len(claims)
        for claim in claims:
            send(address, claim.id, new_claim_id())
            assert await wakeups.wait(claim, LIMIT_S)

    play(story, strict(HOUR))


@pytest.mark.parametrize("reason", ["wake", "forget", "close"])
def test_a_waiter_whose_inbox_is_left_unread_is_woken_by_its_own_process(store: Path, reason: str) -> None:
    guard = strict(HOUR)
    guard.has_read(["x"], [False])
    wakeups, claim = BlockingWakeups(None, partial(open_inbox, store), guard), a_claim()
    wakeups.expect(claim)
    answers: list[bool] = []
    waiter = threading.Thread(target=lambda: answers.append(bool(drive(wakeups.wait(claim, HOUR)))), daemon=True)
    waiter.start()
    until(lambda: wakeups._leader == claim.id, "it to sleep")
    {"wake": lambda: wakeups.wake(claim.id), "forget": lambda: wakeups.forget(claim), "close": wakeups.close}[reason]()
    join(waiter)
    assert answers == [True]
    wakeups.close()


@pytest.mark.parametrize("texts", [["x"], ["x", WAKE_ALL]], ids=["few", "more than fit"])
def test_a_flood_is_read_at_a_bounded_rate_and_a_pause_is_shorter_than_the_poll_of_the_first_waiter(
    texts: list[str],
) -> None:
    now = 1000.0
    guard, readings, cost = FloodGuard(lambda: now), 0, COST_OF_WAKE_ALL if WAKE_ALL in texts else 1
    while now < 1010.0:
        guard.has_read(texts, [False] * len(texts))
        readings += 1
        assert guard.rest() < poll_after(0)
        now += guard.rest() + 1e-6
    assert readings * cost <= IN_VAIN.burst + 10 * NS_PER_S / IN_VAIN.interval + 2 * cost
    now += 1.0
    guard.has_read(texts, [False] * len(texts))
    assert not guard.rest(), "the flood is over"


@pytest.mark.parametrize("world", [ThreadWorld, AsyncioWorld])
def test_the_inbox_of_a_store_is_guarded_unless_a_test_moves_the_clock(store: Path, world: Callable[[], World]) -> None:
    for clock in (None, FakeClock()):
        wakeups = open_driver(store, SCHEMA, world(), clock).wakeups
        assert isinstance(wakeups, BlockingWakeups | AsyncioSqliteWakeups)
        assert (wakeups._flood_guard is None) is (clock is not None)
