"""An optimistic cell: a JSON value with a version, and a check of fences.

Decides: what is raised when a write does not go through, and how an update is tried again.
Leaves to the backend: doing it in one step.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

from lockfast._ids import new_claim_id
from lockfast._records import damaged_cell, parsed
from lockfast._reentry import outside
from lockfast._time import FOREVER, Seconds, full_jitter, length
from lockfast._values import Stored, Write, Written
from lockfast._worlds import settled
from lockfast.engine.core import Engine
from lockfast.engine.reporting import reported_call
from lockfast.errors import BackendUnavailable, Conflict, StaleFence
from lockfast.primitives.names import json_text, whole

MAX_VALUE_CHARS = 1024 * 1024  # characters of JSON


class Versioned(NamedTuple):
    """What a cell held when it was read: `value, version = cell.read()`."""

    value: Any
    version: int  # 0 if nothing was ever written


class CellLogic:
    __slots__ = ("_engine", "_key", "name")

    def __init__(self, engine: Engine, name: str, key: str) -> None:
        self._engine = engine
        self.name = name
        self._key = key

    async def read(self) -> Versioned:
        stored = await self._stored()
        return Versioned(self._value(stored), stored.version)

    async def write(self, value: Any, if_version: int | None, fence: int | None) -> int:
        write = Write(new_claim_id(), _text(value), _number(if_version, "if_version"), _number(fence, "fence", 1))
        if if_version is not None:
            return await self._do(write)
        # Even a write over anything names the version it is over. Else one whose reply was lost could be done a second
        # time, over what another writer has made of the first since then.
        return await self._over_what_is_there(lambda stored: _ready(write._replace(if_version=stored.version)))

    async def delete(self, if_version: int | None) -> None:
        write = Write(new_claim_id(), None, _number(if_version, "if_version"))
        if if_version is not None:
            await self._do(write)
            return
        attempt, damaged = 0, False
        while (stored := await self._read()).damage or stored.version:  # 0: it is gone, by this call or another
            damaged = damaged or bool(stored.damage)
            written, failures = await self._ask(write if damaged else write._replace(if_version=stored.version))
            if written.outcome == "written":
                return
            if written.outcome == "damaged":
                if damaged:
                    raise damaged_cell(self.name, stored.damage or "its version cannot be read")
                damaged = True
                continue
            if failures and written.version:
                raise self._unknown(written.version)
            attempt += 1
            await self._engine.world.pause(full_jitter(attempt, self._engine.world.chance()))

    async def update(self, change: Callable[[Any], Any], wait: Seconds | None, fence: int | None) -> Versioned:
        """Read, change, write; again while others write in between. Raises Conflict after `wait` seconds of that."""
        give_up_at = FOREVER if wait is None else self._engine.now() + length(wait, "wait", zero=True)
        _number(fence, "fence", 1)
        value: Any = None

        async def changed(stored: Stored) -> Write:
            nonlocal value
            before = self._value(stored)
            with outside():
                changed = change(before)
            value = await settled(changed, self._engine.world)
            return Write(new_claim_id(), _text(value), stored.version, fence)

        version = await self._over_what_is_there(changed, give_up_at)
        return Versioned(value, version)

    async def _over_what_is_there(self, make: Callable[[Stored], Awaitable[Write]], give_up_at: float = FOREVER) -> int:
        """Write what is made of the cell as it is, and make it anew while others write in between."""
        engine, attempt = self._engine, 0
        while True:
            write = await make(await self._stored())
            try:
                return await self._do(write)
            except Conflict:
                attempt += 1
                pause = full_jitter(attempt, engine.world.chance())
                if engine.now() + pause >= give_up_at:
                    raise
                await engine.world.pause(pause)

    async def _do(self, write: Write) -> int:
        """Its version. Raises whatever became of it instead."""
        written, failures = await self._ask(write)
        if written.outcome == "written":
            return written.version
        if written.outcome == "damaged":
            raise damaged_cell(self.name, "its version cannot be read")
        if failures:
            raise self._unknown(written.version)
        if written.outcome == "stale":
            raise StaleFence(
                f"cell {self.name!r} was written with fence {written.fence}, so fence {write.fence} is out of date; "
                "nothing was changed",
                name=self.name,
                fence=write.fence,
                last=written.fence,
            )
        raise Conflict(
            f"cell {self.name!r} has version {written.version}, not {write.if_version}; nothing was changed",
            name=self.name,
            version=written.version,
            expected=write.if_version,
        )

    def _unknown(self, version: int) -> BackendUnavailable:
        """An earlier try may have gone through, and been overwritten since."""
        return BackendUnavailable(
            f"it is not known whether cell {self.name!r} was written: the reply was lost, and it has version "
            f"{version} now",
            name=self.name,
        )

    async def _ask(self, write: Write) -> tuple[Written, int]:
        """What became of it, and how often it went unanswered before."""
        if self._engine.events.wanted():
            facts = partial(_facts_of_write, write)
            return await reported_call(self._engine, "cell_write", "cell", self.name, lambda: self._send(write), facts)
        return await self._send(write)

    async def _send(self, write: Write) -> tuple[Written, int]:
        engine = self._engine
        engine.must_be_open()
        return await engine.insist(
            lambda within: engine.backend.write(self._key, write, within=within), engine.now() + engine.patience
        )

    async def _stored(self) -> Stored:
        stored = await self._read()
        if stored.damage:
            raise damaged_cell(self.name, stored.damage)
        return stored

    async def _read(self) -> Stored:
        if self._engine.events.wanted():
            ask, facts = self._fetch, _facts_of_read
            return (await reported_call(self._engine, "cell_read", "cell", self.name, ask, facts))[0]
        return (await self._fetch())[0]

    async def _fetch(self) -> tuple[Stored, int]:
        engine = self._engine
        engine.must_be_open()
        return await engine.insist(
            lambda within: engine.backend.read(self._key, within=within), engine.now() + engine.patience
        )

    def _value(self, stored: Stored) -> Any:
        if stored.value is None:
            return None
        try:
            return parsed(stored.value, MAX_VALUE_CHARS)
        except ValueError as error:
            raise damaged_cell(self.name, f"its value {error}") from None

    def __repr__(self) -> str:
        return repr(self.name)


def _facts_of_read(answer: tuple[Stored, int]) -> dict[str, Any]:
    """What its event says of it, as the next for a write."""
    stored, failures = answer
    facts = {"attempts": failures + 1, "version": stored.version, "outcome": "done"}
    return {**facts, "outcome": "error", "reason": "damaged", "detail": stored.damage} if stored.damage else facts


def _facts_of_write(write: Write, answer: tuple[Written, int]) -> dict[str, Any]:
    written, failures = answer
    facts = {"attempts": failures + 1, "version": written.version, "fence": write.fence}
    if written.outcome == "damaged":
        return {**facts, "outcome": "error", "reason": "damaged"}
    if written.outcome == "written":
        return {**facts, "outcome": "done"}
    return {**facts, "outcome": "unavailable" if failures else written.outcome}  # an earlier try may have gone through


async def _ready(write: Write) -> Write:
    return write


def _text(value: Any) -> str:
    return json_text(value, "a cell's value", MAX_VALUE_CHARS)


def _number(value: int | None, what: str, least: int = 0) -> int | None:
    return None if value is None else whole(value, what, least)
