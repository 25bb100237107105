"""Single rounds of a quorum, step by step: what a late message may not undo, which fence a grant has, and whose vote
counts. No network and no time: a test says what arrives when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from lockfast._model import Busy, Claim, Grant, Renewal, Terms
from lockfast._reentry import run_to_end
from lockfast.backends.memory.store import MemoryStore
from lockfast.backends.redlock.backend import QuorumBackend
from lockfast.backends.redlock.io.fanout import PENDING
from lockfast.backends.redlock.tally import BrokenHolds
from lockfast.errors import BackendUnavailable
from tests.simulation.quorum_nodes import EveryKey, VotingBackend

WITHIN_S = 1.0


class Server(VotingBackend):
    """One of the quorum. It may be down, its answer may be lost, and what is given back may come late."""

    name = "server"
    contended = EveryKey()
    in_doubt = frozenset[str]()

    def __init__(self) -> None:
        store = MemoryStore(clock=lambda: 0.0)
        store.fence = 0
        world: Any = Silent()
        super().__init__(store, world)
        self.down = self.loses_replies = self.slow = self.gone = False
        self.years = 1e9
        self.on_the_way: list[Callable[[], Any]] = []

    def age(self) -> float:
        return self.years

    def mark_in_doubt(self, id: str) -> None: ...

    async def vote(self, claim: Claim, *, fence: int, order: int, enqueue: bool, within: float) -> Grant | Busy:
        self._must_answer()
        answer = await super().vote(claim, fence=fence, order=order, enqueue=enqueue, within=within)
        if self.loses_replies:
            raise BackendUnavailable("no answer")
        return answer

    async def renew(self, batch: Sequence[Renewal], *, within: float) -> list[bool]:
        self._must_answer()
        return await super().renew(batch, within=within)

    async def end_holds(self, key: str, *, within: float) -> BrokenHolds:
        self._must_answer()
        return await super().end_holds(key, within=within)

    async def refuse(self, key: str, id: str, *, seconds: float, within: float) -> None:
        self._must_answer()
        await super().refuse(key, id, seconds=seconds, within=within)

    async def record_fence(self, claim: Claim, *, fence: int, instead_of: int, within: float) -> bool:
        self._must_answer()
        return await super().record_fence(claim, fence=fence, instead_of=instead_of, within=within)

    async def give_back(self, claim: Claim, *, up_to: int, order: int, enqueue: bool, within: float) -> None:
        give_back = partial(super().give_back, claim, up_to=up_to, order=order, enqueue=enqueue, within=within)
        if self.slow:
            self.on_the_way.append(lambda: run_to_end(give_back()))
            raise BackendUnavailable("no answer")
        await give_back()

    def _must_answer(self) -> None:
        if self.gone:
            raise BackendUnavailable("no connection", sent=False)
        if self.down:
            raise BackendUnavailable("down")

    def arrive(self) -> None:
        """What is on its way gets there now."""
        for step in self.on_the_way:
            step()


class Silent:
    """A world without waiting, and a fan-out that asks one after the other."""

    blocking = True

    def __init__(self, nodes: int = 3) -> None:
        self._nodes = nodes
        self.wakeups: Any = self
        self.time = self.cost = 0.0  # and which part of its time each round takes
        self.before_each: Callable[[], object] = lambda: None

    def now(self) -> float:
        return self.time

    def signal(self) -> Any:
        return self

    def set(self) -> None: ...

    def forget(self, claim: Claim) -> None: ...

    async def pause(self, seconds: float) -> None: ...

    def _made(self, verbs: Any) -> Sequence[Any]:
        return [verbs(node) for node in range(self._nodes)] if callable(verbs) else verbs

    async def ask(self, verbs: Any, enough: Any, *, within: float, **how: Any) -> list[Any]:
        self.before_each()
        self.time += self.cost * within
        made = self._made(verbs)
        results: list[Any] = [PENDING] * len(made)
        for number, ask in enumerate(made):
            if ask is not None and enough(results):
                ask.close()
            elif ask is not None:
                try:
                    results[number] = run_to_end(ask)
                except BackendUnavailable as error:
                    results[number] = error
        return results

    def retry_later(self, node: int, claim: str, verb: Any, until: float) -> None: ...


class WithASlowServer(Silent):
    """The last server answers when the others have settled it; what goes on in the background waits for `catch_up`."""

    def __init__(self) -> None:
        super().__init__()
        self._after: list[Callable[[], None]] = []

    async def ask(self, verbs: Any, enough: Any, *, within: float, **how: Any) -> list[Any]:
        settled, late = how.get("settled"), how.get("late")
        if settled is None or late is None:
            return await super().ask(verbs, enough, within=within, **how)
        *first, last = self._made(verbs)
        results = [*await super().ask(first, enough, within=within), PENDING]
        if not settled(results):
            results[-1] = run_to_end(last)
        else:
            self._after.append(lambda: late(len(first), run_to_end(last)))
        return results

    def retry_later(self, node: int, claim: str, verb: Any, until: float) -> None:
        self._after.append(lambda: run_to_end(verb()))

    def catch_up(self) -> None:
        """All that goes on in the background ends now."""
        while self._after:
            self._after.pop(0)()


class Stage:
    def __init__(self, size: int = 3) -> None:
        self.servers: list[Any] = [Server() for _ in range(size)]

    def client(self, clock: int, rejoin: float | None = 0.0) -> QuorumBackend:
        """One whose clock shows that, always."""
        return self.client_by(lambda: clock, rejoin)

    def client_by(self, micros: Callable[[], int], rejoin: float | None = 0.0) -> QuorumBackend:
        fanout: Any = Silent(len(self.servers))
        return QuorumBackend(self.servers, fanout, chance=lambda: 0.5, micros=micros, rejoin=rejoin)

    def down(self, *numbers: int) -> None:
        for number, server in enumerate(self.servers):
            server.down = number in numbers


def claim(id: str) -> Claim:
    return Claim(id, Terms("x", "x", id, 30.0))


def ask(client: QuorumBackend, id: str) -> Grant | Busy:
    return run_to_end(client.acquire(claim(id), enqueue=False, within=WITHIN_S))


def release(client: QuorumBackend, id: str) -> bool:
    return run_to_end(client.release(claim(id), linger=0.0, within=WITHIN_S))


def granted(client: QuorumBackend, id: str) -> int:
    answer = ask(client, id)
    assert isinstance(answer, Grant), answer
    return answer.fence


# Several that wait


def wait_for(client: QuorumBackend, id: str) -> Grant | Busy:
    return run_to_end(client.acquire(claim(id), enqueue=True, within=WITHIN_S))


def test_of_several_claims_with_one_vote_each_one_gives_back() -> None:
    """Each is next for the votes of the others when it asks: the later ones have a lower order."""
    stage = Stage()
    clocks = {"c": 300, "b": 200, "a": 100}
    clients = {id: stage.client(clock) for id, clock in clocks.items()}
    for number, id in enumerate(clients):
        vote = stage.servers[number].vote(claim(id), fence=clocks[id], order=clocks[id], enqueue=True, within=WITHIN_S)
        assert isinstance(run_to_end(vote), Grant)
    for id, client in clients.items():
        assert isinstance(wait_for(client, id), Busy)
    resources = [server._store.resources["x"] for server in stage.servers]
    assert not all(resource.holders for resource in resources), "all keep what they have, and no waiter is woken"
    assert any(isinstance(wait_for(client, id), Grant) for id, client in clients.items())


@pytest.mark.parametrize("size", [3, 5])
def test_the_next_claim_keeps_what_a_release_that_is_under_way_has_handed_to_it(size: int) -> None:
    stage = Stage(size)
    holder, waiter = stage.client(100), stage.client(200)
    granted(holder, "a")
    assert isinstance(wait_for(waiter, "b"), Busy)
    run_to_end(stage.servers[-1].release(claim("a"), linger=0.0, within=WITHIN_S))
    assert isinstance(wait_for(waiter, "b"), Busy)
    assert "b" in stage.servers[-1]._store.resources["x"].holders


# What comes late


def test_a_vote_that_was_given_back_late_and_given_again_stays() -> None:
    stage = Stage()
    first, second, third = (stage.client(clock) for clock in (100, 200, 300))
    stage.down(1)
    granted(first, "a")
    stage.down()
    stage.servers[1].slow = True
    assert isinstance(ask(second, "b"), Busy)  # a vote of the one that was down; it is given back, and that is slow
    stage.servers[1].slow = False
    assert isinstance(ask(second, "b"), Busy)  # this time it gets there
    assert release(first, "a")
    stage.down(2)
    granted(second, "b")
    stage.servers[1].arrive()
    stage.down()
    assert isinstance(ask(third, "c"), Busy)


def test_a_vote_that_is_still_there_when_it_is_asked_for_again_stays() -> None:
    stage = Stage()
    first, second, third = (stage.client(clock) for clock in (100, 200, 300))
    stage.down(0, 1)
    with pytest.raises(BackendUnavailable):
        ask(first, "a")  # a vote of one, which is never used
    stage.down()
    stage.servers[0].loses_replies = stage.servers[1].slow = True
    assert isinstance(ask(second, "b"), Busy)  # two votes, one of them without a reply; the other is given back, slowly
    stage.servers[0].loses_replies = stage.servers[1].slow = False
    fence = granted(second, "b")  # both are still there, and agree
    stage.servers[1].arrive()
    assert isinstance(ask(third, "c"), Busy)
    run_to_end(first.abandon(claim("a"), within=WITHIN_S))
    assert release(second, "b")
    assert granted(third, "c") > fence


def test_a_fence_that_is_recorded_late_changes_nothing() -> None:
    server = Server()
    run_to_end(server.vote(claim("a"), fence=100, order=1, enqueue=False, within=WITHIN_S))
    assert run_to_end(server.record_fence(claim("a"), fence=200, instead_of=100, within=WITHIN_S))
    assert run_to_end(server.record_fence(claim("a"), fence=200, instead_of=100, within=WITHIN_S)), (
        "it may be said again"
    )
    assert not run_to_end(server.record_fence(claim("a"), fence=150, instead_of=100, within=WITHIN_S))
    assert run_to_end(server.inspect("x", within=WITHIN_S)).holders[0].fence == 200


def test_a_release_takes_the_claim_out_of_a_queue_that_it_was_put_in_without_a_reply() -> None:
    """Else the server would wait for a claim that never asks again when it is the first."""
    stage = Stage()
    run_to_end(stage.servers[0].vote(claim("a"), fence=50, order=50, enqueue=False, within=WITHIN_S))
    stage.servers[0].loses_replies = True
    client = stage.client(100)
    assert isinstance(run_to_end(client.acquire(claim("b"), enqueue=True, within=WITHIN_S)), Grant)
    stage.servers[0].loses_replies = False
    assert run_to_end(stage.servers[0].inspect("x", within=WITHIN_S)).waiters == 1
    assert release(client, "b")
    assert run_to_end(stage.servers[0].inspect("x", within=WITHIN_S)).waiters == 0


# How far fences are ahead of a client's clock


def before_its_next_round(client: QuorumBackend, step: Callable[[], object]) -> None:
    """Once: the proposal is made, and this happens before it arrives."""
    fanout: Any = client._fanout

    def take_turn() -> None:
        fanout.before_each = lambda: None
        step()

    fanout.before_each = take_turn


def test_a_client_that_was_slow_does_not_take_the_fences_of_others_for_ahead_of_its_clock() -> None:
    """Its proposal is old when it arrives. Were it counted from, all clients would drive each other on for ever."""
    stage, time = Stage(), [1000]
    slow, other = stage.client_by(lambda: time[0]), stage.client_by(lambda: time[0])

    def be_overtaken() -> None:
        time[0] += 5000
        granted(other, "b")
        assert release(other, "b")
        time[0] += 1000

    before_its_next_round(slow, be_overtaken)
    granted(slow, "a")
    assert release(slow, "a")
    assert granted(slow, "c") == time[0]


def test_requests_that_are_under_way_together_count_once_how_far_fences_are_ahead() -> None:
    stage = Stage()
    for server in stage.servers:
        server._store.fence = 9000
    client = stage.client(1000)
    before_its_next_round(client, lambda: granted(client, "a") and release(client, "a"))
    fence = granted(client, "b")
    assert release(client, "b")
    assert fence < granted(client, "c") < 9000 + 100


def test_clients_that_overtake_each_other_stay_by_their_clock() -> None:
    stage, time = Stage(), [1_000_000]
    clients = [stage.client_by(lambda: time[0]) for _ in range(2)]

    def take(number: int) -> None:
        time[0] += 100
        granted(clients[number % 2], f"other{number}")
        assert release(clients[number % 2], f"other{number}")
        time[0] += 100

    for number in range(100):
        before_its_next_round(clients[number % 2], partial(take, number + 1))
        assert granted(clients[number % 2], f"{number}") <= time[0]
        assert release(clients[number % 2], f"{number}")


# What is kept


def renewed(client: QuorumBackend, id: str, fence: int) -> bool | None:
    (kept,) = run_to_end(client.renew([Renewal(claim(id), 30.0, fence)], within=WITHIN_S))
    return kept


def test_a_renewal_that_too_few_servers_answer_says_so() -> None:
    stage = Stage()
    client = stage.client(100)
    fence = granted(client, "a")
    stage.down(1, 2)
    with pytest.raises(BackendUnavailable, match="'x' cannot be renewed: fewer than 2 of the 3 lock servers answer"):
        renewed(client, "a", fence)


def test_a_renewal_without_a_majority_for_or_against_it_says_so() -> None:
    stage = Stage()
    client = stage.client(100)
    stage.down(1)
    fence = granted(client, "a")
    stage.down(2)
    run_to_end(stage.servers[1].vote(claim("z"), fence=50, order=50, enqueue=False, within=WITHIN_S))
    with pytest.raises(BackendUnavailable, match=r"fewer than 2 of the 3 lock servers have it .*does not have it"):
        renewed(client, "a", fence)


def test_a_vote_that_was_missing_takes_the_place_of_one_that_cannot_be_reached() -> None:
    stage = Stage()
    client, other = stage.client(100), stage.client(200)
    stage.down(2)
    fence = granted(client, "a")
    stage.down(1)
    assert renewed(client, "a", fence)
    stage.down(0)
    assert isinstance(ask(other, "b"), Busy)


def test_a_vote_of_a_server_that_another_claim_only_tried_at_takes_the_place_of_one_too() -> None:
    stage = Stage()
    client, other = stage.client(100), stage.client(200)
    stage.down(2)
    fence = granted(client, "a")
    stage.down(1)
    assert isinstance(ask(other, "b"), Busy)  # the vote of one server, which it gives back
    assert renewed(client, "a", fence)
    assert run_to_end(stage.servers[2].inspect("x", within=WITHIN_S)).holders[0].fence == fence


def test_a_vote_of_a_server_that_restarted_takes_the_place_of_none_and_is_not_asked_for() -> None:
    stage = Stage()
    client = stage.client(100, rejoin=30.0)
    stage.down(2)
    fence = granted(client, "a")
    stage.down(1)
    stage.servers[2].years = 29.9
    for _ in range(2):
        with pytest.raises(BackendUnavailable, match="fewer than 2 of the 3 lock servers have it"):
            renewed(client, "a", fence)
    assert not run_to_end(stage.servers[2].inspect("x", within=WITHIN_S)).locked


def with_a_slow_server(client: QuorumBackend) -> WithASlowServer:
    fanout: Any = WithASlowServer()
    client._fanout = client._quorum.fanout = client._renewals._fanout = fanout
    return fanout  # type: ignore[no-any-return]


def test_a_renewal_restores_what_a_server_lost_that_answers_after_the_majority() -> None:
    stage = Stage()
    client = stage.client(100)
    fence = granted(client, "a")
    fanout = with_a_slow_server(client)
    stage.servers[2].forget()
    assert renewed(client, "a", fence)
    fanout.catch_up()
    assert [holder.fence for holder in run_to_end(stage.servers[2].inspect("x", within=WITHIN_S)).holders] == [fence]


def test_a_lease_that_a_late_release_kept_from_one_vote_survives_a_server_that_is_emptied_after_a_renewal() -> None:
    """The previous holder's release reaches the last server when the next claim holds at the others."""
    stage = Stage()
    client = stage.client(100)
    assert granted(client, "a")
    for server in stage.servers[:2]:
        run_to_end(server.release(claim("a"), linger=0.0, within=WITHIN_S))
    fence = granted(client, "b")
    run_to_end(stage.servers[2].release(claim("a"), linger=0.0, within=WITHIN_S))
    fanout = with_a_slow_server(client)
    assert renewed(client, "b", fence)
    fanout.catch_up()
    stage.servers[0].forget()
    assert renewed(client, "b", fence)
    fanout.catch_up()


