"""What locks cost a Redis server: the bytes that stay, and commands that do not grow with the waiters or permits."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

import lockfast
from lockfast import LockInfo
from lockfast._connect import open_backend
from lockfast._ids import new_claim_id
from lockfast._model import EXCLUSIVE, GRACE_S, PRESENCE_S, RECENT_S, SHARED, Busy, Claim, Grant, Mode, Renewal, Terms
from lockfast._values import NS_PER_S, Rate
from lockfast._worlds import drive
from lockfast._worlds.threads import ThreadWorld
from lockfast.backends.base import Backend
from lockfast.errors import LimitMismatch
from lockfast.testing.clock import FakeClock
from tests.servers import binaries
from tests.servers.server import HOST, Server
from tests.servers.waiting import LIMIT_S, until

pytestmark = pytest.mark.slow

WITHIN = LIMIT_S
HELD = "lockfast:{x}:held"
LISTED = "lockfast:listed"
WAITERS, LAPSED = "lockfast:{x}:waiters", "lockfast:{x}:lapsed"
SECRET = "secret" * 100
MANY = 60  # waiters, or permits
FEW = 40  # commands, which a request may need at one server if their number does not grow with the waiters
DAY_MS = 86_400_000
_OF_THE_TEST = {"config", "config|resetstat", "info", "client", "client|setinfo"}


class Store:
    """One server, or three that vote, which no other test uses: so all that they count is ours."""

    def __init__(self, kind: str, servers: list[Server]) -> None:
        self.servers = servers
        self.clock = FakeClock()
        hosts = ",".join(f"{HOST}:{server.port}" for server in servers)
        self.url = f"redlock://{hosts}?rejoin=0&node_timeout={LIMIT_S:g}" if kind == "redlock" else servers[0].url
        self.backend: Backend = open_backend(self.url, ThreadWorld(self.clock), self.clock)

    def ask(self, claim: Claim, *, enqueue: bool = True) -> Grant | Busy:
        return drive(self.backend.acquire(claim, enqueue=enqueue, within=WITHIN))

    def release(self, claim: Claim) -> bool:
        return drive(self.backend.release(claim, linger=0.0, within=WITHIN))

    def take(self, claim: Claim) -> Claim:
        assert isinstance(self.ask(claim), Grant)
        return claim

    def take_permit(self, limit: int) -> Renewal:
        claim = claim_of("x", SHARED, limit)
        grant: Any = self.ask(claim)
        return Renewal(claim, 90.0, grant.fence)

    def renew(self, batch: list[Renewal]) -> list[bool | None]:
        return [*drive(self.backend.renew(batch, within=WITHIN))]

    def ttls(self, name: str) -> dict[str, float]:
        """By claim, as `library.lua` and `rows.lua` describe the record of a name."""
        key = f"lockfast:{{{name}}}"
        rows = self.servers[0].command("HGETALL", f"{key}:rows")
        if rows:
            return {id.decode(): int(row.split(b" ")[0]) / 1e6 for id, row in zip(rows[::2], rows[1::2], strict=True)}
        record = self.servers[0].command("GET", f"{key}:held").decode()
        holds = [line.split(" ") for line in record[17:].split("\n")]
        return {hold[0]: int(hold[4]) / 1e6 for hold in holds}

    def fences(self, name: str) -> dict[str, int]:
        """By claim, of the holders."""
        info = drive(self.backend.inspect(name, within=WITHIN))
        return {holder.claim_id: holder.fence or 0 for holder in info.holders if holder.claim_id}

    def queue_up(self, number: int, *, first_ttl: float = 60.0) -> list[Claim]:
        claims = [claim_of("x", ttl=60.0 if place else first_ttl) for place in range(number)]
        for claim in claims:
            assert isinstance(self.ask(claim), Busy)
        return claims

    def at_each(self, what: Callable[[Server], object], description: str) -> None:
        """Until it is true at each server: a quorum does not wait for its slowest one."""
        for server in self.servers:
            until(partial(what, server), description)

    def commands(self, do: Callable[[], object]) -> Counter[str]:
        """How often each command ran meanwhile, in scripts too.

        Of three servers one may still be busy with earlier requests, or has yet to get this one: the median counts.
        """
        for server in self.servers:
            server.command("CONFIG", "RESETSTAT")
        do()
        return sorted(map(counts_of, self.servers), key=Counter.total)[len(self.servers) // 2]


def counts_of(server: Server) -> Counter[str]:
    found = re.findall(r"cmdstat_([\w|]+):calls=(\d+)", server.command("INFO", "commandstats").decode())
    return Counter({name: int(calls) for name, calls in found if name not in _OF_THE_TEST})


def claim_of(
    key: str, mode: Mode = EXCLUSIVE, limit: int | None = None, metadata: str | None = None, ttl: float = 60.0
) -> Claim:
    id = new_claim_id()
    return Claim(id, Terms(key, key, f"worker {id}", ttl, mode, limit, metadata))


ONE_SERVER = ["valkey", *(["redis6"] if binaries.HAS_REDIS_6 else [])]
shared = pytest.mark.parametrize("store", ONE_SERVER, indirect=True)  # what a quorum does not have


@pytest.fixture(params=[*ONE_SERVER, "redlock"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    binary = binaries.redis_6() if request.param == "redis6" else binaries.valkey()
    with ExitStack() as stack:
        servers = [stack.enter_context(Server(binary=binary)) for _ in range(3 if request.param == "redlock" else 1)]
        store = Store(request.param, servers)
        stack.callback(lambda: drive(store.backend.close()))
        yield store


def released(store: Store, claim: Claim) -> None:
    assert store.release(claim)


def broken(store: Store, claim: Claim) -> None:
    assert drive(store.backend.break_("x", within=WITHIN)).locked


def abandoned(store: Store, claim: Claim) -> None:
    drive(store.backend.abandon(claim, within=WITHIN))


def released_after_a_waiter_gave_up(store: Store, claim: Claim) -> None:
    (waiter,) = store.queue_up(1)
    drive(store.backend.abandon(waiter, within=WITHIN))
    assert store.release(claim)


class TestAFreeName:
    @pytest.mark.parametrize("end", [released, broken, abandoned, released_after_a_waiter_gave_up])
    def test_only_its_last_fence_stays(self, store: Store, end: Callable[[Store, Claim], None]) -> None:
        """Neither the metadata nor the holder can be read any more, and the fence is kept as long as before.

        A quorum also keeps a tombstone of a claim that was broken, by its id, for as long as it would have held.
        """
        claim = claim_of("x", metadata=f'"{SECRET}"')
        grant: Any = store.ask(claim)
        store.at_each(lambda server: server.command("EXISTS", HELD), "the vote of each server")
        end(store, claim)
        tombstone = rb"=!%s \d+" % claim.id.encode() if end is broken and len(store.servers) > 1 else b""
        alone = re.compile(rb"\d{16}" + (tombstone or b"-"))
        store.at_each(lambda server: alone.fullmatch(server.command("GET", HELD)), "the number alone")
        for server in store.servers:
            assert server.command("GET", HELD) >= b"%016d-" % grant.fence
            assert server.command("PTTL", HELD) > DAY_MS
            assert server.command("MEMORY", "USAGE", HELD) < (250 if tombstone else 150)

    @pytest.mark.parametrize("store", ["redlock"], indirect=True)
    @pytest.mark.parametrize("is_over", [False, True], ids=["in force", "expired"])
    def test_tombstones_of_other_claims_cost_a_quorum_no_vote_and_no_request(self, store: Store, is_over: bool) -> None:
        """The tombstone of a claim that gave up would else cost every `with` a round, for half a minute or longer."""
        store.release(store.take(claim_of("x")))
        tombstone = b"!%s %d" % (new_claim_id().encode(), 1 if is_over else 9 * 10**15)
        for server in store.servers:
            until(partial(server.command, "GET", HELD), "its number")
            server.command("SET", HELD, b"%b=%b" % (server.command("GET", HELD)[:16], tombstone))

        def use() -> None:
            claim = store.take(claim_of("x"))
            store.at_each(lambda server: claim.id.encode() in server.command("GET", HELD), "the vote of each server")
            assert store.release(claim)
            left = re.compile(rb"\d{16}" + (b"-" if is_over else b"=" + tombstone))
            store.at_each(lambda server: left.fullmatch(server.command("GET", HELD)), "the release of each server")

        assert store.commands(use)["evalsha"] == 2
        refused = Claim(tombstone[1:].partition(b" ")[0].decode(), claim_of("x").terms)
        assert isinstance(store.ask(refused, enqueue=False), Grant if is_over else Busy)

    @pytest.mark.parametrize("store", ["redlock"], indirect=True)
    def test_a_tombstone_that_cannot_be_read_is_damage(self, store: Store) -> None:
        store.release(store.take(claim_of("x")))
        for server in store.servers:
            until(partial(server.command, "GET", HELD), "its number")
            server.command("SET", HELD, server.command("GET", HELD)[:16] + b"=!nonsense")
        with pytest.raises(lockfast.BackendUnavailable, match="is damaged"):
            store.ask(claim_of("x"), enqueue=False)

    def test_a_later_fence_is_above_it(self, store: Store) -> None:
        first: Any = store.ask(claim := claim_of("x"))
        assert store.release(claim)
        second: Any = store.ask(claim_of("x"))
        assert second.fence > first.fence


class TestKeys:
    """Whatever crashes, nothing is left behind for ever. `docs/backends/redis.md` names the exception: cells."""

    def test_no_step_of_an_exclusive_claim_leaves_a_key_without_a_ttl(self, store: Store) -> None:
        holder, waiter, quitter, observer = (_short(claim_of("x")) for _ in range(4))
        drive(store.backend.abandon(_short(claim_of("never granted")), within=WITHIN))
        drive(store.backend.observe(_short(claim_of("never held")), after=0, within=WITHIN))
        _all_expire(store)
        grant: Any = store.ask(holder)
        _all_expire(store)
        assert store.renew([Renewal(holder, 0.3, grant.fence)]) == [True]
        _all_expire(store)
        for claim in (waiter, quitter):
            assert isinstance(store.ask(claim), Busy)
        drive(store.backend.observe(observer, after=0, within=WITHIN))
        _all_expire(store)
        assert store.release(holder)
        _all_expire(store)
        store.take(waiter)
        _all_expire(store)
        for claim in (quitter, waiter, observer):
            drive(store.backend.abandon(claim, within=WITHIN))
            _all_expire(store)

    @shared
    def test_no_permit_and_no_limiter_leaves_a_key_without_a_ttl(self, store: Store) -> None:
        permits = [_short(claim_of("x", SHARED, 2)) for _ in range(2)]
        for claim in permits:
            store.take(claim)
            _all_expire(store)
        assert isinstance(store.ask(_short(claim_of("x", SHARED, 2))), Busy)
        _all_expire(store)
        assert store.release(permits[0])
        _all_expire(store)
        values: Any = store.backend
        drive(values.throttle("x", Rate(NS_PER_S, 1), cost=1, patience=0.0, within=WITHIN))
        _all_expire(store)


def _short(claim: Claim) -> Claim:
    """With a ttl of less than a second."""
    return claim._replace(terms=claim.terms._replace(ttl=0.25))


def _all_expire(store: Store) -> None:
    for server in store.servers:
        lasting = [key for key in server.command("KEYS", "*") if server.command("PTTL", key) == -1]
        assert lasting == []


class TestHandOver:
    @shared
    def test_two_requests_of_one_script_each(self, store: Store) -> None:
        """A release, and the acquire that puts the next claim into the queue: the waiter does not ask once more."""
        holder, waiter = store.take(claim_of("x")), store.queue_up(1)[0]
        for warm in (False, True, True):  # the server has the scripts, and the client a connection
            ended, holder = holder, waiter
            released = store.commands(partial(store.release, ended))
            grant = drive(store.backend.wait(waiter, WITHIN))
            assert isinstance(grant, Grant)
            assert store.fences("x") == {waiter.id: grant.fence}
            waiter = claim_of("x")
            queued = store.commands(partial(store.ask, waiter))
            if warm:
                assert (released["evalsha"], queued["evalsha"]) == (1, 1)
                assert (released["publish"], queued["publish"]) == (1, 0)
                assert released.total() <= 10, released
                assert queued.total() <= 14, queued  # every hundredth request clears up, too

    @shared
    @pytest.mark.parametrize("successor", ["", "worker"])
    def test_one_that_has_missed_its_poll_is_passed_over_however_long_its_ttl(
        self, store: Store, successor: str
    ) -> None:
        """No waiter that lives is silent for so long, and a holder that is dead would cost an hour."""
        holder = store.take(claim_of("x"))
        (waiter,) = store.queue_up(1, first_ttl=3600)
        store.clock.advance(RECENT_S + 0.1)
        successor = waiter.terms.holder if successor else ""
        assert drive(store.backend.release(holder, linger=0.0, within=WITHIN, successor=successor))
        assert not store.fences("x")
        other = claim_of("x")
        store.take(other)
        assert store.release(other)
        assert isinstance(store.ask(waiter), Grant)

    @shared
    def test_no_grant_is_sent_that_is_not_made(self, store: Store) -> None:
        """A replica passes messages on to subscribers that its primary does not count."""
        holder = store.take(claim_of("x"))
        (waiter,) = store.queue_up(1)
        (channel,) = store.servers[0].command("PUBSUB", "CHANNELS")
        record = store.servers[0].command("HGET", WAITERS, waiter.id)
        store.servers[0].command("HSET", WAITERS, waiter.id, record.replace(channel, b"lockfast:wake:of-nobody"))
        commands = store.commands(partial(store.release, holder))
        assert (commands["pubsub|numsub"] or commands["pubsub"], commands["publish"]) == (2, 1)
        assert not store.fences("x")
        assert isinstance(store.ask(waiter), Grant), "it was passed over, and asks again"


class TestTheFirstWaiter:
    """An acquire that queues sees to it that no dead one is first. By the server's clock its place may say enough."""

    @pytest.mark.parametrize("died", [False, True])
    def test_is_read_only_if_it_asked_long_ago(self, died: bool) -> None:
        with Server() as server:
            backend = open_backend(server.url, ThreadWorld(), None)
            store = Store("valkey", [server])
            drive(store.backend.close())
            store.backend = backend
            store.take(claim_of("x"))
            (first,) = store.queue_up(1)
            if died:
                long_ago = int(server.command("GET", HELD)[:16]) - int(2 * PRESENCE_S * 1e6)
                server.command("ZADD", "lockfast:{x}:queue", long_ago, first.id)
                record = server.command("HGET", WAITERS, first.id).split(b" ", 2)[2]
                server.command("HSET", WAITERS, first.id, b"%d %d %b" % (long_ago + 1, long_ago, record))
            answers: list[Any] = []
            commands = store.commands(lambda: answers.append(store.ask(claim_of("x"))))
            drive(backend.close())
            assert answers[0].position == (0 if died else 1)
            assert died or commands["hget"] == 0 or commands["hset"], "one in a hundred takes the long way"


