"""New sessions that are accepted and then silent, as by a proxy that has lost the server."""

from __future__ import annotations

from lockfast.testing.stage import Stage
from tests.adversity.postgres_advisory.stage import OnPostgres
from tests.polling import HOUR
from tests.servers.proxy import Proxy
from tests.servers.waiting import LIMIT_S


class TestSilentFromTheFirstByte(OnPostgres):
    async def test_a_silent_session_does_not_cost_the_whole_wait(self, stage: Stage) -> None:
        with Proxy(self.server) as proxy:  # type: ignore[arg-type]
            proxy.leave_unanswered(1)
            locks = self.through(proxy, stage, patience=HOUR)
            async with locks.lock("x", wait=LIMIT_S) as lease:
                assert lease.held
                assert proxy.accepted == 2

    async def test_a_silent_session_of_a_waiter_does_not_cost_its_whole_wait(self, stage: Stage) -> None:
        holder = await stage.locks().lock("x", ttl=HOUR).take()
        with Proxy(self.server) as proxy:  # type: ignore[arg-type]
            locks = self.through(proxy, stage, patience=HOUR)
            async with locks.lock("warm"):
                proxy.leave_unanswered(1)
                waiter = stage.start(locks.lock("x", wait=LIMIT_S).take())
                await stage.queue("x", 1)
                assert await holder.release()
                assert (await waiter.result()).held
