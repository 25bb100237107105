"""An optimistic cell: a JSON value with a version, and a check of fences.

Decides: what is told to whom when a write does not go through, and how an update is tried again.
Leaves to the backend: doing it in one step.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from holdfast._ids import new_claim_id
from holdfast._time import Seconds, full_jitter, length
from holdfast._values import Write
from holdfast.engine.core import Engine
from holdfast.errors import BackendUnavailable, Conflict, StaleFence
from holdfast.primitives.names import whole

LARGEST_VALUE = 1024 * 1024  # characters of JSON


class Versioned(NamedTuple):
    """What a cell held when it was read: `value, version = cell.read()`."""

    value: Any
    version: int  # 0 if nothing was ever written


class CellLogic:
    __slots__ = ("_engine", "_key", "_name")

    def __init__(self, engine: Engine, name: str, key: str) -> None:
        self._engine = engine
        self._name = name
        self._key = key

    async def read(self) -> Versioned:
        engine = self._engine
        engine.must_be_open()
        until = engine.now() + engine.patience
        stored, _ = await engine.insist(lambda _: engine.backend.read(self._key), until)
        return Versioned(None if stored.value is None else json.loads(stored.value), stored.version)

    async def write(self, value: Any, if_version: int | None, fence: int | None) -> int:
        return await self._do(
            Write(new_claim_id(), _text(value), _number(if_version, "if_version"), _number(fence, "fence", 1))
        )

    async def delete(self, if_version: int | None) -> None:
        await self._do(Write(new_claim_id(), None, _number(if_version, "if_version")))

    async def update(self, change: Callable[[Any], Any], wait: Seconds | None, fence: int | None) -> Versioned:
        """Read, change, write; again while others write in between. Raises Conflict after `wait` seconds of that."""
        engine = self._engine
        give_up_at = float("inf") if wait is None else engine.now() + length(wait, "wait", zero=True)
        attempt = 0
        while True:
            before = await self.read()
            value = change(before.value)
            if isinstance(value, Awaitable):
                value = await value
            try:
                return Versioned(value, await self.write(value, before.version, fence))
            except Conflict:
                attempt += 1
                pause = full_jitter(attempt, engine.world.chance())
                if engine.now() + pause >= give_up_at:
                    raise
                await engine.world.pause(pause)

    async def _do(self, write: Write) -> int:
        engine = self._engine
        engine.must_be_open()
        until = engine.now() + engine.patience
        written, failures = await engine.insist(
            lambda within: engine.backend.write(self._key, write, within=within), until
        )
        if written.outcome == "written":
            return written.version
        if failures:
            # An earlier try may have gone through, and been overwritten since.
            raise BackendUnavailable(
                f"it is not known whether cell {self._name!r} was written: the reply was lost, and it has version "
                f"{written.version} now",
                name=self._name,
            )
        if written.outcome == "stale":
            raise StaleFence(
                f"cell {self._name!r} was written with fence {written.fence}, so fence {write.fence} is out of date; "
                "nothing was changed",
                name=self._name,
                fence=write.fence,
                last=written.fence,
            )
        raise Conflict(
            f"cell {self._name!r} has version {written.version}, not {write.if_version}; nothing was changed",
            name=self._name,
            version=written.version,
            expected=write.if_version,
        )

    def __repr__(self) -> str:
        return repr(self._name)


def _text(value: Any) -> str:
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"a cell's value must be JSON: {error}") from None
    if len(text) > LARGEST_VALUE:
        raise ValueError(f"a cell's value must be at most {LARGEST_VALUE} characters of JSON; this has {len(text)}")
    return text


def _number(value: int | None, what: str, least: int = 0) -> int | None:
    return None if value is None else whole(value, what, least)