def test_a_vote_that_is_asked_for_in_the_background_does_not_come_back_after_the_release() -> None:
    stage = Stage()
    client = stage.client(100)
    fence = granted(client, "a")
    fanout = with_a_slow_server(client)
    stage.servers[2].forget()
    assert renewed(client, "a", fence)
    client._renewals.end(claim("a"))  # as the release does
    fanout.catch_up()
    assert not run_to_end(stage.servers[2].inspect("x", within=WITHIN_S)).locked


def test_a_repair_whose_answer_is_lost_while_the_lease_is_released_is_cleaned_up() -> None:
    stage = Stage()
    client = stage.client(100)
    fence = granted(client, "a")
    stage.servers[2].forget()
    cleaned: list[tuple[int, str]] = []
    fanout: Any = client._fanout
    fanout.retry_later = lambda node, claim, verb, until: cleaned.append((node, claim))
    stage.servers[2].loses_replies = True
    stage.servers[2].mark_in_doubt = lambda id: client._renewals.end(claim(id))  # the release comes just now
    assert renewed(client, "a", fence)
    assert cleaned == [(2, "a")]


def test_a_release_counts_a_vote_that_only_a_renewal_got() -> None:
    stage = Stage()
    client = stage.client(100)
    stage.down(2)
    fence = granted(client, "a")
    stage.down(1)
    assert renewed(client, "a", fence)
    stage.down()
    stage.servers[1].forget()
    assert release(client, "a"), "a majority had it until now"
    assert not any(run_to_end(server.inspect("x", within=WITHIN_S)).locked for server in stage.servers)


