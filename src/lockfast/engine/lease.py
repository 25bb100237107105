"""A lease: what its holder may rely on, and for how long.

Decides: the life-cycle, in one table; whether a lease is held, computed from the clock at each question.
Leaves to the keeper: to renew it, and to report its loss. Leaves to the backend: whether the record is still ours.
"""

from __future__ import annotations

import json
import time
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Literal

from lockfast._model import SHARED, Claim, Grant, Mode
from lockfast._time import Seconds
from lockfast.engine.not_held import error_if_not_held, notice_soon
from lockfast.engine.request import LeaseTaker, Request, Unique

if TYPE_CHECKING:
    from lockfast._worlds import Guard
    from lockfast.engine.core import Engine

State = Literal["held", "releasing", "released", "lost", "forked"]
Step = Literal["deadline", "denied", "release", "freed", "gone", "fork"]

LIFE: Final[dict[State, dict[Step, State]]] = {
    "held": {
        "deadline": "lost",  # we must stop believing: the server may grant again
        "denied": "lost",  # the server says that it is no longer ours
        "release": "releasing",
        "fork": "forked",  # this is the child's copy; the lease is the parent's
    },
    "releasing": {
        "release": "releasing",  # the last try failed; asked again
        "freed": "released",
        "gone": "lost",  # it had ended before it was released
        "fork": "forked",
    },
    "released": {},
    "lost": {},
    "forked": {},
}


