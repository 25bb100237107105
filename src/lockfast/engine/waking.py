"""One claim that waits: how soon it asks again when it is woken.

Decides: how many spurious wake-ups make it ask, however many come.
Leaves to the backend: what wakes it, and how it sleeps. Leaves to the caller: what to ask, and what was in vain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lockfast._model import Claim
from lockfast._time import FOREVER
from lockfast._values import NS_PER_S, Pacer, Rate

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
        self._pacer = Pacer(IN_VAIN)
        self._woken = False  # the last time
        self._free = 0  # fruitless requests that are not counted

    def found(self) -> None:
        """The last request was not in vain, though the claim goes on waiting."""
        self._free = FREE_AFTER_NEWS

    async def wait(self, seconds: float, give_up_at: float = FOREVER) -> bool:
        """As the backend's `wait`, after a request in vain."""
        engine, counts = self._engine, self._woken and not self._free
        self._free = max(0, self._free - 1)
        self._woken = await engine.backend.wait(self._claim, seconds)
        if counts and self._woken:
            now = engine.now()
            pause = min(self._pacer.pause(now), give_up_at - now)
            if pause > 0:
                await engine.world.pause(pause)
        return self._woken