def test_a_release_does_not_count_a_place_in_the_queue() -> None:
    stage = Stage()
    run_to_end(stage.servers[2].vote(claim("z"), fence=50, order=50, enqueue=False, within=WITHIN_S))
    client = stage.client(100)
    stage.servers[2].loses_replies = True
    assert isinstance(wait_for(client, "a"), Grant)
    stage.servers[1].forget()
    assert not release(client, "a")


# Whether a claim that failed is to be abandoned


def failed_unsent(client: QuorumBackend, id: str) -> bool:
    with pytest.raises(BackendUnavailable, match="fewer than 2 of the 3 lock servers answer") as caught:
        ask(client, id)
    return not caught.value.sent


def test_an_acquire_that_no_server_could_be_sent_is_reported_as_unsent() -> None:
    stage = Stage()
    for server in stage.servers:
        server.gone = True
    assert failed_unsent(stage.client(100), "a")


@pytest.mark.parametrize("reached", ["answers", "down", "loses_replies"])
def test_an_acquire_that_one_server_may_have_got_counts_as_sent(reached: str) -> None:
    stage = Stage()
    for server in stage.servers[1:]:
        server.gone = True
    setattr(stage.servers[0], reached, True)
    assert not failed_unsent(stage.client(100), "a")


def test_an_acquire_of_which_an_earlier_round_was_sent_counts_as_sent() -> None:
    """Two claims have a vote each of three servers; before the second tries again, all are gone."""
    stage = Stage()
    client = stage.client(100)
    run_to_end(stage.servers[0].vote(claim("z"), fence=50, order=50, enqueue=False, within=WITHIN_S))
    run_to_end(stage.servers[1].vote(claim("y"), fence=50, order=50, enqueue=False, within=WITHIN_S))
    fanout: Any = client._fanout
    rounds = 0

    def then_all_are_gone() -> None:
        nonlocal rounds
        rounds += 1
        for server in stage.servers:
            server.gone = rounds > 1

    fanout.before_each = then_all_are_gone
    assert not failed_unsent(client, "a")
    assert rounds > 1