class Lease(Unique):
    """One granted claim. `held` is computed from the clock, `lost` is remembered."""

    __slots__ = (
        "_asked_at",
        "_body",
        "_claim",
        "_deadline",
        "_depth",
        "_engine",
        "_fence",
        "_granted_at",
        "_guard",
        "_owner",
        "_reason",
        "_request",
        "_server_time",
        "_state",
        "_taker",
        "_ttl",
        "_waited",
    )

    def __init__(
        self, engine: Engine, request: Request, claim: Claim, grant: Grant, asked_at: float, waited: float
    ) -> None:
        ttl = request.terms.ttl
        self._engine = engine
        self._request = request
        self._claim = claim
        self._fence, self._server_time, since = grant
        self._ttl = ttl
        self._granted_at = asked_at if since is None or since < asked_at else since
        self._asked_at = asked_at if since is None else since
        self._waited = waited  # seconds in the queue
        # Counted from before the request was sent: the server's ttl cannot have started earlier.
        self._deadline = self._asked_at + ttl * engine.belief
        self._state: State = "held"
        self._reason = ""
        self._depth = 1  # how many times its owner has entered it
        self._owner: object = None  # the thread or task that asked
        self._taker: LeaseTaker | None = None  # the lock object that it was taken through
        self._guard: Guard | None = None  # over the body of the `with` that it protects
        self._body: FrameType | None = None  # the call that the body is part of

    # What was granted

    @property
    def name(self) -> str:
        """The name that was asked for, without its namespace."""
        return self._claim.terms.name

    @property
    def fence(self) -> int:
        """A number that only ever grows for this name. Pass it to what the lock protects."""
        return self._fence

    @property
    def holder(self) -> str:
        """Who holds it, as others see it."""
        return self._claim.terms.holder

    @property
    def claim_id(self) -> str:
        """The id of this one acquire: no other lease ever has it."""
        return self._claim.id

    @property
    def metadata(self) -> Any:
        """What was given to `lock(…, metadata=)`, as others see it."""
        text = self._claim.terms.metadata
        return None if text is None else json.loads(text)

    @property
    def mode(self) -> Mode:
        """ "exclusive", or "shared" for a semaphore's permit and a reader."""
        return self._claim.terms.mode

    @property
    def ttl(self) -> float:
        """How long each renewal lasts, in seconds."""
        return self._ttl

    @property
    def acquired_at(self) -> float:
        """Wall-clock time of the grant by the server's clock, for people to read."""
        return self._server_time

    @property
    def expires_at(self) -> float:
        """Wall-clock time at which it ends unless renewed, for people to read; moves with each renewal."""
        return time.time() + self._deadline - self._engine.now()

    # What is true now

    @property
    def held(self) -> bool:
        """True while no other claim can hold it. From the clock: right after a pause of any length, too."""
        return self._state == "held" and self._engine.now() < self._deadline

    @property
    def lost(self) -> bool:
        """True once it ended while it was still wanted. Never becomes False again."""
        return self._state == "lost" or (self._state == "held" and self._engine.now() >= self._deadline)

    @property
    def remaining(self) -> float:
        """Seconds for which it is certainly held; 0 if it is not."""
        return max(0.0, self._deadline - self._engine.now()) if self._state == "held" else 0.0

    def check(self) -> None:
        """Raises LeaseLost if it was lost, NotHeld if it was released or belongs to a forked parent."""
        if not self.held:
            notice_soon(self)
            raise self._not_held()

    def _check(self) -> None:
        """The same in the middle of an operation."""
        if not self.held:
            self._engine.keeper.notice(self)
            raise self._not_held()

    def _is_held(self) -> bool:
        return self.held

    _not_held = error_if_not_held

    def __repr__(self) -> str:
        left = f", {self.remaining:.3f}s left" if self._state == "held" else ""
        return f"<{type(self).__name__} {self.name!r} {self._state}{left}, fence {self._fence}, holder {self.holder!r}>"

    # What changes it. No other module writes a field of a lease.
    #
    # The first four call nothing. Python interrupts a thread, or lets another one run, only where something is called
    # or a loop begins anew. So an interrupt, or a step of another thread, comes before all that they do or after it.

    def _move(self, step: Step, reason: str = "") -> bool:
        """Take one step of the table; False if the current state has no such step, because another one came first."""
        steps = LIFE[self._state]
        if step not in steps:
            return False
        self._state = steps[step]
        self._reason = reason
        self._body = None  # it protects nothing any more, and must not keep a call alive
        return True

    def _adopt(
        self, owner: object, taker: LeaseTaker | None, guard: Guard | None, body: FrameType | None, entries: int = 0
    ) -> None:
        """That thread or task has it, through that lock object. The first `with` guards its body."""
        self._owner = owner
        self._taker = taker
        if guard is not None and self._guard is None:
            self._guard, self._body = guard, body
        self._depth += entries  # which it makes beside the first

    def _enter(self, guard: Guard | None, body: FrameType | None) -> None:
        """It protects the body of a `with` in that call, or of none."""
        self._guard = guard
        self._body = body

    def _count_entry(self, change: int) -> None:
        """Its owner has entered it again, or left it; `_release` ends the last entry."""
        self._depth += change

    def _renewed(self, asked_at: float, ttl: float) -> None:
        """Believe longer. Never shorter: the server does not shorten either, so answers may come in any order."""
        deadline = asked_at + ttl * self._engine.belief
        if deadline > self._deadline:
            self._deadline = deadline

    def _extended(self, asked_at: float, ttl: float) -> None:
        """Every renewal from now on lasts that long."""
        self._ttl = ttl
        self._renewed(asked_at, ttl)

    def _share(self) -> Claim:
        """The claim that shares from now on. Called before it is sent: then other claims may be granted beside it."""
        claim = Claim(self._claim.id, self._claim.terms._replace(mode=SHARED, limit=None, ttl=self._ttl))
        self._claim = claim
        return claim

    # What its holder asks for

    async def _extend(self, ttl: Seconds | None) -> None:
        wanted = self._ttl if ttl is None else self._engine.valid_ttl(ttl)
        self._check()
        await self._engine.extend(self, wanted)

    async def _downgrade(self) -> None:
        self._check()
        if self._request.terms.mode != SHARED:  # again if asked again: the last answer may have been lost
            await self._engine.downgrade(self)

    async def _release(self) -> bool:
        """Undo one entering of it; the last one ends it."""
        taker = self._taker
        return await (self._engine.release(self) if taker is None else taker.release_last(self))
