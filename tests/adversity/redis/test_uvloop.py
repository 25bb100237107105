"""asyncio on uvloop: the same stories, since connections are taken over from redis-py below the surface of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from lockfast.testing.contract import Promise
from lockfast.testing.contract.p01_no_body_without_lock import NoBodyWithoutLock
from lockfast.testing.contract.p05_lost_replies_change_nothing import LostRepliesChangeNothing
from lockfast.testing.contract.p06_interrupted_leaves_nothing import InterruptedLeavesNothing
from lockfast.testing.contract.p08_loss_is_reported import LossIsReported
from lockfast.testing.contract.p09_waiters_are_woken import WaitersAreWoken
from tests.adversity.redis.test_renewal import TestUnreachable as _Unreachable
from tests.adversity.redis.test_tls import TestTls as _Tls
from tests.adversity.redis.test_tls import certificates, server  # noqa: F401 — fixtures
from tests.adversity.redis.test_wakeups import TestLostWakeUps as _LostWakeUps
from tests.servers import shared

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _on_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(story: Coroutine[Any, Any, None]) -> None:
        async def check() -> None:
            assert type(asyncio.get_running_loop()).__module__.startswith("uvloop")
            await story

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(check())

    monkeypatch.setattr(asyncio, "run", run)


class _OnUvloop(Promise):
    @classmethod
    def worlds_for(cls, story: object) -> list[str]:
        return [world for world in super().worlds_for(story) if world == "asyncio"]


class _OnRedis(_OnUvloop):
    can = frozenset()

    def url(self, tmp_path: Path) -> str:
        return shared.valkey().url(tmp_path)


class TestNoBodyWithoutLock(_OnRedis, NoBodyWithoutLock):
    url = _OnRedis.url


class TestLostRepliesChangeNothing(_OnRedis, LostRepliesChangeNothing):
    url = _OnRedis.url


class TestInterruptedLeavesNothing(_OnRedis, InterruptedLeavesNothing):
    url = _OnRedis.url


class TestLossIsReported(_OnRedis, LossIsReported):
    url = _OnRedis.url


class TestWaitersAreWoken(_OnRedis, WaitersAreWoken):
    url = _OnRedis.url


class TestTls(_OnUvloop, _Tls):
    make_backend = _Tls.make_backend


class TestLostWakeUps(_OnUvloop, _LostWakeUps):
    make_backend = _LostWakeUps.make_backend


class TestUnreachable(_OnUvloop, _Unreachable):
    make_backend = _Unreachable.make_backend