# A break is final


def break_(client: QuorumBackend) -> list[str]:
    return [holder.claim_id for holder in run_to_end(client.break_("x", within=WITHIN_S)).holders]


def test_a_hold_that_a_majority_has_broken_gets_no_vote_of_a_server_that_never_had_it() -> None:
    stage = Stage()
    client, operator, other = stage.client(100), stage.client(50), stage.client(200)
    stage.down(2)
    fence = granted(client, "a")
    stage.down(0)
    assert break_(operator) == ["a"]
    stage.down(1)
    with pytest.raises(BackendUnavailable, match="fewer than 2 of the 3 lock servers have it"):
        renewed(client, "a", fence)
    stage.down(0)
    assert granted(other, "b") > fence
    stage.down()
    assert renewed(client, "a", fence) is False


def test_a_hold_that_is_broken_while_it_is_renewed_is_not_repaired() -> None:
    """The servers are asked before the break, and those that lost their vote after it."""
    stage = Stage(5)
    client, operator = stage.client(100), stage.client(200)
    stage.down(3, 4)
    fence = granted(client, "a")
    stage.down()
    fanout: Any = client._fanout
    rounds = 0

    def break_before_the_repair() -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            stage.down(2, 4)
            assert break_(operator) == ["a"]
            stage.down()

    fanout.before_each = break_before_the_repair
    renewed(client, "a", fence)
    assert rounds == 2
    assert renewed(client, "a", fence) is False


