"""All locks of one backend: what can be made from it and asked of it.

Decides: what is checked before anything is sent, and how names are filed under the namespace.
"""

from __future__ import annotations

import builtins
import warnings
from collections.abc import Callable
from typing import Any

from holdfast._model import LockInfo, Terms
from holdfast._time import Seconds, length
from holdfast.engine.core import Engine
from holdfast.engine.lease import Request
from holdfast.observe.events import Event
from holdfast.primitives.lock import LockLogic
from holdfast.primitives.names import metadata_text, qualify, unqualify, valid


class LocksLogic:
    def __init__(self, engine: Engine, namespace: str) -> None:
        self.engine = engine
        self.namespace = valid(namespace, "namespace")
        valid(engine.holder, "holder")

    def lock(
        self,
        name: str,
        ttl: Seconds,
        wait: Seconds | None,
        renew: bool,
        reentrant: bool,
        metadata: Any,
        min_hold: Seconds,
        on_lost: Callable[[Any], object] | None,
    ) -> LockLogic:
        terms = Terms(
            key=qualify(self.namespace, valid(name)),
            name=name,
            holder=self.engine.holder,
            ttl=self.engine.valid_ttl(ttl),
            metadata=metadata_text(metadata),
        )
        if on_lost is not None and not callable(on_lost):
            raise ValueError(f"on_lost must be callable, not {on_lost!r}")
        for flag, value in (("renew", renew), ("reentrant", reentrant)):
            if not isinstance(value, bool):
                raise ValueError(f"{flag} must be True or False, not {value!r}")
        request = Request(
            terms=terms,
            wait=None if wait is None else length(wait, "wait", zero=True),
            renew=renew,
            reentrant=reentrant,
            min_hold=length(min_hold, "min_hold", zero=True),
            on_lost=on_lost,
        )
        return LockLogic(self.engine, request)

    async def inspect(self, name: str) -> LockInfo:
        key = qualify(self.namespace, valid(name))
        self.engine.must_be_open()
        info = await self.engine.backend.inspect(key)
        return info._replace(name=name)

    async def list(self, prefix: str) -> builtins.list[LockInfo]:
        if not isinstance(prefix, str):
            raise ValueError(f"a prefix must be a string, not {prefix!r}")
        self.engine.must_be_open()
        found = await self.engine.backend.list(qualify(self.namespace, prefix))
        named = ((unqualify(self.namespace, info.name), info) for info in found)
        return [info._replace(name=name) for name, info in named if name is not None]

    async def break_lock(self, name: str) -> LockInfo:
        engine = self.engine
        key = qualify(self.namespace, valid(name))
        engine.must_be_open()
        before = await engine.backend.break_(key)
        if engine.events.wanted():
            for was in before.holders:
                detail = f"broken by {engine.holder!r}"
                engine.events.tell(Event("broken", name, was.holder, was.claim_id, was.fence, detail=detail))
        return before._replace(name=name)

    async def close(self) -> None:
        await self.engine.close()

    def warn_if_open(self, source: object) -> None:
        """For `__del__`: say so if leases are still held, and do nothing else about it."""
        engine = self.engine
        if not engine.closed and engine.keeper.leases:
            names = sorted({lease.name for lease in engine.keeper.leases.values()})
            warnings.warn(
                f"Locks dropped while holding {names}; close() it", ResourceWarning, source=source, stacklevel=2
            )

    def __repr__(self) -> str:
        held = len(self.engine.keeper.leases)
        state = "closed" if self.engine.closed else f"{held} held"
        return f"namespace={self.namespace!r} holder={self.engine.holder!r} on {self.engine.backend!r}, {state}"
