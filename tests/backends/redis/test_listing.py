"""A list is complete whether it scans the keys or reads the names that scripts have noted, and whatever is lost."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest

from lockfast._connect import open_backend
from lockfast._ids import new_claim_id
from lockfast._model import EXCLUSIVE, PRESENCE_S, SHARED, Claim, Grant, Mode, Terms
from lockfast._worlds import drive
from lockfast._worlds.threads import ThreadWorld
from lockfast.backends.redis import requests
from lockfast.backends.redis.backend import RedisBackend
from lockfast.backends.redis.io.resp import Script
from lockfast.backends.redis.requests import CONSTANTS, LISTED, LISTED_NAMES
from lockfast.testing.clock import FakeClock
from tests.servers import binaries
from tests.servers.server import Server
from tests.servers.waiting import LIMIT_S

NAMES = ["a:1", "a:2", "a", "}%", "%7D", "é"]
PREFIXES = ["", "a", "a:", "}", "%", "none"]
TTL_S = 60.0


@pytest.fixture(scope="module", params=["valkey", *(["redis6"] if binaries.HAS_REDIS_6 else [])])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(binary=binaries.redis_6() if request.param == "redis6" else binaries.valkey()) as server:
        yield server


class Clients:
    """Two clients of one server, on one clock."""

    def __init__(self, server: Server) -> None:
        self.server, self.clock = server, FakeClock()
        opened = [open_backend(server.url, ThreadWorld(self.clock), self.clock) for _ in range(2)]
        self.backends = [backend for backend in opened if isinstance(backend, RedisBackend)]
        self.ours, self.theirs = self.backends

    def ask(self, name: str, mode: Mode = EXCLUSIVE, *, enqueue: bool = False, by: int = 0) -> tuple[Claim, bool]:
        claim = Claim(new_claim_id(), Terms(name, name, "worker", TTL_S, mode, 20 if mode == SHARED else None))
        return claim, isinstance(drive(self.backends[by].acquire(claim, enqueue=enqueue, within=LIMIT_S)), Grant)

    def take(self, name: str, mode: Mode = EXCLUSIVE) -> Claim:
        claim, granted = self.ask(name, mode)
        assert granted
        return claim

    def release(self, claim: Claim, by: int = 0) -> None:
        drive(self.backends[by].release(claim, linger=0.0, within=LIMIT_S))

    def listed(self, prefix: str = "") -> list[str]:
        return [info.name for info in drive(self.theirs.list(prefix, within=LIMIT_S))]

    def truth(self, prefix: str = "") -> list[str]:
        """From a scan of all keys."""
        names = drive(self.theirs._listing._scan(prefix, LIMIT_S))
        infos = [drive(self.theirs.inspect(name, within=LIMIT_S)) for name in names]
        return [info.name for info in infos if info.holders or info.waiters]

    def listed_unscanned(self, prefix: str = "") -> list[str]:
        """The same, and no key may be looked for."""
        self.server.command("CONFIG", "RESETSTAT")
        found = self.listed(prefix)
        assert b"cmdstat_scan:" not in self.server.command("INFO", "commandstats")
        return found


@pytest.fixture
def clients(server: Server) -> Iterator[Clients]:
    server.command("FLUSHALL")
    clients = Clients(server)
    yield clients
    for backend in clients.backends:
        drive(backend.close())


def new(clients: Clients) -> None:
    clients.take("x")


def used_again(clients: Clients) -> None:
    clients.release(clients.take("x"))
    clients.take("x")


def after_contention(clients: Clients) -> None:
    first = clients.take("x")
    waiter, _ = clients.ask("x", enqueue=True)
    drive(clients.ours.abandon(waiter, within=LIMIT_S))
    clients.release(first)
    clients.take("x")


def shared(clients: Clients) -> None:
    for _ in range(10):
        clients.take("x", SHARED)


def after_an_expiry(clients: Clients) -> None:
    clients.take("x")
    clients.clock.advance(TTL_S + 1)
    assert clients.listed() == []
    clients.take("x")


def after_a_break(clients: Clients) -> None:
    clients.take("x")
    drive(clients.theirs.break_("x", within=LIMIT_S))
    assert clients.listed() == []
    clients.take("x")


def beside_a_tombstone(clients: Clients) -> None:
    claim, _ = clients.ask("y")
    drive(clients.ours.abandon(claim._replace(terms=claim.terms._replace(key="x")), within=LIMIT_S))
    assert clients.listed("x") == []
    clients.take("x")


def after_its_keys_were_deleted(clients: Clients) -> None:
    clients.take("x")
    clients.server.command("DEL", "lockfast:{x}:held")
    assert clients.listed() == []
    clients.take("x")


def observed(clients: Clients) -> None:
    claim, _ = clients.ask("y")
    seen = claim._replace(terms=claim.terms._replace(key="x"))
    drive(clients.ours.observe(seen, after=0, within=LIMIT_S))
    assert clients.listed("x") == []
    clients.take("x")


@pytest.mark.parametrize(
    "way",
    [
        new,
        used_again,
        after_contention,
        shared,
        after_an_expiry,
        after_a_break,
        beside_a_tombstone,
        after_its_keys_were_deleted,
        observed,
    ],
)
@pytest.mark.parametrize("used_before", [False, True], ids=["new name", "used name"])
def test_a_name_that_becomes_held_is_listed_without_a_scan(
    clients: Clients, way: Callable[..., object], used_before: bool
) -> None:
    if used_before:
        clients.release(clients.take("x"))
    clients.listed()
    way(clients)
    assert "x" in clients.listed_unscanned()


@pytest.mark.parametrize("seed", range(6))
def test_a_list_without_a_scan_says_what_a_scan_would(clients: Clients, seed: int) -> None:
    """Whatever the clients do, and whatever part of what was noted is lost."""
    chance = random.Random(seed)
    modes: list[Mode] = [EXCLUSIVE, SHARED]
    claims: list[Claim] = []

    def ask() -> None:
        name, mode = chance.choice(NAMES), chance.choice(modes)
        claims.append(clients.ask(name, mode, enqueue=chance.random() < 0.5, by=chance.randrange(2))[0])

    def release() -> None:
        if claims:
            clients.release(chance.choice(claims), by=chance.randrange(2))

    def abandon() -> None:
        if claims:
            drive(clients.ours.abandon(chance.choice(claims), within=LIMIT_S))

    def end() -> None:
        drive(clients.ours.break_(chance.choice(NAMES), within=LIMIT_S))

    def observe() -> None:
        claim = Claim(new_claim_id(), Terms(name := chance.choice(NAMES), name, "observer", TTL_S))
        drive(clients.ours.observe(claim, after=0, within=LIMIT_S))

    def advance() -> None:
        clients.clock.advance(chance.choice([1.0, PRESENCE_S, TTL_S]))

    def lose() -> None:
        clients.server.command(
            "DEL", chance.choice([LISTED, LISTED_NAMES, f"lockfast:{{{chance.choice(NAMES[:3])}}}:held"])
        )

    steps = [ask] * 8 + [release] * 5 + [abandon] * 2 + [end, observe, advance, lose]
    for _ in range(150):
        chance.choice(steps)()
        if chance.random() < 0.5:
            prefix = chance.choice(PREFIXES)
            assert clients.listed(prefix) == clients.truth(prefix)


def test_names_that_differ_in_what_keys_escape_are_different_names(clients: Clients) -> None:
    for name in NAMES:
        clients.take(name)
    assert clients.listed() == sorted(NAMES)
    for prefix in PREFIXES:
        assert clients.listed_unscanned(prefix) == sorted(name for name in NAMES if name.startswith(prefix))


def test_more_names_than_one_reply_has_are_all_listed(clients: Clients) -> None:
    names = sorted(f"n{number}" for number in range(2 * int(CONSTANTS["LISTED_AT_ONCE"]) + 1))
    for name in names:
        clients.take(name)
    assert clients.listed() == names
    assert clients.listed() == names


@pytest.mark.parametrize("script", ["acquire_quick", "redlock/vote_quick"])
def test_a_quick_script_leaves_a_key_of_another_type_to_the_full_one(server: Server, script: str) -> None:
    held, record = "lockfast:{x}:held", " 30000000 x 0 worker "
    server.command("FLUSHALL")
    server.command("RPUSH", held, "other")
    text = requests.source(script)
    assert server.command("EVAL", text, "2", held, LISTED, "claim", record, "60000", str(10**15)) is None
    assert server.command("TYPE", held) == b"list"


class TestAScan:
    """What happens to the names while one client scans, before it notes what it has found."""

    def during(self, clients: Clients, monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> None:
        scan = clients.theirs._driver.scan
        calls = count()

        async def scanning(pattern: str, within: float) -> list[bytes]:
            found = await scan(pattern, within)
            if not next(calls):
                with ThreadPoolExecutor(1) as another:
                    another.submit(do).result(LIMIT_S)
            return found

        monkeypatch.setattr(clients.theirs._driver, "scan", scanning)
        clients.listed()

    def test_a_name_that_becomes_held_meanwhile_is_in_the_next_list(
        self, clients: Clients, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.during(clients, monkeypatch, lambda: clients.take("x"))
        assert clients.listed_unscanned() == ["x"]

    @pytest.mark.parametrize("lost", [LISTED, LISTED_NAMES, "both"])
    def test_a_scan_during_which_the_names_were_lost_is_not_trusted_alone(
        self, clients: Clients, monkeypatch: pytest.MonkeyPatch, lost: str
    ) -> None:
        """Scripts have noted nothing for a while: not the name that became held then."""

        def lose() -> None:
            keys = [LISTED, LISTED_NAMES] if lost == "both" else [lost]
            if lost == LISTED_NAMES:
                clients.take("x")
            clients.server.command("DEL", *keys)
            if lost != LISTED_NAMES:
                clients.take("x")
                drive(clients.ours.list("other", within=LIMIT_S))  # another client lists, so names are noted again

        self.during(clients, monkeypatch, lose)
        assert clients.listed() == ["x"]

    def test_one_of_which_only_a_part_was_noted_is_not_trusted(
        self, clients: Clients, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names = sorted(f"n{number}" for number in range(int(CONSTANTS["LISTED_AT_ONCE"]) + 1))
        for name in names:
            clients.take(name)
        with monkeypatch.context() as patch:
            run, calls = clients.theirs._driver.run, count()

            async def noting(script: Script, *args: Any) -> Any:
                if script is requests.script("note") and next(calls):
                    raise KeyboardInterrupt
                return await run(script, *args)

            patch.setattr(clients.theirs._driver, "run", noting)
            with pytest.raises(KeyboardInterrupt):
                clients.listed()
        assert clients.listed() == names

    def test_one_that_fails_leaves_no_list_without_its_names(
        self, clients: Clients, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail() -> None:
            raise KeyboardInterrupt

        clients.take("x")
        with pytest.raises(KeyboardInterrupt):
            self.during(clients, monkeypatch, fail)
        clients.take("y")
        assert clients.listed() == ["x", "y"]


class TestWhatIsNoted:
    def test_a_free_name_is_dropped_by_the_next_list_that_asks_for_it(self, clients: Clients) -> None:
        clients.listed()
        for number in range(10):
            clients.release(clients.take(f"n{number}"))
        clients.server.command("DEL", "lockfast:{n9}:held")
        clients.listed("n1")
        assert clients.server.command("ZCARD", LISTED_NAMES) == 11  # n1 is not; the prefix and the token are
        clients.listed()
        assert clients.server.command("ZCARD", LISTED_NAMES) == 2

    def test_names_are_noted_for_a_minute_however_often_they_are_listed(self, clients: Clients) -> None:
        """So what no script has noted is found: a lock of a client that knows nothing of this."""
        clients.listed()
        clients.server.command("PEXPIRE", LISTED, 20_000)
        clients.take("x")
        clients.listed()
        assert 0 < clients.server.command("PTTL", LISTED) <= 20_000
        assert 20_000 < clients.server.command("PTTL", LISTED_NAMES) <= 120_000
        clients.server.command("RENAME", "lockfast:{x}:held", "lockfast:{y}:held")
        clients.server.command("DEL", LISTED)
        assert clients.listed() == ["y"]

    def test_names_that_are_noted_after_it_was_lost_do_not_stay(self, clients: Clients) -> None:
        clients.listed()
        clients.server.command("DEL", LISTED_NAMES)
        clients.take("x")
        assert clients.server.command("PTTL", LISTED_NAMES) > 0

    @pytest.mark.parametrize("key", [LISTED, LISTED_NAMES])
    def test_a_key_of_another_type_is_in_no_claim_s_way(self, clients: Clients, key: str) -> None:
        clients.listed()
        clients.server.command("DEL", key)
        clients.server.command("RPUSH", key, "other")
        clients.take("x")
        assert clients.listed() == ["x"]
        assert clients.listed_unscanned() == ["x"]

    def test_a_server_whose_memory_is_full_is_scanned(self, clients: Clients) -> None:
        clients.take("x")
        clients.server.configure("maxmemory", "1")
        try:
            assert clients.listed() == ["x"]
            assert clients.listed() == ["x"]
            assert clients.server.command("EXISTS", LISTED, LISTED_NAMES) == 0
        finally:
            clients.server.configure("maxmemory", "0")

    def test_a_name_whose_claim_was_abandoned_while_the_memory_was_full_is_listed_once_it_is_held(
        self, clients: Clients
    ) -> None:
        clients.listed()
        clients.server.configure("maxmemory", "1")
        try:
            beside_it = Claim(new_claim_id(), Terms("x", "x", "worker", TTL_S))
            drive(clients.ours.abandon(beside_it, within=LIMIT_S))
        finally:
            clients.server.configure("maxmemory", "0")
        clients.take("x")
        assert clients.listed_unscanned() == ["x"]