def test_a_break_refuses_no_claim_that_only_waits() -> None:
    stage = Stage()
    holder, waiter, operator = stage.client(100), stage.client(200), stage.client(300)
    granted(holder, "a")
    stage.servers[2]._store.clear()
    assert isinstance(wait_for(waiter, "b"), Busy)
    assert "b" in stage.servers[2]._store.resources["x"].holders, "it keeps the vote of one server"
    assert break_(operator) == ["a"]
    assert isinstance(wait_for(waiter, "b"), Grant)


# Time


def test_the_rounds_of_one_try_share_its_time() -> None:
    stage = Stage()
    client = stage.client(100)
    for number, server in enumerate(stage.servers[:2]):  # each votes for another claim: the third vote is given back
        run_to_end(server.vote(claim(f"z{number}"), fence=50, order=50, enqueue=False, within=WITHIN_S))
    fanout: Any = client._fanout
    fanout.cost = 0.9
    assert isinstance(ask(client, "a"), Busy)
    assert fanout.time <= WITHIN_S + 0.05


# Fences


def test_a_fence_that_only_one_server_knew_is_recorded_at_a_majority_before_it_is_returned() -> None:
    stage = Stage()
    fast, slow, other = stage.client(1000), stage.client(100), stage.client(100)
    stage.down(2)
    fences = [granted(fast, "a")]
    assert release(fast, "a")
    stage.down(0)
    fences.append(granted(slow, "b"))  # one of its servers knows of 1000, the other knows of nothing
    assert release(slow, "b")
    stage.down(1)
    fences.append(granted(other, "c"))
    assert fences == sorted(set(fences)), "fences grow, whatever the clocks show"


