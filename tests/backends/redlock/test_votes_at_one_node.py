"""Two votes of one claim may be under way at one server: a late one and the next, or an extension and a renewal."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from lockfast._model import Busy, Claim, Grant, Terms
from lockfast.backends.redlock.node import RedisNode

CLAIM = Claim("c" * 32, Terms("x", "x", "us", 30.0))


class Driver:
    """Grants whatever fence is proposed. A subscription takes until its turn comes."""

    def __init__(self) -> None:
        self.now, self.replicas = None, 0
        self.endpoint = SimpleNamespace(clustered=False)
        self.wakeups = SimpleNamespace(address="", forget=lambda claim: None)
        self.subscribed = [asyncio.Event(), asyncio.Event()]
        self._asked = iter(self.subscribed)

    async def expect(self, claim: Claim, within: float) -> str:
        await next(self._asked).wait()
        return "address"

    async def run(self, script: object, key: str, request: bytes, within: float) -> bytes:
        *_, fence, _, _, _ = request.split(b"\r\n")
        return fence


def test_each_vote_proposes_its_own_fence_whichever_ends_first() -> None:
    async def both() -> list[Grant | Busy]:
        driver = cast(Any, Driver())
        node = RedisNode(driver, cast(Any, SimpleNamespace(name="one", age=lambda: 0.0)))
        votes = [
            asyncio.create_task(node.vote(CLAIM, fence=fence, order=7, enqueue=True, within=30.0))
            for fence in (101, 102)
        ]
        answers = []
        for vote, subscribed in zip(votes, driver.subscribed, strict=True):
            await asyncio.sleep(0)
            subscribed.set()
            answers.append(await vote)
        return answers

    assert [answer.fence for answer in asyncio.run(both()) if isinstance(answer, Grant)] == [101, 102]
