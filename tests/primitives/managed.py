"""A manager of either world on a stage of the contract, so that each story is written once."""

from __future__ import annotations

from inspect import isawaitable
from typing import Any

import lockfast
from lockfast.primitives.manager import LockResult, ManagerLogic
from lockfast.testing.awaited import AwaitedLock
from lockfast.testing.faults import FaultyBackend
from lockfast.testing.stage import Stage


async def settled(answer: Any) -> Any:
    """What a call of either world answers."""
    return await answer if isawaitable(answer) else answer


class AwaitedManager:
    """Every call goes to the real face; what that answers is awaited if it can be."""

    def __init__(self, stage: Stage, **options: Any) -> None:
        locks = stage.locks(**options)
        face: Any = lockfast.DistributedLock if isinstance(locks.raw, lockfast.Locks) else lockfast.aio.DistributedLock
        self.raw = face.__new__(face)
        self.raw._logic = ManagerLogic(locks.raw._logic)
        vars(locks)["manager"] = self.raw  # lives as long as the stage does, which closes it
        self.faults: FaultyBackend = locks.faults

    @property
    def holder_id(self) -> str:
        return str(self.raw.holder_id)

    async def acquire(self, *args: Any, **options: Any) -> LockResult:
        result: LockResult = await settled(self.raw.acquire(*args, **options))
        return result

    async def release(self, name: str) -> bool:
        return bool(await settled(self.raw.release(name)))

    async def extend(self, name: str, seconds: Any) -> bool:
        return bool(await settled(self.raw.extend(name, seconds)))

    async def release_all(self) -> int:
        return int(await settled(self.raw.release_all()))

    async def with_lock(self, name: str, fn: Any, **options: Any) -> Any:
        return await settled(self.raw.with_lock(name, fn, **options))

    def lock(self, name: str, **options: Any) -> AwaitedLock:
        return AwaitedLock(self.raw.lock(name, **options))

    async def close(self) -> None:
        await settled(self.raw.close())
