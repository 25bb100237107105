"""A server that forgot everything, and how long its vote must not count: the story of one restart, step by step.

A holds at two of three servers for `LONG`. One of these forgets it and is back at once. B, who reaches that one and the
third, asks. What was forgotten is over `LONG` after the restart, so with that delay B is refused until A is done. With
a shorter one, such as the ttl of B, both believe: then only the fence excludes A.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from lockfast._model import Busy, Claim, Grant
from lockfast.backends.redlock.backend import QuorumBackend
from lockfast.errors import BackendUnavailable
from lockfast.testing.simulated import SimulatedWorld, Simulation
from lockfast.testing.simulated_network import NO_FAULTS
from tests.simulation.quorum_nodes import NodeNetwork, SimulatedNode
from tests.simulation.quorum_runs import Client, Resource

LONG, SHORT = 4.0, 1.0
FOR_EVER_S = 1e9


class Stage:
    def __init__(self) -> None:
        self.simulation = Simulation(1)
        self.networks = [NodeNetwork(self.simulation, f"node{n}", NO_FAULTS, 1.0) for n in range(3)]
        self.clients: list[Client] = []

    def client(
        self,
        name: str,
        *,
        reaches: tuple[int, ...] = (0, 1, 2),
        rejoin: float | None,
        quorum: type[QuorumBackend] = QuorumBackend,
    ) -> Client:
        client = Client(SimulatedWorld(self.simulation, name), self.networks, rejoin=rejoin, quorum=quorum)
        for number, node in enumerate(client.nodes):
            node.cut_off_until = 0.0 if number in reaches else FOR_EVER_S
        self.clients.append(client)
        return client

    def run(self, client: Client, work: Callable[[], Awaitable[Any]]) -> Any:
        async def story() -> Any:
            return await work()

        return self.simulation.run_until_done(client.world.task(story(), "job"))

    def close(self) -> None:
        self.simulation.close()
        for client in self.clients:
            client.engine.closed = True


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


def restart_between(stage: Stage, rejoin: float | None) -> tuple[Client, Any, Client]:
    """A's lease, and B who may ask a little later than `SHORT` after the restart."""
    a = stage.client("a", reaches=(0, 1), rejoin=rejoin)
    b = stage.client("b", reaches=(1, 2), rejoin=rejoin)
    lease = stage.run(a, a.lock(LONG, 0.0, renew=False).acquire)
    stage.networks[1].crash(0.01, forgets=True)
    stage.simulation.run(stage.simulation.time + SHORT + 0.05)
    assert lease.held
    return a, lease, b


def test_a_server_that_may_have_forgotten_lets_no_second_holder_in(stage: Stage) -> None:
    _, older, b = restart_between(stage, LONG)
    lock = b.lock(SHORT, 0.0, renew=False)
    with pytest.raises(BackendUnavailable, match="node1 has just started and is excluded"):
        stage.run(b, lock.acquire)  # which goes on asking for two seconds
    assert older.held
    newer = stage.run(b, lock.acquire)
    assert stage.simulation.time >= stage.networks[1].born_at + LONG
    assert not older.held
    assert newer.fence > older.fence


@pytest.mark.parametrize("rejoin", [0.0, SHORT, None], ids=["not at all", "too short", "the ttl that B knows of"])
def test_beyond_the_bound_both_believe_and_the_resource_still_refuses_the_older(
    stage: Stage, rejoin: float | None
) -> None:
    _, older, b = restart_between(stage, rejoin)
    newer = stage.run(b, b.lock(SHORT, 0.0, renew=False).acquire)
    assert older.held
    assert newer.held
    resource = Resource()
    assert resource.write(older.fence)
    assert resource.write(newer.fence)
    assert not resource.write(older.fence)


# The clock of a server that restarted


def restart_and_step(stage: Stage, *, seen: bool) -> tuple[Any, Client]:
    """A's lease, and B, which had a connection to the restarted server before, or not. Its clock shows an hour more."""
    a = stage.client("a", reaches=(0, 1), rejoin=LONG)
    b = stage.client("b", reaches=(1, 2), rejoin=LONG)
    if seen:
        b.nodes[1].connected()
    lease = stage.run(a, a.lock(LONG, 0.0, renew=False).acquire)
    stage.networks[1].crash(0.01, forgets=True, stepped=3600.0)
    stage.simulation.run(stage.simulation.time + 0.05)
    return lease, b


def test_a_server_that_restarts_and_whose_clock_is_stepped_lets_no_second_holder_in(stage: Stage) -> None:
    older, b = restart_and_step(stage, seen=True)
    with pytest.raises(BackendUnavailable, match="node1 has just started and is excluded"):
        stage.run(b, b.lock(SHORT, 0.0, renew=False).acquire)
    assert older.held


