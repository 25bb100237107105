"""Advisory locks behind a wire on which sessions fall silent, without notice to either end."""

from __future__ import annotations

from typing import Any

import pytest

from lockfast import BackendUnavailable
from lockfast.testing.stage import Stage
from tests.adversity.postgres_advisory.stage import OnPostgres
from tests.patience import impatient
from tests.polling import HOUR
from tests.renewals import renew_soon, renewed
from tests.servers.proxy import Proxy
from tests.servers.waiting import LIMIT


class TestSessionsThatFallSilent(OnPostgres):
    async def test_a_main_session_that_falls_silent_is_replaced(self, stage: Stage) -> None:
        with Proxy(self.server) as proxy:  # type: ignore[arg-type]
            locks = self.through(proxy, stage)
            async with locks.lock("warm"):
                pass
            proxy.forsake()
            async with locks.lock("a", wait=LIMIT) as lease:
                assert lease.held

    async def test_a_lease_in_a_silent_session_is_lost_with_its_ttl_and_its_name_can_be_acquired_again(
        self, stage: Stage
    ) -> None:
        with Proxy(self.server) as proxy:  # type: ignore[arg-type]
            locks = self.through(proxy, stage)
            lease = await locks.lock("a", ttl=1).take()
            proxy.forsake()
            await stage.until(lambda: lease.lost, "the holder to stop believing")
            async with locks.lock("a", wait=LIMIT) as again:
                assert again.fence > lease.fence

    async def test_a_lease_in_a_session_that_is_silent_for_a_while_is_kept_and_others_are_granted_meanwhile(
        self, stage: Stage
    ) -> None:
        with Proxy(self.server) as proxy:  # type: ignore[arg-type]
            locks = self.through(proxy, stage)
            lease = await locks.lock("kept", ttl=3600).take()
            proxy.keep_back(b"lf_try_exclusive")
            with impatient(locks, 4), pytest.raises(BackendUnavailable):
                await locks.lock("caught", wait=0).acquire()  # it may be granted there, so it can be had nowhere else
            async with locks.lock("other", wait=LIMIT):
                assert lease.held
            proxy.let_pass()
            await renewed(stage, lease)
            await stage.until(lambda: self.held() == 1, "what was granted without a reply to be given back")
            assert await lease.release()
            await stage.until(lambda: self.sessions() == 1, "the session that was replaced to be closed")

    async def test_a_waiter_whose_session_falls_silent_is_served(self, stage: Stage) -> None:
        holder = await stage.locks().lock("a", ttl=3600).take()
        with Proxy(self.server) as proxy:  # type: ignore[arg-type]
            waiter = stage.start(self.through(proxy, stage).lock("a", wait=LIMIT).take())
            await stage.queue("a", 1)
            proxy.forsake()
            await holder.release()  # the server grants it to the silent session
            assert (await waiter.result()).fence > holder.fence


class TestRenewals(OnPostgres):
    async def test_all_sessions_are_asked_before_the_first_answers(self, stage: Stage) -> None:
        locks = stage.locks()
        leases = [await locks.rwlock("page", ttl=3600).read().take() for _ in range(4)]
        backend: Any = locks.faults.inner
        sessions = {hold.session for hold in backend._holds.by_id.values()}
        assert len(sessions) == 4
        before = [lease._deadline for lease in leases]
        with impatient(locks, HOUR):
            self.server.pause()
            renew_soon(*leases)
            await stage.until(lambda: all(session.in_flight for session in sessions), "all sessions to be asked")
            self.server.go_on()
            await stage.until(
                lambda: all(lease._deadline > then for lease, then in zip(leases, before, strict=True)),
                "all to be renewed",
            )