def test_a_server_that_is_still_to_answer_may_make_a_majority_agree() -> None:
    stage = Stage()
    client = stage.client(100)
    run_to_end(stage.servers[0].vote(claim("z"), fence=200, order=1, enqueue=False, within=WITHIN_S))
    run_to_end(stage.servers[0].abandon(claim("z"), within=WITHIN_S))
    assert granted(client, "a") == 100, "not 201, which one of three answered"


def test_a_grant_whose_fence_cannot_be_recorded_does_not_count() -> None:
    stage = Stage()
    fast, slow = stage.client(1000), stage.client(100)
    stage.down(2)
    granted(fast, "a")
    assert release(fast, "a")
    stage.down(0)

    async def breaks(*_: Any, **__: Any) -> bool:
        raise BackendUnavailable("down")

    stage.servers[2].record_fence = breaks
    with pytest.raises(BackendUnavailable, match="too few of them recorded its fence 1001"):
        ask(slow, "b")


# Whose vote counts


def test_the_vote_of_a_server_that_restarted_does_not_count_and_is_given_back() -> None:
    stage = Stage()
    client = stage.client(100, rejoin=30.0)
    stage.down(0)
    stage.servers[1].years = 29.9
    with pytest.raises(BackendUnavailable, match="has just started and is excluded"):
        ask(client, "a")
    assert all(not run_to_end(server.inspect("x", within=WITHIN_S)).holders for server in stage.servers)
    stage.servers[1].years = 30.0
    assert granted(client, "a")