class TestWaiters:
    def test_one_that_was_woken_and_did_not_come_costs_the_others_nothing(self, store: Store) -> None:
        holder = store.take(claim_of("x"))
        _, young, *others = store.queue_up(MANY, first_ttl=2)
        store.clock.advance(1)  # too much of its ttl for a release to grant it
        assert store.release(holder)  # reserved for the first, which does not come
        store.clock.advance(GRACE_S)
        store.take(young)
        for other in others[:3]:
            assert store.commands(partial(store.ask, other)).total() < FEW

    def test_one_that_comes_late_has_its_old_place_and_keeps_it(self, store: Store) -> None:
        holder = store.take(claim_of("x"))
        late, young, third = store.queue_up(3, first_ttl=2)
        store.clock.advance(1)  # too much of its ttl for a release to grant it
        assert store.release(holder)
        store.clock.advance(GRACE_S)
        store.take(young)
        assert isinstance(store.ask(late), Busy)
        for _ in range(3):  # longer than it would have lived if it had not come
            store.clock.advance(PRESENCE_S / 2)
            assert [store.ask(claim).position for claim in (late, third)] == [0, 1]  # type: ignore[union-attr]
        assert store.release(young)
        store.take(late)

    def test_one_that_never_comes_is_deleted_when_another_polls(self, store: Store) -> None:
        holder = store.take(claim_of("x"))
        _, young, third = store.queue_up(3, first_ttl=2)
        store.clock.advance(1)  # too much of its ttl for a release to grant it
        assert store.release(holder)
        store.clock.advance(GRACE_S)
        store.take(young)
        store.clock.advance(PRESENCE_S - GRACE_S - 1)
        store.ask(third)
        store.at_each(lambda server: server.command("HKEYS", WAITERS) == [third.id.encode()], "one waiter")
        store.at_each(lambda server: server.command("EXISTS", LAPSED) == 0, "no trace of the other")

    @shared
    def test_a_reader_that_comes_reads_one_of_the_readers_that_wait(self, store: Store) -> None:
        """All of them have one limit."""
        store.take(claim_of("x"))
        readers = [claim_of("x", SHARED) for _ in range(MANY)]
        for reader in readers[1:]:
            assert isinstance(store.ask(reader), Busy)
        commands = store.commands(lambda: store.ask(readers[0]))
        assert "hgetall" not in commands
        assert commands.total() < FEW

    @shared
    @pytest.mark.parametrize("waits", ["behind others", "woken", "lapsed"])
    def test_another_limit_is_refused_wherever_the_one_that_shares_waits(self, store: Store, waits: str) -> None:
        holder = store.take(claim_of("x"))
        store.queue_up(MANY if waits == "behind others" else 0)
        assert isinstance(store.ask(claim_of("x", SHARED, 2)), Busy)
        if waits != "behind others":
            assert store.release(holder)
        if waits == "lapsed":
            store.clock.advance(GRACE_S)
            drive(store.backend.abandon(claim_of("x"), within=WITHIN))
        with pytest.raises(LimitMismatch):
            store.ask(claim_of("x", SHARED, 3))
        assert isinstance(store.ask(claim_of("x", SHARED, 2)), Grant if waits != "behind others" else Busy)


