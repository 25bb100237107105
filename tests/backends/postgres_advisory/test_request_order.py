"""Many inspections through one advisory session: renewals and releases go before them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import lockfast
import lockfast.aio
from lockfast.backends.connecting.turns import in_turn
from lockfast.backends.postgres_advisory.io import blocking as blocking_module
from tests.servers.postgres_shared import advisory
from tests.servers.waiting import join, stand_still, until

pytestmark = pytest.mark.slow
INSPECTIONS = 40


@pytest.fixture
def url(tmp_path: Path) -> str:
    return advisory().url(tmp_path).replace("postgresql:", "postgresql+advisory:")


@pytest.mark.parametrize("ends", [False, True])
def test_a_task_that_renews_or_releases_goes_before_inspections(url: str, ends: bool) -> None:
    async def story() -> None:
        async with lockfast.aio.connect(url) as locks:
            lease = await locks.lock("a").acquire()
            assert lease is not None
            inspections = [asyncio.ensure_future(locks.inspect("a")) for _ in range(INSPECTIONS)]
            await asyncio.sleep(0)  # now all of them have asked
            if ends:
                assert await lease.release()
            else:
                await lease.extend(60)
            assert sum(one.done() for one in inspections) < INSPECTIONS / 2
            await asyncio.gather(*inspections)

    asyncio.run(story())


@pytest.mark.parametrize("ends", [False, True])
def test_a_thread_that_renews_or_releases_goes_before_inspections(
    url: str, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def counted(turn: threading.RLock, within: float, work: Callable[[], Any]) -> Any:
        asked.append(turn)
        return in_turn(turn, within, work)

    done: list[str] = []
    with lockfast.connect(url) as locks:
        lease = locks.lock("a").acquire()
        assert lease is not None
        backend: Any = locks._logic.engine.backend
        keep = lease.release if ends else lease.extend

        def work(what: str, how: Callable[[], object]) -> None:
            how()
            done.append(what)

        inspect = partial(locks.inspect, "a")
        inspections = [threading.Thread(target=work, args=("inspects", inspect)) for _ in range(INSPECTIONS)]
        keeper = threading.Thread(target=work, args=("keeps", keep))
        monkeypatch.setattr(blocking_module, "in_turn", counted)
        with backend._sessions.ready.turn:
            for thread in inspections:
                thread.start()
            until(lambda: len(asked) >= INSPECTIONS)
            keeper.start()
            until(lambda: len(asked) >= INSPECTIONS + 2)  # one inspection has come as far as the turn
            stand_still(*inspections, keeper)
        join(*inspections, keeper)
        assert done.index("keeps") < INSPECTIONS / 2
