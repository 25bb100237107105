"""A cluster that changes under its locks: slots move from node to node, nodes hang, die and are replaced."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from redis.crc import key_slot

from lockfast import BackendUnavailable, LeaseLost
from lockfast._model import Grant, Renewal
from lockfast.backends.redis.io.cluster import ClusterMap
from lockfast.backends.redis.io.endpoints import Address
from lockfast.testing.stage import Stage
from tests.adversity.redis.worlds import Anywhere, knows, record_of
from tests.renewals import renewed
from tests.servers.cluster import Nodes
from tests.servers.server import HOST, Server
from tests.servers.waiting import LIMIT_S

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def calm() -> Iterator[Nodes]:
    with Nodes() as nodes:
        yield nodes


def slot_of(stage: Stage, name: str) -> int:
    return key_slot(record_of(stage.namespace, name).encode())


def same_slot(stage: Stage, name: str) -> str:
    """Another name in the same slot."""
    slot = slot_of(stage, name)
    return next(other for number in count() if slot_of(stage, other := f"n{number}") == slot and other != name)


def name_on(nodes: Nodes, stage: Stage, server: Server) -> str:
    names = (f"n{number}" for number in count())
    return next(name for name in names if nodes.owner(record_of(stage.namespace, name)) is server)


def answered(server: Server, error: str) -> int:
    """How often that server has answered so."""
    stats = server.command("INFO", "errorstats").decode()
    found = re.search(rf"errorstat_{error}:count=(\d+)", stats)
    return int(found[1]) if found else 0


class TestSlotsMove(Anywhere):
    @pytest.fixture(autouse=True)
    def _where(self, calm: Nodes) -> None:
        self.nodes, self.where = calm, calm.url
        for node in calm.primaries:
            node.command("CONFIG", "RESETSTAT")

    def _ends(self, stage: Stage, name: str) -> tuple[int, Server, Server]:
        source = self.nodes.owner(record_of(stage.namespace, name))
        return slot_of(stage, name), source, next(node for node in self.nodes.primaries if node is not source)

    async def test_a_free_name_is_granted_while_its_slot_moves(self, stage: Stage) -> None:
        locks = stage.locks()
        move = slot, source, target = self._ends(stage, "x")
        self.nodes.begin_move(*move)
        lease = await locks.lock("x", ttl=60).take()
        assert answered(source, "ASK")
        assert knows(target, lease)
        await renewed(stage, lease)
        assert await lease.release()
        later = await locks.lock("x").take()
        assert later.fence > lease.fence
        self.nodes.end_move(slot, source, target)
        assert await later.release()
        assert answered(source, "MOVED")

    async def test_a_node_that_takes_the_slot_over_need_not_know_the_script(self, stage: Stage) -> None:
        move = _, source, target = self._ends(stage, "x")
        target.command("SCRIPT", "FLUSH")
        self.nodes.begin_move(*move)
        lease = await stage.locks().lock("x").take()
        assert answered(source, "ASK")
        assert answered(target, "NOSCRIPT")
        assert not answered(target, "MOVED"), "it was asked in the same way with the script's text"
        assert await lease.release()
        self.nodes.end_move(*move)

    async def test_holders_and_waiters_move_with_their_slot(self, stage: Stage) -> None:
        lease = await stage.locks().lock("x", ttl=60).take()
        waiter = stage.start(stage.locks().lock("x").take())
        await stage.queue("x", 1)
        move = slot, source, target = self._ends(stage, "x")
        self.nodes.begin_move(*move)
        await renewed(stage, lease)
        self.nodes.move_keys(*move, record_of(stage.namespace, "x").encode())
        await renewed(stage, lease)  # its record is at the one node, the queue at the other
        release = stage.start(lease.release())
        await stage.until(lambda: answered(source, "TRYAGAIN") or answered(target, "TRYAGAIN"), "a refusal in between")
        assert not release.done
        self.nodes.end_move(slot, source, target)
        assert await release.result()
        granted = await waiter.result()
        assert granted.fence > lease.fence
        assert knows(target, granted)
        assert answered(source, "MOVED")

    async def test_neighbours_in_the_slot_are_not_disturbed(self, stage: Stage) -> None:
        lease = await stage.locks().lock("x", ttl=30).take()
        move = self._ends(stage, "x")
        self.nodes.begin_move(*move)
        other = await stage.locks().lock(same_slot(stage, "x")).take()
        self.nodes.end_move(*move)
        assert await other.release()
        await lease.extend(60)
        assert await lease.release()

    async def test_one_node_that_hangs_does_not_starve_the_others(self, stage: Stage) -> None:
        hanging, *others = self.nodes.primaries
        locks, losses = stage.locks(), list[Any]()
        stuck = await locks.lock(name_on(self.nodes, stage, hanging), ttl=2, on_lost=losses.append).take()
        leases = [await locks.lock(name_on(self.nodes, stage, node), ttl=60).take() for node in others]
        hanging.pause()
        try:
            await stage.until(lambda: losses, "the loss to be reported")
            with pytest.raises(LeaseLost):
                stuck.check()
            for lease in leases:
                await renewed(stage, lease)
                assert lease.held
            for _ in range(6):
                with pytest.raises(BackendUnavailable):
                    await locks.lock(stuck.name, wait=0.05).take()
                for lease in leases:
                    assert await locks.lock(lease.name, wait=0).acquire() is None
        finally:
            hanging.go_on()

    @pytest.mark.parametrize("knows", [True, False], ids=["script is known", "script is not known"])
    async def test_one_batch_renews_the_leases_of_all_nodes_but_the_one_that_hangs(
        self, stage: Stage, knows: bool
    ) -> None:
        verbs, batch = stage.locks().faults, list[Renewal]()
        for node in self.nodes.primaries:
            claim = stage.claim(name_on(self.nodes, stage, node), ttl=60)
            grant = await verbs.acquire(claim, enqueue=False, within=LIMIT_S)
            assert isinstance(grant, Grant)
            batch.append(Renewal(claim, 60, grant.fence))
        assert await verbs.renew(batch, within=LIMIT_S) == [True, True, True]
        for node in self.nodes.primaries if not knows else ():
            node.command("SCRIPT", "FLUSH")

        async def all_others_are_renewed() -> bool:
            return await verbs.renew(batch, within=2) == [None, True, True]

        hanging = self.nodes.primaries[0]
        hanging.pause()
        try:
            await stage.until(all_others_are_renewed, "answers of the other nodes, on a busy machine too")
        finally:
            hanging.go_on()


class TestNodesDie(Anywhere):
    @pytest.fixture(autouse=True)
    def _where(self) -> Iterator[None]:
        with Nodes() as self.nodes:
            self.where = self.nodes.url
            yield

    async def test_a_primary_dies_and_its_replica_takes_over(self, stage: Stage) -> None:
        dying, *others = self.nodes.primaries
        successor = self.nodes.replicas[0]
        locks = stage.locks()
        name = name_on(self.nodes, stage, dying)
        lease = await locks.lock(name, ttl=60).take()
        leases = [await locks.lock(name_on(self.nodes, stage, node), ttl=60).take() for node in others]
        with pytest.MonkeyPatch.context() as patch:  # its wake-ups too would come from the node that dies
            patch.setattr(ClusterMap, "any", lambda self: Address(HOST, dying.port))
            waiter = stage.start(stage.locks().lock(name).take())
            await stage.queue(name, 1)
        await stage.until(lambda: knows(successor, lease), "the lease to be replicated")
        dying.kill()
        for _ in range(3):
            for one in leases:
                await renewed(stage, one)
        self.nodes.replace(dying)
        await renewed(stage, lease)
        assert successor.command("ROLE")[0] == b"master"
        assert all(one.held for one in leases)
        assert await lease.release()
        granted = await waiter.result()
        assert granted.fence > lease.fence
        assert knows(successor, granted)
