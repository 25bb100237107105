"""`replicas=n`: a lock counts once that many replicas have it. What is not confirmed is taken back, or not believed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import lockfast
import lockfast.aio
from lockfast import BackendUnavailable, LeaseLost, Unsupported
from lockfast._model import LockInfo
from lockfast._time import boot_now
from lockfast.testing.stage import Stage
from tests.adversity.redis.stage import sooner
from tests.adversity.redis.worlds import Anywhere, knows
from tests.patience import impatient, refused, refused_for
from tests.polling import HOUR
from tests.renewals import renew_soon, renewed
from tests.servers.proxy import Proxy
from tests.servers.server import Server
from tests.servers.waiting import LIMIT_S

pytestmark = pytest.mark.slow


Pair = tuple[Server, Server]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Server() as primary, Server() as replica:
        yield primary, replica


class TestReplicas(Anywhere):
    replicas = 1

    @pytest.fixture(autouse=True)
    def _where(self, pair: Pair) -> Iterator[None]:
        self.primary, self.replica = pair
        self.replica.follow(self.primary)
        self.where = self.primary.url
        yield
        self.replica.go_on()

    async def _free(self, stage: Stage, name: str) -> bool:
        with lockfast.connect(self.primary.url, namespace=stage.namespace) as locks:
            return locks.inspect(name) == LockInfo(name)

    async def test_what_is_granted_is_known_to_the_replica_at_once(self, stage: Stage) -> None:
        for number in range(20):
            assert knows(self.replica, await stage.locks().lock(f"x{number}").take())

    async def test_waiting_handing_over_and_renewing_work_as_ever(self, stage: Stage) -> None:
        await self.works(stage)
        lease = await stage.locks().lock("x", ttl=60).take()
        for _ in range(3):
            await renewed(stage, lease)
        assert await lease.release()

    async def test_a_grant_that_is_not_confirmed_is_taken_back(self, stage: Stage) -> None:
        locks = stage.locks()
        self.replica.pause()
        # Not transient: this claim was given up, and a new try is a new claim.
        await stage.until(lambda: refused_for(locks, "x", "only 0 replicas", transient=False), "the reason to be given")
        await stage.until(lambda: self._free(stage, "x"), "the grant to be taken back")
        self.replica.go_on()
        assert (await locks.lock("x").take()).held

    async def test_a_primary_that_its_replica_has_left_grants_nothing(self, stage: Stage) -> None:
        self.replica.follow_nobody()
        locks = stage.locks()
        await stage.until(lambda: refused_for(locks, "x", "only 0 replicas", transient=False), "the reason to be given")
        await stage.until(lambda: self._free(stage, "x"), "the grant to be taken back")

    async def test_a_renewal_that_is_not_confirmed_is_asked_for_again(self, stage: Stage) -> None:
        lease = await stage.locks().lock("x", ttl=60).take()
        events = stage.record(stage._opened[0])
        self.replica.pause()
        with impatient(stage._opened[0], 0.5):
            renew_soon(lease)
            await stage.until(lambda: any(event.kind == "renewal_failed" for event in events), "a renewal in vain")
        self.replica.go_on()
        await renewed(stage, lease)
        assert lease.held

    async def test_without_confirmation_the_lease_is_lost_in_time(self, stage: Stage) -> None:
        losses: list[Any] = []
        lease = await stage.locks().lock("x", ttl=1, on_lost=losses.append).take()
        self.replica.pause()
        paused_at = boot_now()  # what was asked for later cannot have been confirmed
        await stage.until(lambda: losses, "the loss to be reported")
        assert lease._deadline <= paused_at + 1, "nothing that was not confirmed was believed"
        with pytest.raises(LeaseLost):
            lease.check()

    async def test_a_downgrade_that_is_not_confirmed_leaves_the_lease_as_held_as_it_says(self, stage: Stage) -> None:
        locks = stage.locks()
        lease = await locks.rwlock("x", ttl=60).write().take()
        self.replica.pause()
        with impatient(locks, 0.3), pytest.raises(BackendUnavailable):
            await lease.downgrade()
        assert lease.held
        with lockfast.connect(self.primary.url, namespace=stage.namespace) as other:
            assert [holder.fence for holder in other.inspect("x").holders] == [lease.fence]
            assert other.rwlock("x").write().acquire(blocking=False) is None

    async def test_a_contender_that_fails_leaves_the_holder_alone(self, stage: Stage) -> None:
        lease = await stage.locks().lock("x", ttl=60).take()
        self.replica.pause()
        assert await stage.locks().lock("x", wait=0).acquire() is None
        await refused(stage.locks().lock("x", wait=0.1))
        assert await stage.fences("x") == [lease.fence]
        assert lease.held
        assert await lease.release()

    async def test_a_connection_that_leads_nowhere_does_not_cost_the_lock(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        patience = sooner(monkeypatch)
        with Proxy(self.primary) as proxy:
            self.where = proxy.url
            locks = stage.locks(patience=HOUR)
            assert await (await locks.lock("ready").take()).release()
            proxy.forsake()
            started = boot_now()
            await locks.lock("x", wait=LIMIT_S).take()
            assert boot_now() >= started + patience
            await locks.close()

    async def test_asking_for_more_replicas_than_there_are_is_an_error_with_their_number(self, stage: Stage) -> None:
        self.__dict__["replicas"] = 2
        locks, reason = stage.locks(), "only 1 replicas that confirm the write, and 2 were asked for"
        await stage.until(lambda: refused_for(locks, "x", reason, transient=False), "the reason to be given")


class TestFailoverBehindALoadBalancer(Anywhere):
    """Connections to the former primary stay open. It refuses WAIT, in words that do not begin with READONLY."""

    replicas = 1

    @pytest.fixture(autouse=True)
    def _where(self) -> Iterator[None]:
        with Server() as self.primary, Server() as self.replica, Proxy(self.primary) as self.proxy:
            self.replica.follow(self.primary)
            self.where = self.proxy.url
            yield

    def fail_over(self) -> None:
        self.replica.lead()
        self.primary.follow(self.replica)
        self.proxy.lead_to(self.replica)

    async def test_a_try_is_answered_by_the_new_primary(self, stage: Stage) -> None:
        locks = stage.locks()
        lease = await locks.lock("x", ttl=HOUR).take()
        assert await locks.lock("x", wait=0).acquire() is None
        self.fail_over()
        assert await locks.lock("x", wait=0).acquire() is None
        assert lease.held

    async def test_a_renewal_moves_to_the_new_primary(self, stage: Stage) -> None:
        lease = await stage.locks().lock("x", ttl=HOUR).take()
        self.fail_over()
        await renewed(stage, lease)
        assert lease.held


@pytest.mark.parametrize("connect", [lockfast.connect, lockfast.aio.connect])
@pytest.mark.parametrize("url", ["memory://", "sqlite:///x.db"])
def test_a_store_without_replicas_says_so(connect: Any, url: str) -> None:
    with pytest.raises(Unsupported, match="replicas"):
        connect(url, replicas=1)


@pytest.mark.parametrize("connect", [lockfast.connect, lockfast.aio.connect])
@pytest.mark.parametrize("number", [-1, 1.5, "1", True, None])
def test_a_number_of_replicas_that_is_none_is_refused(connect: Any, number: Any) -> None:
    with pytest.raises(ValueError, match="replicas"):
        connect("redis://localhost", replicas=number)
