"""Locks on a cluster whose nodes are all well: every name finds its node, and callers see one store."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
import redis.asyncio.cluster
import redis.cluster

import lockfast
from lockfast import BackendUnavailable
from lockfast.backends.redis.io.cluster import ClusterMap
from lockfast.backends.redis.io.endpoints import Address
from lockfast.testing.stage import Stage
from tests.adversity.actor import Actor
from tests.adversity.redis.worlds import Anywhere, knows, record_of
from tests.patience import refused
from tests.polling import HOUR, never_poll
from tests.renewals import renewed
from tests.servers.cluster import SHARDS, Nodes
from tests.servers.server import HOST, Server
from tests.servers.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with Nodes() as nodes:
        yield nodes


def names_on(nodes: Nodes, namespace: str, server: Server) -> Iterator[str]:
    """Names whose slot that node has."""
    names = (f"n{number}" for number in count())
    return (name for name in names if nodes.owner(record_of(namespace, name)) is server)


def one_on_each(nodes: Nodes, stage: Stage) -> list[str]:
    return [next(names_on(nodes, stage.namespace, node)) for node in nodes.primaries]


class TestCluster(Anywhere):
    @pytest.fixture(autouse=True)
    def _where(self, nodes: Nodes) -> None:
        self.nodes, self.where = nodes, nodes.url

    def one_on_each(self, stage: Stage) -> list[str]:
        return one_on_each(self.nodes, stage)

    async def test_each_name_is_kept_by_the_node_that_has_its_slot(self, stage: Stage) -> None:
        locks = stage.locks()
        for name, node in zip(self.one_on_each(stage), self.nodes.primaries, strict=True):
            await self.works(stage, name)
            lease = await locks.lock(name).take()
            assert knows(node, lease)

    async def test_one_node_that_is_known_is_enough(self, stage: Stage) -> None:
        self.where = f"redis+cluster://{HOST}:{self.nodes.replicas[2].port}"
        for name in self.one_on_each(stage):
            assert (await stage.locks().lock(name).take()).held

    async def test_nodes_that_are_not_there_do_not_stop_anybody(self, stage: Stage) -> None:
        with Server() as gone:
            port = gone.port
        self.where = self.nodes.url.replace("://", f"://{HOST}:{port},")
        for name in self.one_on_each(stage):
            assert (await stage.locks().lock(name).take()).held

    def test_doctor_reports_the_version_of_a_node(self) -> None:
        with lockfast.connect(self.where) as locks:
            (server,) = locks.doctor().servers
        assert (server.where, server.counts) == (self.nodes.url, True)
        assert server.version

    async def test_all_names_are_listed_whichever_node_has_them(self, stage: Stage) -> None:
        locks = stage.locks()
        names = self.one_on_each(stage)
        for name in names:
            await locks.lock(name).take()
        assert [info.name for info in await stage.observer.list()] == sorted(names)
        assert [info.name for info in await stage.observer.list(names[0])] == [names[0]]
        broken = await stage.observer.break_lock(names[0])
        assert broken.locked
        assert [info.name for info in await stage.observer.list()] == sorted(names[1:])

    async def test_leases_of_all_nodes_are_renewed(self, stage: Stage) -> None:
        locks = stage.locks()
        leases = [await locks.lock(name, ttl=60).take() for name in self.one_on_each(stage)]
        for _ in range(3):
            for lease in leases:
                await renewed(stage, lease)
        assert all(lease.held for lease in leases)

    async def test_several_names_on_several_nodes_are_one_lock(self, stage: Stage) -> None:
        names = self.one_on_each(stage)
        lease = await stage.locks().all(*names).take()
        other = stage.start(stage.locks().all(*reversed(names)).take())
        await stage.until(lambda: self._waits(stage, names))
        assert await lease.release()
        assert await (await other.result()).release()

    async def _waits(self, stage: Stage, names: list[str]) -> bool:
        return sum([(await stage.info(name)).waiters for name in names]) == 1

    async def test_every_other_primitive_works_too(self, stage: Stage) -> None:
        locks, others = stage.locks(holder="one"), stage.locks(holder="two")
        for name in self.one_on_each(stage):
            waiters = [await one.semaphore(f"{name} permits", 2).take() for one in (locks, others)]
            assert await locks.semaphore(f"{name} permits", 2, wait=0).acquire() is None
            assert all([await waiter.release() for waiter in waiters])
            reads = [await one.rwlock(f"{name} rw").read().take() for one in (locks, others)]
            assert await locks.rwlock(f"{name} rw", wait=0).write().acquire() is None
            assert all([await read.release() for read in reads])
            limiter = locks.limiter(name, rate=0.01, burst=2)
            assert [bool(await limiter.try_acquire()) for _ in range(3)] == [True, True, False]
            cell = locks.cell(name)
            assert await cell.write(1, if_version=0)
            assert (await others.cell(name).update(lambda value: value + 1)).value == 2

    async def test_a_leader_is_elected_and_seen_on_each_node(self, stage: Stage) -> None:
        one, two = stage.locks(holder="one"), stage.locks(holder="two")
        for name in self.one_on_each(stage):
            seen = two.election(name).observe()
            assert await one.election(name).campaign()
            change = await seen.next()
            while change is None or change.leader != "one":
                change = await seen.next()
            await seen.close()

    @pytest.mark.parametrize("listens", range(SHARDS))
    async def test_a_wake_up_arrives_through_every_node(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch, listens: int
    ) -> None:
        never_poll(monkeypatch)
        at = Address(HOST, self.nodes.primaries[listens].port)
        monkeypatch.setattr(ClusterMap, "any", lambda self: at)
        waiting = stage.locks()
        for name in self.one_on_each(stage):
            held = await stage.locks().lock(name, ttl=HOUR).take()
            waiter = stage.start(waiting.lock(name).take())
            await stage.queue(name, 1)
            assert await held.release()
            assert (await waiter.result()).held

    async def test_waiters_for_names_on_all_nodes_share_one_subscription(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        never_poll(monkeypatch)
        holder, locks, names = stage.locks(), stage.locks(), self.one_on_each(stage)
        before = self._subscribers()
        held = [await holder.lock(name, ttl=HOUR).take() for name in names]
        waiters = []
        for name in names:  # one after the other
            waiters.append(stage.start(locks.lock(name).take()))
            await stage.queue(name, 1)
        assert len(self._subscribers() - before) == 1
        for lease in held:
            assert await lease.release()
        assert all([(await waiter.result()).held for waiter in waiters])

    def _subscribers(self) -> set[tuple[int, bytes]]:
        """The connections that receive wake-ups, by node."""
        listed = [(node.port, node.command("CLIENT", "LIST", "TYPE", "pubsub")) for node in self.nodes.all]
        return {(port, id) for port, lines in listed for id in re.findall(rb"\bid=(\d+)", lines)}

    @pytest.mark.parametrize("kind", ["blocking", "asyncio"])
    async def test_a_ready_client_leads_to_the_same_locks(self, stage: Stage, kind: str) -> None:
        client = await self._client(kind, decode_responses=True)
        try:
            for name in self.one_on_each(stage):
                self.where = client
                lease = await stage.locks().lock(name).take()
                self.where = self.nodes.url
                assert await stage.locks().lock(name, wait=0).acquire() is None
                assert await lease.release()
        finally:
            if kind == "blocking":
                client.close()

    async def _client(self, kind: str, **how: Any) -> Any:
        port = self.nodes.primaries[1].port
        if kind == "blocking":
            return redis.cluster.RedisCluster(host=HOST, port=port, **how)
        return redis.asyncio.cluster.RedisCluster(host=HOST, port=port, **how)

    async def test_a_url_for_one_server_of_a_cluster_is_an_error_that_says_so(self, stage: Stage) -> None:
        first, other = self.nodes.primaries[:2]
        self.where = first.url
        with pytest.raises(BackendUnavailable, match=r"redis\+cluster://") as refused:
            await stage.locks().lock(next(names_on(self.nodes, stage.namespace, other))).take()
        assert not refused.value.transient


class TestReplicasThatLag(Anywhere):
    replicas = 1

    @pytest.fixture(autouse=True)
    def _where(self, nodes: Nodes) -> Iterator[None]:
        self.nodes, self.where = nodes, nodes.url
        yield
        for replica in nodes.replicas:
            replica.go_on()

    async def test_a_contender_that_fails_leaves_the_holder_alone(self, stage: Stage) -> None:
        holder, contender = stage.locks(), stage.locks()
        leases = [await holder.lock(name, ttl=60).take() for name in one_on_each(self.nodes, stage)]
        for replica in self.nodes.replicas:
            replica.pause()
        for lease in leases:
            assert await contender.lock(lease.name, wait=0).acquire() is None
            await refused(contender.lock(lease.name, wait=0.1))
            assert await stage.fences(lease.name) == [lease.fence]
            assert lease.held
            assert await lease.release()


def test_processes_hand_over_to_each_other(nodes: Nodes, start: Callable[..., Actor]) -> None:
    one, two = start(on=nodes.url), start(on=nodes.url)
    two.ask("never_poll")
    for number in range(6):
        first = one.ask("acquire", name=f"p{number}", ttl=HOUR)
        two.send("acquire", name=f"p{number}")
        until(lambda number=number: one.ask("inspect", name=f"p{number}")["waiters"] == 1)  # type: ignore[misc]
        one.ask("release")
        assert two.expect()["fence"] > first["fence"]
        two.ask("release")


def test_a_damaged_record_on_one_node_hides_no_lock_on_another(nodes: Nodes) -> None:
    with lockfast.connect(nodes.url, namespace="damaged") as locks:
        names = [next(names_on(nodes, "damaged", primary)) for primary in nodes.primaries]
        leases = {name: locks.lock(name, ttl=60).acquire() for name in names}
        first, record = names[0], record_of("damaged", names[0])
        nodes.owner(record).command("SET", record, b"\0" * 100)
        assert [one.name for one in locks.list()] == sorted(names)
        assert [bool(locks.inspect(name).damage) for name in names] == [True, False, False]
        with pytest.raises(BackendUnavailable, match="damaged"):
            locks.lock(first).acquire(timeout=0)
        assert locks.break_lock(first).locked
        again, before = locks.lock(first, ttl=60).acquire(timeout=0), leases[first]
        assert again is not None
        assert before is not None
        assert again.fence > before.fence