class TestQuestions:
    def test_the_holders_are_read_without_the_waiters(self, store: Store) -> None:
        store.take(claim_of("x"))
        store.queue_up(MANY)
        with lockfast.connect(store.url, clock=store.clock) as locks:
            assert not locks.lock("y").locked()  # connects
            answers: list[object] = []

            def keep(ask: Callable[[], object]) -> None:
                answers.append(ask())

            for ask in (locks.lock("x").locked, locks.all("x", "y").locked, locks.election("x").leader):
                commands = store.commands(partial(keep, ask))
                assert answers[-1]
                assert commands.total() < FEW
                assert not {"hvals", "hkeys", "hgetall", "hget", "zrange"} & set(commands)

    def test_the_waiters_are_read_with_one_command(self, store: Store) -> None:
        store.take(claim_of("x"))
        waiters = store.queue_up(MANY)
        infos: list[LockInfo] = []

        def inspect() -> None:
            infos.append(drive(store.backend.inspect("x", within=WITHIN)))

        def end() -> None:
            infos.append(drive(store.backend.break_("x", within=WITHIN)))

        for ask in (inspect, end):
            assert store.commands(ask).total() < FEW
        assert [info.queue for info in infos] == [tuple(claim.terms.holder for claim in waiters)] * 2

    def test_a_list_inspects_only_names_that_are_not_free(self, store: Store) -> None:
        """A name that was used in the last two days is there, and free."""
        for number in range(4 * MANY):
            assert store.release(store.take(claim_of(f"free {number}")))
        store.take(claim_of("x"))
        store.queue_up(2)
        found: list[LockInfo] = []
        ask = partial(store.backend.list, "", within=WITHIN)
        assert len(drive(ask())) == 1  # the servers have the scripts
        store.at_each(lambda server: server.command("DEL", LISTED), "no list before this one")
        first = store.commands(lambda: found.extend(drive(ask())))
        again = store.commands(lambda: found.extend(drive(ask())))
        assert [(info.name, info.locked, info.waiters) for info in found] == [("x", True, 2)] * 2
        listed, note, inspect = 1, 1, 1
        assert first["evalsha"] == listed + 4 * MANY // 100 + 1 + note + inspect
        assert (again["evalsha"], again["scan"]) == (listed + inspect, 0)
        assert again.total() < 15, "the names that were used cost nothing"

    def test_a_list_reads_only_names_with_its_prefix(self, store: Store) -> None:
        """Whatever else is held, of the second list on."""
        for number in range(MANY):
            store.take(claim_of(f"other {number}"))
        store.take(claim_of("shown:x"))
        ask = partial(store.backend.list, "shown:", within=WITHIN)
        for warm in (False, True):
            commands = store.commands(lambda: drive(ask()))
            assert (commands["scan"] == 0) == warm
        assert commands.total() < 15

    def test_a_name_is_noted_only_while_names_are_listed(self, store: Store) -> None:
        store.release(store.take(claim_of("x")))  # the server has the scripts
        for lists in (0, 1):
            claim = claim_of("x")
            commands = store.commands(partial(store.take, claim))
            assert (commands["mget"], commands["time"], commands["set"]) == (1, 1, 1)
            assert (commands["zadd"], commands["get"], commands["exists"]) == (lists, 0, 0)
            commands = store.commands(partial(store.release, claim))
            assert (commands["evalsha"], commands["get"], commands["set"]) == (1, 1, 1)
            drive(store.backend.list("", within=WITHIN))

    def test_the_metadata_of_the_waiters_is_not_sent(self, store: Store) -> None:
        store.take(claim_of("x"))
        waiters = [claim_of("x", metadata='"%s"' % ("m" * 10_000)) for _ in range(20)]
        for claim in waiters:
            assert isinstance(store.ask(claim), Busy)
        server = store.servers[0]

        def sent() -> int:
            return int(re.findall(r"total_net_output_bytes:(\d+)", server.command("INFO", "stats").decode())[0])

        before = sent()
        info = drive(store.backend.inspect("x", within=WITHIN))
        assert info.queue == tuple(claim.terms.holder for claim in waiters)
        assert sent() - before < 50_000


