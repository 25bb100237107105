"""What a client of a quorum leaves behind: votes whose replies were lost, requests that could not be sent."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import lockfast
from lockfast import BackendUnavailable
from lockfast._model import Claim, Grant, LockInfo, Terms
from lockfast._time import boot_now
from lockfast.backends.redis.io.resp import command
from lockfast.backends.redis.requests import keys_of, script
from lockfast.backends.redlock.io import blocking as redis_quorum_blocking
from lockfast.backends.redlock.io import stragglers as redis_quorum_stragglers
from lockfast.backends.redlock.io.blocking import MAX_IDLE_SETS, UNUSED_S
from lockfast.backends.redlock.io.fanout import all_of_them
from lockfast.backends.redlock.io.rounds import Round
from lockfast.backends.redlock.io.stragglers import CleanUps
from lockfast.testing.awaited import AwaitedLease, AwaitedLocks
from lockfast.testing.stage import Stage
from tests.adversity.redlock.servers import Quorum
from tests.backends.redlock.stage import OnAQuorum, backend_of, hasty
from tests.patience import impatient
from tests.polling import HOUR, never_poll, poll_often
from tests.renewals import renew_soon, renewal_state, renewed
from tests.servers.waiting import LIMIT_S, happens, until

pytestmark = pytest.mark.slow


def _noted_answers(locks: AwaitedLocks, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """From now on: all answers to its acquires."""
    answers: list[Any] = []
    ask = backend_of(locks).acquire

    async def acquire(claim: Claim, *, enqueue: bool, within: float) -> Any:
        answers.append(await ask(claim, enqueue=enqueue, within=within))
        return answers[-1]

    monkeypatch.setattr(backend_of(locks), "acquire", acquire)
    return answers


class TestServersThatMissSomething(OnAQuorum):
    async def test_a_failed_try_leaves_no_vote_whose_reply_was_lost(self, stage: Stage) -> None:
        self.quorum.proxies[2].refuse()
        held = await stage.locks().lock("wanted", ttl=600, wait=LIMIT_S).take()
        self.quorum.proxies[2].heal()
        locks = await self.ready(stage)
        hasty(locks)
        lost = self.quorum.proxies[2].swallow_reply(b"wanted")
        assert await locks.lock("wanted", ttl=600).acquire(blocking=False) is None
        assert lost.is_set()
        await stage.until(lambda: self.at(stage, 2, "wanted") == LockInfo("wanted"), "the vote to be taken back")
        assert await held.release()

    async def test_a_release_that_was_lost_is_sent_again_without_another_request(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        lease = await locks.lock("x-files", ttl=600).take()
        await stage.until(lambda: bool(self.at(stage, 2, "x-files").holders), "all votes")
        hasty(locks)
        lost = self.quorum.proxies[2].lose(b"x-files")
        assert await lease.release()
        assert lost.is_set()
        await stage.until(lambda: self.at(stage, 2, "x-files") == LockInfo("x-files"), "the release to be sent again")

    async def test_a_server_that_hangs_when_it_is_connected_to_costs_no_vote_of_the_others(self, stage: Stage) -> None:
        self.quorum.proxies[0].black_hole()
        claim = Claim("c" * 32, Terms("x", "x", "me", 60.0))
        answer = await backend_of(hasty(stage.locks())).acquire(claim, enqueue=False, within=LIMIT_S)
        assert isinstance(answer, Grant)
        assert self.quorum.held_at("x") == [False, True, True]

    async def test_a_slow_server_delays_a_release_little(self, stage: Stage) -> None:
        locks = hasty(await self.ready(stage), HOUR)  # so long a round that waited for it would wait
        self.quorum.proxies[1].black_hole()
        for _ in range(5):
            lease = await locks.lock("x", ttl=600).take()
            assert await lease.release()
        self.quorum.proxies[1].heal()
        await stage.until(lambda: self.at(stage, 1, "x") == LockInfo("x"), "all releases to reach the slow server")

    async def test_a_server_that_answers_after_the_majority_is_sent_all_by_the_connections_there_are(
        self, stage: Stage
    ) -> None:
        locks, slow = await self.ready(stage), self.quorum.proxies[2]
        member, connected = backend_of(locks)._fanout.members[2], slow.accepted
        slow.delay = 0.03  # later than a majority is waited for
        for _ in range(20):
            lease = await locks.lock("x", ttl=600).take()
            assert await lease.release()
            assert not member.absent
        slow.delay = 0.0
        await stage.until(lambda: self.at(stage, 2, "x") == LockInfo("x"), "the last release")
        assert slow.accepted == connected

    async def test_a_waiter_has_a_place_at_a_server_that_answers_after_the_majority_too(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Though no round waits for that server, and it has never run the script before."""
        holder, locks = await self.ready(stage), await self.ready(stage)
        held = await holder.lock("x", ttl=600).take()
        await self.held_at_all(stage, "x")
        self.quorum.proxies[2].delay = 0.2
        poll_often(monkeypatch)
        waiter = stage.start(locks.lock("x", ttl=600).take())
        await stage.until(lambda: self.at(stage, 2, "x").waiters, "its place at the slow server")
        self.quorum.proxies[2].delay = 0.0
        assert await held.release()
        assert await (await waiter.result()).release()

    async def _granted_without_the_last_server(self, stage: Stage, locks: AwaitedLocks) -> AwaitedLease:
        """A lease of 600 s at the first two servers; then all servers can be reached."""
        self.quorum.proxies[2].refuse()
        lease = await locks.lock("x", ttl=600).take()
        assert self.quorum.held_at("x", stage.namespace) == [True, True, False]
        self.quorum.proxies[2].heal()

        async def is_back() -> bool:
            await (await locks.lock("y").take()).release()
            return not any(member.absent for member in backend_of(locks)._fanout.members)

        await stage.until(is_back, "the last server to be back")
        return lease

    async def test_a_lease_survives_one_server_that_was_away_for_its_votes_and_another_that_goes_away_later(
        self, stage: Stage
    ) -> None:
        lease = await self._granted_without_the_last_server(stage, await self.ready(stage))
        self.quorum.proxies[1].refuse()
        await renewed(stage, lease)
        assert self.at(stage, 2, "x").holders[0].fence == lease.fence
        assert await lease.release()
        self.quorum.proxies[1].heal()

    async def test_a_release_counts_a_server_that_voted_after_the_majority(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        holder, locks = await self.ready(stage), await self.ready(stage)
        held = await holder.lock("x", ttl=600).take()
        await self.held_at_all(stage, "x")
        poll_often(monkeypatch)  # once a majority has answered, a server that is not subscribed to yet is left out
        answers = _noted_answers(locks, monkeypatch)
        waiter = stage.start(locks.lock("x", ttl=600).take())
        await stage.until(lambda: all(self.at(stage, node, "x").waiters for node in range(3)), "its place at all")
        never_poll(monkeypatch)
        await stage.until(
            lambda: answers and answers[-1].retry_after == HOUR and locks.faults.waiting, "it to sleep for long"
        )
        asked = [proxy.keep_back(script("acquire").digest) for proxy in self.quorum.proxies]
        assert await held.release()
        await stage.until(lambda: all(event.is_set() for event in asked), "all votes to be asked for")
        await stage.until(lambda: not any(self.quorum.held_at("x", stage.namespace)), "the release at all servers")
        for proxy in self.quorum.proxies[:2]:
            proxy.let_pass()
        lease = await waiter.result()
        self.quorum.proxies[2].let_pass()
        await stage.until(lambda: self.at(stage, 2, "x").locked, "the late vote")
        self.quorum.servers[0].command("FLUSHALL")
        assert await lease.release(), "a majority had it until now"
        await stage.until(lambda: not any(self.quorum.held_at("x", stage.namespace)), "no claim to hold")

    async def test_a_break_is_final_at_a_server_that_was_away_for_the_votes(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        lease = await self._granted_without_the_last_server(stage, locks)
        operator = await self.ready(stage)
        self.quorum.proxies[0].refuse()  # which keeps its vote
        assert [holder.claim_id for holder in (await operator.break_lock("x")).holders] == [lease.claim_id]
        self.quorum.proxies[0].heal()
        self.quorum.proxies[1].refuse()
        with impatient(locks), pytest.raises(BackendUnavailable, match="fewer than 2 of the 3 lock servers "):
            await lease.extend()
        assert not self.at(stage, 2, "x").locked
        self.quorum.proxies[1].heal()

        async def is_lost() -> bool:
            if not renewal_state(lease).renewing:
                renew_soon(lease)  # the servers may not be connected to again yet
            return bool(lease.lost)

        await stage.until(is_lost, "the loss")
        record = self.quorum.servers[2].command("GET", keys_of(f"{stage.namespace}\x1fx")[0])
        until, number = (int(part) for part in (record.split()[-1], record[:16]))
        assert f"!{lease.claim_id}".encode() in record
        assert until - number > 300 * 1_000_000, "it is refused there for as long as it would have held"

    async def test_the_slowest_server_votes_again_for_what_it_forgot_too(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        lease = await locks.lock("x", ttl=60).take()
        await stage.until(lambda: bool(self.at(stage, 1, "x").holders), "all votes")
        self.quorum.proxies[1].delay = 0.1
        self.quorum.servers[1].command("FLUSHALL")
        await self.repaired(stage, 1, lease)
        assert await lease.release()

    async def test_a_repair_that_comes_after_the_release_has_no_effect(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        lease = await locks.lock("x", ttl=600).take()
        await stage.until(lambda: bool(self.at(stage, 2, "x").holders), "all votes")
        hasty(locks)
        repair = self.quorum.proxies[2].keep_back(script("acquire").digest)
        self.quorum.servers[2].command("FLUSHALL")

        async def extended() -> bool:
            await lease.extend()
            return repair.is_set()

        await stage.until(extended, "a repair")

        async def all_back() -> bool:
            assert await (await locks.lock("y").take()).release()
            return not any(member.absent for member in backend_of(locks)._fanout.members)

        await stage.until(all_back, "all servers")
        assert await lease.release()
        before = _scripts_run(self.quorum, 2)
        self.quorum.proxies[2].let_pass()
        await stage.until(lambda: _scripts_run(self.quorum, 2) > before, "the repair to arrive")
        await stage.until(lambda: self.at(stage, 2, "x") == LockInfo("x"), "no claim to hold")

    async def test_a_slow_server_that_forgot_everything_costs_no_lease(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        leases = [await locks.lock(f"x{number}", ttl=60).take() for number in range(90)]
        self.quorum.servers[1].command("FLUSHALL")
        self.quorum.proxies[1].delay = 0.05
        for _ in range(2):
            renew_soon(*leases)
            await renewed(stage, leases[-1])
        assert all(lease.held for lease in leases)

    async def test_a_waiter_does_not_wait_for_a_subscription_at_a_server_that_is_gone(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        await locks.lock("x", ttl=HOUR).take()
        waiter = stage.start(locks.lock("x", wait=HOUR).take())
        await stage.queue("x", 1)
        backend = backend_of(hasty(locks))
        self.quorum.proxies[2].black_hole()
        self.quorum.proxies[2].cut()
        claim = Claim("c" * 32, Terms(f"{stage.namespace}\x1fx", "x", "me", 60.0))

        async def missed() -> bool:
            await backend.acquire(claim, enqueue=True, within=LIMIT_S)
            return bool(backend._fanout.members[2].absent)

        await stage.until(missed, "its time to be over")
        hasty(locks, HOUR)  # so long a round that waited for it would wait now
        for _ in range(6):
            await backend.acquire(claim, enqueue=True, within=HOUR)
        assert not waiter.done
        hasty(locks)
        self.quorum.proxies[2].heal()


def _scripts_run(quorum: Quorum, node: int) -> int:
    lines = quorum.servers[node].command("INFO", "commandstats").decode().splitlines()
    return sum(int(line.split("calls=")[1].split(",")[0]) for line in lines if line.startswith("cmdstat_evalsha:"))


@pytest.fixture
def quorum() -> Iterator[Quorum]:
    with Quorum(3) as quorum:
        yield quorum


@pytest.mark.parametrize("in_use", [False, True], ids=["it is free", "another thread uses it"])
def test_a_vote_that_comes_after_its_release_has_no_effect_whichever_connections_are_free(
    quorum: Quorum, in_use: bool
) -> None:
    """What is asked for a claim goes by the connections that its vote went by, or the vote is made void."""
    with lockfast.connect(quorum.url(f"rejoin=0&node_timeout={LIMIT_S}")) as locks:
        fanout = _fanout(locks)
        locks.lock("first").acquire().release()  # type: ignore[union-attr]
        of_another_thread = fanout._new_set()
        fanout._fill(of_another_thread, LIMIT_S)
        vote = quorum.proxies[2].keep_back(b"late-vote")
        lease = locks.lock("late-vote", ttl=600).acquire()
        assert lease is not None
        happens(vote, "a vote that is kept back")
        (ours,) = fanout._idle
        if in_use:
            assert fanout._idle.take_this(ours)
        fanout._put_back(of_another_thread)  # from now on it would be the first to be taken
        assert lease.release()
        before = _scripts_run(quorum, 2)
        quorum.proxies[2].let_pass()
        until(lambda: _scripts_run(quorum, 2) > before)
        until(lambda: quorum.at(2, "late-vote") == LockInfo("late-vote"))
        if in_use:
            ours.close()


def _fanout(locks: lockfast.Locks) -> Any:
    backend: Any = locks._logic.engine.backend
    return backend._fanout


def test_as_many_connections_stay_as_threads_used_lately_and_the_others_are_closed() -> None:
    with lockfast.connect("redlock://h1,h2,h3") as locks:
        fanout, now = _fanout(locks), boot_now()
        sets = [fanout._new_set() for _ in range(MAX_IDLE_SETS + 5)]
        for each in sets:
            fanout._stragglers.asked_at = now
            fanout._put_back(each)
        assert not any(each.closed for each in sets)
        for _ in range(10):
            last = fanout._take("")
            fanout._stragglers.asked_at = now + UNUSED_S + 1.0
            fanout._put_back(last)
        assert [each.closed for each in sets] == [True] * 5 + [False] * MAX_IDLE_SETS


def test_a_client_that_closes_its_connection_while_a_reply_is_due_takes_no_server_for_unreachable(
    quorum: Quorum,
) -> None:
    """An interrupt closes the connections of its thread: another thread is still to ask all servers."""
    with lockfast.connect(quorum.url(f"rejoin=0&node_timeout={LIMIT_S}")) as locks:
        fanout = _fanout(locks)
        connections = fanout._new_set()
        fanout._fill(connections, LIMIT_S)
        for proxy in quorum.proxies:
            proxy.black_hole()
        asked = Round([command("PING")] * 3, all_of_them, fanout.members, "a claim")
        asked.start(connections, LIMIT_S, LIMIT_S)
        in_doubt: list[str] = []
        for member in fanout.members:
            member.mark_in_doubt = in_doubt.append
        connections.close()
        assert in_doubt == ["a claim"] * 3, "the requests may still be carried out"
        assert [type(result) for result in asked.close()] == [BackendUnavailable] * 3
        assert not any(member.absent for member in fanout.members)
        for proxy in quorum.proxies:
            proxy.heal()


def test_a_reply_that_was_there_before_its_server_failed_is_no_sign_of_life(quorum: Quorum) -> None:
    with lockfast.connect(quorum.url(f"rejoin=0&node_timeout={LIMIT_S}")) as locks:
        fanout = _fanout(locks)
        connections, member = fanout._new_set(), fanout.members[2]
        fanout._fill(connections, LIMIT_S)

        def ask() -> None:
            Round([None, None, command("PING")], all_of_them, fanout.members).start(connections, LIMIT_S, LIMIT_S)
            arriving = connections.connections[2].socket
            until(lambda: select.select([arriving], [], [], 0)[0])

        ask()
        member.failed()
        connections.read(0.0)
        assert not connections.is_due("", 2), "the reply was read"
        assert member.absent
        ask()
        connections.read(0.0)
        assert not member.absent
        connections.close()


def test_a_connection_from_before_its_server_failed_is_no_sign_of_life(quorum: Quorum) -> None:
    with lockfast.connect(quorum.url("rejoin=0&node_timeout=0.4")) as locks:
        fanout = _fanout(locks)
        stragglers, member = fanout._stragglers, fanout.members[2]
        stragglers.patience = LIMIT_S
        stragglers._reach(2, member)
        assert len(stragglers._spare[2]) == 1
        quorum.proxies[2].refuse()
        member.failed()
        stragglers._reach(2, member)
        assert member.failures > 0
        assert not stragglers._spare[2]
        quorum.proxies[2].heal()
        stragglers._reach(2, member)
        assert not member.absent


def test_only_so_many_late_votes_are_remembered_and_the_oldest_is_in_doubt_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redis_quorum_blocking, "MAX_LATE_CLAIMS", 2)
    with lockfast.connect("redlock://h1,h2,h3") as locks:
        fanout, in_doubt = _fanout(locks), []
        for node, member in enumerate(fanout.members):
            member.mark_in_doubt = lambda claim, node=node: in_doubt.append((node, claim))
        for claim in ("a", "b", "c"):
            fanout._remember_late(claim, fanout._new_set())
        assert list(fanout._late) == ["b", "c"]
        assert in_doubt == [(0, "a"), (1, "a"), (2, "a")]


def test_only_so_many_clean_ups_are_kept_for_a_server_and_a_claim_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_quorum_stragglers, "MAX_CLEAN_UPS", 2)
    with lockfast.connect("redlock://h1,h2,h3") as locks:
        clean_ups = CleanUps(_fanout(locks).members, lambda node: None)
        for claim in ("a", "b", "b"):
            clean_ups.add(0, claim, lambda: command("PING"), boot_now() + HOUR)
        assert list(clean_ups._by_node[0]) == ["a", "b"]
        clean_ups.add(0, "c", lambda: command("PING"), boot_now())
        assert list(clean_ups._by_node[0]) == ["b", "c"]
        assert clean_ups.wait_for(0)
        assert list(clean_ups._by_node[0]) == ["b"], "the other one is too late"


def test_the_thread_that_reconnects_is_replaced_if_it_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    died = threading.Event()

    def breaks(*_: object) -> None:
        raise ValueError("a server that answers nonsense")

    monkeypatch.setattr(threading, "excepthook", lambda _: died.set())
    with lockfast.connect("redlock://h1,h2,h3") as locks:
        stragglers = _fanout(locks)._stragglers
        stragglers.asked_at = boot_now()
        stragglers._members[0].failures = 1
        monkeypatch.setattr(stragglers, "_reach", breaks)
        stragglers.start()
        happens(died, "its death")
        until(lambda: stragglers._worker is None)


def test_a_server_that_answers_no_clean_up_is_waited_for_no_longer_than_an_answer_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread that reconnects goes on to the other servers; what is left is sent when the server is next reached."""
    now, read = 1000.0, list[float]()

    class Mute:
        closed = False

        def add(self, connection: object) -> None: ...

        def send(self, round: object, node: int, request: bytes, replies: int, now: float) -> None: ...

        def read(self, seconds: float) -> None:
            nonlocal now
            now += seconds
            read.append(seconds)
            assert len(read) < 10

        def close(self) -> None:
            self.closed = True

    mute = Mute()
    monkeypatch.setattr(redis_quorum_stragglers, "boot_now", lambda: now)
    monkeypatch.setattr(redis_quorum_stragglers, "BlockingNodeConnection", lambda *_: None)
    with lockfast.connect("redlock://h1,h2,h3") as locks:
        stragglers = _fanout(locks)._stragglers
        monkeypatch.setattr(stragglers, "_new_set", lambda: mute)
        monkeypatch.setattr(stragglers, "start", lambda: None)
        stragglers.retry_later(2, "a claim", lambda: command("PING"), now + HOUR)
        stragglers._reach(2, stragglers._members[2])
    assert mute.closed
    assert sum(read) == stragglers.patience
