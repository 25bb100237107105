"""A server that forgot everything, and how long its vote must not count: the story of one restart, told step by step.

A holds at two of three servers for `LONG`. One of these forgets it and is back at once. B, who reaches that one and the
third, asks. What was forgotten is over `LONG` after the restart, so with that delay B is refused until A is done. With
a shorter one, such as the ttl of B, both believe: then only the fence keeps A out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from holdfast.errors import BackendUnavailable
from holdfast.testing.simulated import SimulatedWorld, Simulation
from holdfast.testing.simulated_network import NO_FAULTS
from tests.simulation.quorum_nodes import NodeNetwork
from tests.simulation.quorum_runs import Client, Resource

LONG, SHORT = 4.0, 1.0
FOR_EVER = 1e9


class Stage:
    def __init__(self) -> None:
        self.simulation = Simulation(1)
        self.networks = [NodeNetwork(self.simulation, f"node{n}", NO_FAULTS, 1.0) for n in range(3)]
        self.clients: list[Client] = []

    def client(self, name: str, *, reaches: tuple[int, int], rejoin: float | None) -> Client:
        client = Client(SimulatedWorld(self.simulation, name), self.networks, rejoin=rejoin)
        for number, node in enumerate(client.nodes):
            node.cut_off_until = 0.0 if number in reaches else FOR_EVER
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


def test_nobody_gets_in_by_a_server_that_may_have_forgotten(stage: Stage) -> None:
    _, older, b = restart_between(stage, LONG)
    lock = b.lock(SHORT, 0.0, renew=False)
    with pytest.raises(BackendUnavailable, match="node1 started anew and is kept out"):
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