class TestRenewals:
    @shared
    def test_the_permits_of_a_semaphore_are_read_and_written_once(self, store: Store) -> None:
        permits = [store.take_permit(MANY) for _ in range(MANY)]
        random.Random(3).shuffle(permits)
        kept: list[object] = []
        commands = store.commands(lambda: kept.append(store.renew(permits)))
        assert kept == [[True] * MANY]
        assert (commands["get"], commands["set"]) == (1, 1)

    @shared
    def test_each_permit_gets_its_own_ttl_and_answer(self, store: Store) -> None:
        """In whatever order they come, and whether they hold or not; a mutex in between."""
        permits = [store.take_permit(20) for _ in range(20)]
        mutex: Any = store.ask(claim := claim_of("y"))
        gone = {3, 7, 19}
        for number in gone:
            assert store.release(permits[number].claim)
        ttls = [100.0 + 7 * number for number in range(20)]
        batch = [permit._replace(ttl=ttl) for permit, ttl in zip(permits, ttls, strict=True)]
        batch.append(batch[5]._replace(ttl=30.0))  # shorter than what it gets in the same request
        batch.append(batch[6]._replace(fence=batch[6].fence - 1))  # of an older grant
        expected = [number not in gone for number in range(20)] + [True, False]
        mixed = sorted(zip(batch, expected, strict=True), key=lambda one: one[0].ttl % 11)
        mixed.insert(9, (Renewal(claim, 500.0, mutex.fence), True))
        assert store.renew([renewal for renewal, _ in mixed]) == [kept for _, kept in mixed]
        assert store.ttls("y") == {claim.id: 500.0}
        assert store.ttls("x") == {
            permit.claim.id: ttl
            for number, (permit, ttl) in enumerate(zip(permits, ttls, strict=True))
            if number not in gone
        }

    def test_each_mutex_is_read_and_written_once(self, store: Store) -> None:
        batch = []
        for number in range(5):
            grant: Any = store.ask(claim := claim_of(f"m{number}"))
            batch.append(Renewal(claim, 90.0, grant.fence))
        commands = store.commands(lambda: store.renew(batch))
        assert (commands["get"], commands["set"]) == (5, 5)
