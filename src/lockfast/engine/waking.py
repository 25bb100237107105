"""One claim that waits: how soon it asks again when it is woken, and which wake-up makes it the holder at once.

Decides: how many spurious wake-ups make it ask, however many come; whether a grant in a wake-up is believed.
Leaves to the backend: what wakes it, and how it sleeps. Leaves to the caller: what to ask, and what was in vain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lockfast._model import Busy, Claim, Grant
from lockfast._time import FOREVER
from lockfast._values import NS_PER_S, Pacer, Rate
from lockfast.engine.request import Request

if TYPE_CHECKING:
    from lockfast.engine.core import Engine

IN_VAIN: Final = Rate(NS_PER_S // 50, 50)  # requests of one claim, 50 a second in the long run: three percent of a core
FREE_AFTER_NEWS: Final = 2  # one asks whether there is more, one is woken by what the last one has found already


class Waking:
    """Every process that knows the claim's id can wake it, at any rate; in such a flood it asks at a rate of its own.

    A real wake-up then waits for one interval at most. One that leads to a grant or to news is never put off by another
    of its kind.
    """

    __slots__ = ("_claim", "_engine", "_free", "_pacer", "_woken")

    def __init__(self, engine: Engine, claim: Claim) -> None:
        self._engine = engine
        self._claim = claim
        self._pacer: Pacer | None = None  # once a wake-up was in vain
        self._woken = False  # the last time
        self._free = 0  # fruitless requests that are not counted

    def found(self) -> None:
        """The last request was not in vain, though the claim goes on waiting."""
        self._free = FREE_AFTER_NEWS

    async def wait(self, seconds: float, give_up_at: float = FOREVER) -> bool | Grant:
        """As the backend's `wait`, after a request in vain."""
        engine, counts = self._engine, self._woken and not self._free
        if self._free:
            self._free -= 1
        woken = await engine.backend.wait(self._claim, seconds)
        self._woken = bool(woken)
        if counts and self._woken:
            now = engine.now()
            pacer = self._pacer = self._pacer or Pacer(IN_VAIN)
            pause = min(pacer.pause(now), give_up_at - now)
            if pause > 0:
                await engine.world.pause(pause)
        return woken


def handed_over(engine: Engine, request: Request, woken: bool | Grant, busy: Busy, asked_at: float) -> Grant | None:
    """The grant that a wake-up carried, if it is believed; else the claim has to ask.

    `busy` is the last answer, to a request that was sent at `asked_at`. A grant with a higher fence came after that
    answer, so its ttl cannot have started before that request. With another fence it is older: its wake-up may have
    been under way for longer than its ttl.

    A lease that is not renewed is asked for, because it has to last for its ttl; so is one of which little is left.
    Where the store does not hand over, no wake-up of its own carries a grant, and one that does is forged.
    """
    if not isinstance(woken, Grant) or not request.renew or not engine.backend.capabilities.hands_over:
        return None
    if busy.last_fence is None or woken.fence <= busy.last_fence:
        return None
    ttl = request.terms.ttl
    left = asked_at + ttl * engine.belief - engine.now()
    if left < ttl / 2:
        return None
    fence, acquired_at, _ = woken
    return tuple.__new__(Grant, (fence, acquired_at, asked_at))  # costs a call less than `Grant()`