def test_where_the_ttls_differ_the_longest_that_was_asked_for_keeps_a_server_out() -> None:
    stage = Stage()
    client = stage.client(100, rejoin=None)
    long, short = claim("a"), claim("b")._replace(terms=claim("b").terms._replace(ttl=1.0))
    run_to_end(client.acquire(long, enqueue=False, within=WITHIN_S))
    assert release(client, "a")
    for server in stage.servers:
        server.years = 2.0
    with pytest.raises(BackendUnavailable, match="excluded"):
        run_to_end(client.acquire(short, enqueue=False, within=WITHIN_S))


def test_a_lease_that_was_extended_keeps_a_server_out_for_as_long() -> None:
    stage = Stage()
    client = stage.client(100, rejoin=None)
    short = claim("a")._replace(terms=claim("a").terms._replace(ttl=2.0))
    grant = run_to_end(client.acquire(short, enqueue=False, within=WITHIN_S))
    assert isinstance(grant, Grant)
    assert run_to_end(client.renew([Renewal(short, 60.0, grant.fence)], within=WITHIN_S)) == [True]
    for server in stage.servers[:2]:
        server._store.clear()
        server.years = 10.0
    with pytest.raises(BackendUnavailable, match="excluded"):
        run_to_end(client.acquire(short._replace(id="b"), enqueue=False, within=WITHIN_S))
    stage.servers[0].years = stage.servers[1].years = 60.0  # what they have forgotten has ended
    assert isinstance(run_to_end(client.acquire(short._replace(id="b"), enqueue=False, within=WITHIN_S)), Grant)


def test_a_name_that_stays_taken_after_its_release_survives_restarts_if_rejoin_is_as_long() -> None:
    """By default a server counts again after the longest ttl: a `min_hold` is no belief of a holder."""
    for rejoin in (None, 60.0):
        stage = Stage()
        client = stage.client(100, rejoin=rejoin)
        granted(client, "a")
        assert run_to_end(client.release(claim("a"), linger=50.0, within=WITHIN_S))
        assert isinstance(ask(client, "b"), Busy)
        for server in stage.servers[:2]:
            server._store.clear()
            server.years = 30.0
        if rejoin is None:
            assert isinstance(ask(client, "b"), Grant)
        else:
            with pytest.raises(BackendUnavailable, match="excluded"):
                ask(client, "b")
