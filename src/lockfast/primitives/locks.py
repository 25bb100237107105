"""All locks of one backend: what can be made of them, and who holds them.

Decides: what is checked before anything is sent, and how names are filed under the namespace.
"""

from __future__ import annotations

import builtins
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

from lockfast._bounded import BoundedSet
from lockfast._model import EXCLUSIVE, SHARED, Diagnosis, LockInfo, Mode, Terms
from lockfast._records import listed
from lockfast._text import shown
from lockfast._time import Seconds, length
from lockfast.backends.optional import check_up, name_on
from lockfast.engine.core import Engine
from lockfast.engine.reporting import report_broken
from lockfast.engine.request import Request
from lockfast.observe.events import Primitive
from lockfast.primitives.lock import LockLogic
from lockfast.primitives.names import (
    LockName,
    aside,
    flaw_in,
    metadata_text,
    qualify,
    unqualify,
    valid,
    valid_prefix,
    whole,
)

if TYPE_CHECKING:
    from lockfast.observe.stats import Counting, Stats
    from lockfast.primitives.cell import CellLogic
    from lockfast.primitives.election import ElectionLogic
    from lockfast.primitives.limiter import LimiterLogic
    from lockfast.primitives.multi import MultiLease, MultiLogic
    from lockfast.primitives.rwlock import RWLockLogic

TURN_TTL_S: Final = 10.0  # of the turn of a waiter at a limiter
MAX_UNUSABLE_NAMES: Final = 10_000  # that are remembered
MAX_KNOWN_REQUESTS: Final = 1024  # of lock objects that were made lately
MAX_KNOWN_OPTIONS: Final = 64  # with which they were made: few, where there are many names