def test_a_client_that_never_saw_a_server_before_relies_on_its_clock_and_the_resource_refuses_the_older(
    stage: Stage,
) -> None:
    """What is assumed: a clock is set before the server starts. Else such a client is the second that believes."""
    older, b = restart_and_step(stage, seen=False)
    newer = stage.run(b, b.lock(SHORT, 0.0, renew=False).acquire)
    assert older.held
    assert newer.held
    assert newer.fence > older.fence


# Servers that were all started just now


def start_all(stage: Stage) -> None:
    for network in stage.networks:
        network.crash(0.01, forgets=True)
    stage.simulation.run(stage.simulation.time + 0.02)


def test_a_waiter_without_limit_waits_until_new_servers_count(stage: Stage) -> None:
    start_all(stage)
    b = stage.client("b", rejoin=LONG)
    assert b.engine.patience < LONG
    lease = stage.run(b, b.lock(SHORT, None, renew=False).acquire)
    since = stage.simulation.time - stage.networks[0].born_at
    assert lease.held
    assert LONG <= since < LONG + 0.1  # not a whole pause between two tries later


def test_a_waiter_with_enough_time_is_granted_when_new_servers_count(stage: Stage) -> None:
    start_all(stage)
    b = stage.client("b", rejoin=LONG)
    assert stage.run(b, b.lock(SHORT, LONG + 1.0, renew=False).acquire) is not None
    assert stage.simulation.time >= stage.networks[0].born_at + LONG


@pytest.mark.parametrize("wait", [0.0, SHORT])
def test_a_waiter_with_too_little_time_learns_at_once_how_long_it_takes_and_what_to_do(
    stage: Stage, wait: float
) -> None:
    start_all(stage)
    b = stage.client("b", rejoin=LONG)
    asked_at = stage.simulation.time
    with pytest.raises(BackendUnavailable) as refused:
        stage.run(b, b.lock(SHORT, wait, renew=False).acquire)
    assert stage.simulation.time - asked_at < 0.1
    assert refused.value.retry_after == pytest.approx(LONG, abs=0.1)
    said = str(refused.value)
    assert "lock 'mutex' cannot be granted for another 3.9" in said
    assert "node2 has just started and is excluded for another 3.9" in said
    assert "may have forgotten a lease that is still held" in said
    assert "connect with rejoin=0 (in a URL: ?rejoin=0)" in said
    assert "can let a second holder in" in said


def test_while_a_server_is_cut_off_new_ones_are_waited_for_no_longer_than_that_one(stage: Stage) -> None:
    """It may be back first, and count at once: so it is asked as long as there is patience, and no longer."""
    start_all(stage)
    b = stage.client("b", reaches=(1, 2), rejoin=LONG)
    asked_at = stage.simulation.time
    with pytest.raises(
        BackendUnavailable, match=r"node1 has just started and is excluded for another (1\.9|2).*rejoin=0"
    ) as refused:
        stage.run(b, b.lock(SHORT, None, renew=False).acquire)
    assert refused.value.retry_after is None
    assert b.engine.patience / 2 < stage.simulation.time - asked_at < LONG


class _TrustsEmptyServers(QuorumBackend):
    """What would be pleasant: servers that are all there, and all without a trace of a vote, are taken for new."""

    new = False

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant | Busy:
        nodes = [node for node in self._nodes if isinstance(node, SimulatedNode)]
        self.new = all(not node.network.down and not node.network.server.store.fence for node in nodes)
        return await super().acquire(claim, enqueue=enqueue, within=within)

    def __init__(self, *parts: Any, **options: Any) -> None:
        super().__init__(*parts, **options)
        excluded_for = self._quorum.excluded_for
        self._quorum.excluded_for = lambda claim: 0.0 if self.new else excluded_for(claim)  # type: ignore[method-assign]


@pytest.mark.parametrize("lost", [(0, 1, 2), (0, 1)], ids=["all at once", "a majority, and one that never had a vote"])
def test_servers_without_a_trace_of_a_vote_need_not_be_new(stage: Stage, lost: tuple[int, ...]) -> None:
    """No marker on the servers distinguishes the two: they have lost it together with the votes."""
    a = stage.client("a", reaches=lost, rejoin=LONG)
    older = stage.run(a, a.lock(LONG, 0.0, renew=False).acquire)
    for number in lost:
        stage.networks[number].crash(0.01, forgets=True)
    stage.simulation.run(stage.simulation.time + 0.02)
    trusting = stage.client("b", rejoin=LONG, quorum=_TrustsEmptyServers)
    newer = stage.run(trusting, trusting.lock(SHORT, 0.0, renew=False).acquire)
    assert older.held
    assert newer.held
    stage.run(trusting, newer.release)
    careful = stage.client("c", rejoin=LONG)
    with pytest.raises(BackendUnavailable, match="excluded"):
        stage.run(careful, careful.lock(SHORT, 0.0, renew=False).acquire)
    assert older.held
