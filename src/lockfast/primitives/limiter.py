"""A rate limiter: a rate of permits in the long run, and a burst of them at once after a rest.

Decides: what a rate means, and which waiter goes first.
Leaves to the backend: counting, in one step on its own clock.

A caller that finds no permit waits for its turn: a lock beside the limiter, first come first served. Only the caller
that has the turn books ahead. So one that gives up gives back exactly what it booked, and a newcomer finds permits only
when no caller waits for them.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from lockfast._text import shown
from lockfast._time import FOREVER, Seconds, format_duration, length
from lockfast._values import NS_PER_S, Allowance, Booked, Rate
from lockfast.engine.core import Engine
from lockfast.engine.lease import Lease
from lockfast.engine.reporting import reported_call
from lockfast.engine.request import Request
from lockfast.errors import AcquireTimeout, LeaseLost, LockError
from lockfast.primitives.lock import LockLogic
from lockfast.primitives.names import positive, whole

SHIELDED_S = 1.0  # seconds for which a booking that is under way puts off a cancellation, to be given back
MAX_RATE = 1e300  # so that any whole number can be divided by
MAX_BOOKING_NS = 2.0**61  # nanoseconds: what a store can count, with room for the time that it is


def rate_of(rate: float, per: Seconds, burst: int | None) -> Rate:
    """Raises ValueError for a rate that makes no sense."""
    burst = 1 if burst is None else whole(burst, "burst", 1)
    spacing = length(per, "per") * NS_PER_S / min(positive(rate, "rate"), MAX_RATE)
    if burst > MAX_BOOKING_NS or spacing * burst > MAX_BOOKING_NS:
        raise ValueError(f"{burst} at {rate:g} in {format_duration(length(per, 'per'))} is too slow to be counted")
    return Rate(max(1, math.ceil(spacing)), burst)  # rounded so that the rate is never exceeded


class LimiterLogic:
    __slots__ = ("_engine", "_key", "_rate", "_turn", "name")

    def __init__(self, engine: Engine, name: str, key: str, rate: Rate, turn: Request) -> None:
        self._engine = engine
        self.name = name
        self._key = key
        self._rate = rate
        self._turn = turn

    async def try_acquire(self, cost: int) -> Allowance:
        self._check(cost)
        if self._engine.events.wanted():
            return await self._reported(cost, lambda: self._try(cost))
        return (await self._book(cost)).allowance

    async def acquire(self, cost: int, timeout: Seconds | None) -> Allowance:
        """Allowed, once its turn has come; not allowed if that is not within `timeout`, and then nothing is taken."""
        self._check(cost)
        wait = None if timeout is None else length(timeout, "timeout", zero=True)
        if self._engine.events.wanted():
            return await self._reported(cost, lambda: self._wait(cost, wait))
        return await self._wait(cost, wait)

    def _reported(self, cost: int, ask: Callable[[], Awaitable[Allowance]]) -> Awaitable[Allowance]:
        return reported_call(self._engine, "limited", "limiter", self.name, ask, _facts, cost)

    async def _try(self, cost: int) -> Allowance:
        return (await self._book(cost)).allowance

    async def _wait(self, cost: int, timeout: float | None) -> Allowance:
        now = self._engine.now
        give_up_at = FOREVER if timeout is None else now() + timeout
        answer = (await self._book(cost)).allowance
        if answer.allowed or now() + answer.retry_after > give_up_at:
            return answer

        async def book_ahead(turn: Lease) -> None:
            nonlocal answer
            turn._enter(None, turn._body)  # to lose the turn, as by a long pause, takes nothing from what was booked
            booked = await self._book(cost, give_up_at)
            answer = booked.allowance
            if answer.allowed:
                await self._wait_for(cost, booked)
                answer = answer._replace(retry_after=0.0)

        left = None if timeout is None else max(0.0, give_up_at - now())
        with suppress(AcquireTimeout, LeaseLost):
            await LockLogic(self._engine, self._turn.but(wait=left)).hold(book_ahead)
        return answer

    async def _wait_for(self, cost: int, booked: Booked) -> None:
        if booked.allowance.retry_after <= 0.0:
            return
        try:
            await self._engine.world.pause(booked.allowance.retry_after)
        except GeneratorExit:
            self._engine.behind(lambda rate: self._give_back(rate, cost, booked), self._rate)
            raise
        except BaseException:
            await self._engine.world.shielded(self._give_back(self._rate, cost, booked))
            raise

    async def _give_back(self, rate: Rate, cost: int, booked: Booked) -> None:
        with suppress(LockError):  # then its permits are lost; the caller must see what interrupted it, not this
            await self._engine.backend.unthrottle(self._key, rate, cost=cost, until=booked.until, within=1.0)

    async def _book(self, cost: int, give_up_at: float = 0.0) -> Booked:
        """Permits for now, or for some moment until then."""
        engine = self._engine
        engine.must_be_open()

        taken: list[Booked] = []

        async def ask(within: float) -> None:
            patience = max(0.0, give_up_at - engine.now())  # a try that went unanswered has used some of it
            within = min(within, SHIELDED_S)
            taken.append(
                await engine.backend.throttle(self._key, self._rate, cost=cost, patience=patience, within=within)
            )

        def ask_shielded(within: float) -> Awaitable[None]:
            return ask(within) if engine.backend.capabilities.instant else engine.world.shielded(ask(within))

        try:
            await engine.insist(ask_shielded, engine.now() + engine.patience)
        except BaseException as error:
            if taken and taken[0].allowance.allowed:  # cancelled while the answer was on its way
                if isinstance(error, GeneratorExit):
                    engine.behind(lambda rate: self._give_back(rate, cost, taken[0]), self._rate)
                else:
                    await engine.world.shielded(self._give_back(self._rate, cost, taken[0]))
            raise
        return taken[0]

    def _check(self, cost: int) -> None:
        if whole(cost, "cost", 1) > self._rate.burst:
            raise ValueError(f"cost {cost} is more than limiter {shown(self.name)} gives at once: {self._rate.burst}")

    def __repr__(self) -> str:
        return f"{self.name!r} one each {format_duration(self._rate.interval / NS_PER_S)}, burst {self._rate.burst}"


def _facts(answer: Allowance) -> dict[str, Any]:
    """What its event says of it."""
    return {"outcome": "allowed" if answer.allowed else "refused", "retry_after": answer.retry_after}
