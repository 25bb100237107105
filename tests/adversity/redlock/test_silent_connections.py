"""New connections to a majority of a quorum that are accepted and then silent."""

from __future__ import annotations

import pytest

from lockfast.testing.stage import Stage
from tests.backends.redlock.stage import OnAQuorum
from tests.polling import HOUR
from tests.servers.waiting import LIMIT_S

pytestmark = pytest.mark.slow


class TestSilentFromTheFirstByte(OnAQuorum):
    async def test_silent_connections_to_a_majority_do_not_cost_the_whole_wait(self, stage: Stage) -> None:
        for proxy in self.quorum.proxies[:2]:
            proxy.leave_unanswered(1)
        lease = await stage.locks(patience=HOUR).lock("x", wait=LIMIT_S).take()
        assert lease.held
        assert await lease.release()