class LocksLogic:
    def __init__(self, engine: Engine, namespace: str) -> None:
        self.engine = engine
        self.namespace = engine.namespace = valid(namespace, "namespace")
        valid(engine.holder, "holder")
        # `with locks.lock(name):` makes a lock object for each use. By type too: True is no ttl, but equals 1.
        self._known_request = lru_cache(MAX_KNOWN_REQUESTS, typed=True)(self._plain_request)
        self._known_options = lru_cache(MAX_KNOWN_OPTIONS, typed=True)(self._request_of_any_name)
        self._counting: Counting | None = None  # once `stats` was called
        self._unusable_names = BoundedSet[str](MAX_UNUSABLE_NAMES)  # listed as damaged: break_lock takes them

    def _request(
        self,
        name: LockName,
        ttl: Seconds,
        wait: Seconds | None = None,
        renew: bool = True,
        reentrant: bool = False,
        min_hold: Seconds = 0,
        max_hold: Seconds | None = None,
        renew_every: Seconds | None = None,
        pattern: str | None = None,
        *,
        metadata: Any = None,
        on_lost: Callable[[Any], object] | None = None,
        mode: Mode = EXCLUSIVE,
        limit: int | None = None,
        holder: str | None = None,
        primitive: Primitive = "lock",
    ) -> Request:
        """What each acquire asks for. Raises ValueError for what makes no sense; nothing is sent."""
        if mode == SHARED:
            self.engine.must_be_able("semaphores and read/write locks", self.engine.backend.capabilities.shared)
        if limit is not None:
            self.engine.must_be_able("semaphores", self.engine.backend.capabilities.limits)
        text = metadata_text(metadata)
        if text is not None:
            able = self.engine.backend.capabilities.metadata
            self.engine.must_be_able("place for metadata, as postgresql:// has in its lock table", able)
        name = valid(name_on(self.engine.backend, name))
        terms = Terms(
            key=qualify(self.namespace, name),
            name=name,
            holder=self.engine.holder if holder is None else valid(holder, "candidate"),
            ttl=self.engine.valid_ttl(ttl),
            mode=mode,
            limit=limit,
            metadata=text,
        )
        if on_lost is not None and not callable(on_lost):
            raise ValueError(f"on_lost must be callable, not {shown(on_lost)}")
        for flag, value in (("renew", renew), ("reentrant", reentrant)):
            if not isinstance(value, bool):
                raise ValueError(f"{flag} must be True or False, not {shown(value)}")
        min_hold = length(min_hold, "min_hold", most=self.engine.backend.capabilities.max_ttl, zero=True)
        if min_hold:
            self.engine.must_be_able("min_hold: nothing expires there", self.engine.backend.capabilities.expires)
        if not renew and (max_hold is not None or renew_every is not None):
            raise ValueError("max_hold and renew_every are about renewals, so they make no sense with renew=False")
        every, longest = self.engine.valid_renewals(terms.ttl, renew_every, max_hold)
        return Request(
            terms=terms,
            wait=None if wait is None else length(wait, "wait", zero=True),
            renew=renew,
            reentrant=reentrant,
            min_hold=min_hold,
            max_hold=longest,
            renew_every=every,
            on_lost=on_lost,
            named=holder is not None,
            primitive=primitive,
            pattern=None if pattern is None else valid(pattern, "pattern"),
        )

    def lock(
        self,
        name: LockName,
        metadata: Any = None,
        on_lost: Callable[[Any], object] | None = None,
        *options: Any,
        **named: Any,
    ) -> LockLogic:
        """The other `options` are those of `_request`, in its order, or `named`."""
        if type(name) is not str or metadata is not None or on_lost is not None:
            return LockLogic(self.engine, self._request(name, *options, metadata=metadata, on_lost=on_lost, **named))
        try:
            return LockLogic(self.engine, self._known_request(self.engine.holder, name, *options, **named))
        except TypeError:  # an option that cannot be hashed; no valid one is like that
            return LockLogic(self.engine, self._request(name, *options, **named))

    def _plain_request(self, holder: str, name: str, *options: Any, **named: Any) -> Request:
        """Remembered by the holder too: in the child of a fork it is another."""
        like, name = self._known_options(holder, *options, **named), valid(name)
        terms = Terms(qualify(self.namespace, name), name, *like.terms[2:])
        same = (like.wait, like.renew, like.reentrant, like.min_hold, like.on_lost, like.named, like.renew_every)
        return Request(terms, *same, like.max_hold, like.primitive, like.pattern)  # as `but`, in half the time

    def _request_of_any_name(self, _holder: str, *options: Any, **named: Any) -> Request:
        return self._request("any", *options, **named)

    def semaphore(self, name: str, limit: int, **options: Any) -> LockLogic:
        options |= {"mode": SHARED, "limit": whole(limit, "limit", 1), "primitive": "semaphore"}
        return LockLogic(self.engine, self._request(name, **options))

    # The rest is imported when it is used: most programs need only locks.

    def rwlock(self, name: LockName, **options: Any) -> RWLockLogic:
        from lockfast.primitives.rwlock import RWLockLogic

        options["primitive"] = "rwlock"
        return RWLockLogic(self.engine, self._request(name, mode=SHARED, **options), self._request(name, **options))

    def all(
        self,
        names: Sequence[LockName],
        lease_type: type[MultiLease],
        on_lost: Callable[[Any], object] | None,
        **options: Any,
    ) -> MultiLogic:
        from lockfast.primitives.multi import MultiLogic

        if not names:
            raise ValueError("all() takes at least one name")
        requests = [self._request(name, on_lost=on_lost, primitive="all", **options) for name in names]
        asked = [request.terms.name for request in requests]
        twice = sorted({name for name in asked if asked.count(name) > 1})
        if twice:
            raise ValueError(f"all() takes each name once; twice: {', '.join(map(shown, twice))}")
        return MultiLogic(self.engine, lease_type, requests, on_lost)

    def election(self, name: str, candidate: str | None, **options: Any) -> ElectionLogic:
        from lockfast.primitives.election import ElectionLogic

        self.engine.must_be_able("elections", self.engine.backend.capabilities.observe)
        return ElectionLogic(self.engine, self._request(name, holder=candidate, primitive="election", **options))

    def limiter(self, name: str, rate: float, per: Seconds, burst: int | None) -> LimiterLogic:
        from lockfast.primitives.limiter import LimiterLogic, rate_of

        self.engine.must_be_able("limiters", self.engine.backend.capabilities.limiter)
        name = valid(name, "limiter name")
        turn = self._request(name, ttl=TURN_TTL_S, primitive="limiter_turn")
        mine = turn.terms._replace(key=aside(turn.terms.key, "turn"), name=f"{name} (a limiter's turn)")
        turn = turn.but(terms=mine)
        return LimiterLogic(self.engine, name, qualify(self.namespace, name), rate_of(rate, per, burst), turn)

    def cell(self, name: str) -> CellLogic:
        from lockfast.primitives.cell import CellLogic

        self.engine.must_be_able("cells", self.engine.backend.capabilities.cell)
        name = valid(name, "cell name")
        return CellLogic(self.engine, name, qualify(self.namespace, name))

    async def inspect(self, name: LockName) -> LockInfo:
        name = valid(name_on(self.engine.backend, name))
        key = qualify(self.namespace, name)
        self.engine.must_be_open()
        info = await self.engine.once(partial(self.engine.backend.inspect, key))
        return info._replace(name=name)

    async def list(self, prefix: str) -> builtins.list[LockInfo]:
        prefix = valid_prefix(prefix)
        self.engine.must_be_open()
        found = await self.engine.once(partial(self.engine.backend.list, qualify(self.namespace, prefix)))
        named = ((unqualify(self.namespace, info.name), info) for info in found)
        return [self._listed(name, info) for name, info in named if name is not None]

    def _listed(self, name: str, info: LockInfo) -> LockInfo:
        flaw = flaw_in(name)
        if not flaw:
            return info._replace(name=name)
        self._unusable_names.add(name)
        return info._replace(name=name, damage=listed([info.damage, f"a lock name {flaw}"]))

    async def break_lock(self, name: LockName) -> LockInfo:
        engine = self.engine
        try:
            name = valid(name_on(engine.backend, name))
        except ValueError:
            if not isinstance(name, str) or type(name) is not str or name not in self._unusable_names:
                raise
        key = qualify(self.namespace, name)
        engine.must_be_open()
        before = await engine.once(partial(engine.backend.break_, key))
        for was in before.holders:
            engine.broken.add(was.claim_id)
            if engine.events.noted():
                report_broken(engine, name, was)
        return before._replace(name=name)

    async def doctor(self) -> Diagnosis:
        self.engine.must_be_open()
        return Diagnosis(tuple(await check_up(self.engine.backend)))

    def stats(self) -> Stats:
        from lockfast.observe.stats import Counting

        engine = self.engine
        with engine.mutex:
            counting = self._counting = self._counting or Counting(engine.now)
            if not engine.events.has(counting):
                engine.events.listen(counting)
        waiting = [id for id in list(engine.waiting) if id not in engine.keeper.leases and id not in engine.observing]
        return counting.stats(len(waiting), sum(lease.held for lease in list(engine.keeper.leases.values())))

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
