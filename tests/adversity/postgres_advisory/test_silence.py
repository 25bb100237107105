"""Advisory locks behind a wire on which sessions fall silent, without notice to either end."""

from __future__ import annotations

from typing import Any

import pytest

from lockfast import BackendUnavailable
from lockfast.backends.postgres_advisory.io import session as session_module
from lockfast.testing.stage import Stage
from tests.adversity.postgres_advisory.stage import OnPostgres
from tests.patience import impatient
from tests.polling import HOUR
from tests.renewals import renew_soon, renewed
from tests.servers.proxy import Proxy
from tests.servers.waiting import LIMIT_S


class TestSessionsThatFallSilent(OnPostgres):
    async def test_a_main_session_that_falls_silent_is_replaced(self, stage: Stage) -> None:
        with Proxy(self.server) as proxy:  # type: ignore[arg-type]
            locks = self.through(proxy, stage)
            async with locks.lock("warm"):
                pass
            proxy.forsake()
            async with locks.lock("a", wait=LIMIT_S) as lease:
                assert lease.held

    async def test_a_lease_in_a_silent_session_is_lost_with_its_ttl_and_its_name_can_be_acquired_again(
        self, stage: Stage
    ) -> None:
        with Proxy(self.server) as proxy:  # type: ignore[arg-type]
            locks = self.through(proxy, stage)
            lease = await locks.lock("a", ttl=1).take()
            proxy.forsake()
            await stage.until(lambda: lease.lost, "the holder to stop believing")
            async with locks.lock("a", wait=LIMIT_S) as again:
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
            async with locks.lock("other", wait=LIMIT_S):
                assert lease.held
            proxy.let_pass()
            await renewed(stage, lease)
            await stage.until(lambda: self.held() == 1, "what was granted without a reply to be given back")
            assert await lease.release()
            await stage.until(lambda: self.sessions() == 1, "the session that was replaced to be closed")

    async def test_a_server_that_stands_still_for_longer_than_an_answer_may_take_costs_no_lock(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        locks = stage.locks()
        leases = [await locks.lock(name, ttl=3600).take() for name in ("a", "b")]
        leases += [await locks.rwlock("page", ttl=3600).read().take() for _ in range(2)]  # one in its own session
        backend: Any = locks.faults.inner
        monkeypatch.setattr(session_module, "ANSWER_WITHIN_S", 0.1)
        self.server.pause()
        renew_soon(*leases)
        await stage.until(lambda: backend._sessions.ready is None, "the main session to be replaced")
        monkeypatch.undo()
        self.server.go_on()
        for lease in leases:
            await renewed(stage, lease)
        async with locks.lock("other", wait=LIMIT_S):
            assert all(lease.held for lease in leases)
        assert [await lease.release() for lease in leases] == [True] * 4

    async def test_a_statement_that_takes_longer_than_an_answer_may_take_costs_its_claim_a_session_and_no_lock(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(session_module, "ANSWER_WITHIN_S", 0.5)
        with Proxy(self.server) as proxy:  # type: ignore[arg-type]
            locks = self.through(proxy, stage)
            async with locks.lock("warm"):
                pass
            slow = proxy.keep_back(b"lf_try_exclusive")
            lease = await locks.lock("a", ttl=HOUR, wait=LIMIT_S).take()
            assert slow.is_set()
            proxy.let_pass()
            await renewed(stage, lease)
            await stage.until(lambda: self.held() == 1, "what the slow statement was granted to be given back")
            assert await lease.release()
            await stage.until(self.nothing_left(), "nothing to be held")

    async def test_a_release_that_takes_longer_than_an_answer_may_take_ends_its_lock_and_no_other(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(session_module, "ANSWER_WITHIN_S", 0.5)
        with Proxy(self.server) as proxy:  # type: ignore[arg-type]
            locks = self.through(proxy, stage)
            kept = await locks.lock("kept", ttl=HOUR).take()
            ended = await locks.lock("ended", ttl=HOUR).take()
            slow = proxy.keep_back(b"lf_free_exclusive")
            releasing = stage.start(ended.release())
            await stage.until(slow.is_set, "the release to be under way")
            async with locks.lock("other", wait=LIMIT_S):
                assert kept.held
            proxy.let_pass()
            await releasing.result()
            await renewed(stage, kept)
            await stage.until(lambda: self.held() == 1, "the other lock to be released")
            assert await kept.release()

    async def test_a_lease_is_renewed_though_each_answer_takes_longer_than_one_may_take(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Proxy(self.server) as proxy:  # type: ignore[arg-type]
            locks = self.through(proxy, stage)
            lease = await locks.lock("a", ttl=3600).take()
            proxy.delay = 0.5
            monkeypatch.setattr(session_module, "ANSWER_WITHIN_S", 0.1)
            for _ in range(3):
                await renewed(stage, lease)
            proxy.heal()
            monkeypatch.undo()
            assert await lease.release()

    async def test_a_waiter_whose_session_falls_silent_is_served(self, stage: Stage) -> None:
        holder = await stage.locks().lock("a", ttl=3600).take()
        with Proxy(self.server) as proxy:  # type: ignore[arg-type]
            waiter = stage.start(self.through(proxy, stage).lock("a", wait=LIMIT_S).take())
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
            try:
                renew_soon(*leases)
                await stage.until(lambda: all(session.in_flight for session in sessions), "all sessions to be asked")
            finally:
                self.server.go_on()
            await stage.until(
                lambda: all(lease._deadline > then for lease, then in zip(leases, before, strict=True)),
                "all to be renewed",
            )
