"""Claims that are still to be abandoned, because the backend did not answer when that was tried.

Decides: how many threads or tasks try it again, in which order, and when time has ended a claim.
Leaves to the engine: the pauses between two tries, and to report an outage. Leaves to `close`: what is left then.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from lockfast._model import PRESENCE_S, Claim
from lockfast._time import FOREVER
from lockfast.errors import BackendUnavailable, LockError

if TYPE_CHECKING:
    from lockfast.engine.core import Engine

MAX_WORKERS: Final = 4  # more than one: a name, or a server of a cluster, that hangs must not hold up the others


class PendingAbandon(NamedTuple):
    claim: Claim
    until: float  # then it has ended by itself


class Unfinished:
    """However many claims there are, a few threads or tasks abandon them, one after the other."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pending: dict[str, PendingAbandon] = {}  # by claim id, until it is abandoned or over
        self._queue: deque[str] = deque()  # those of them that no worker has taken
        self._last_until = 0.0  # when the last of them is over
        self._workers: set[object] = set()  # each from before it is started until it ends

    def __bool__(self) -> bool:
        return bool(self._pending)

    def __contains__(self, claim: Claim) -> bool:
        return claim.id in self._pending

    @property
    def claims(self) -> list[Claim]:
        """All of them, also those that a worker has taken."""
        return [pending.claim for pending in list(self._pending.values())]

    def note(self, claim: Claim) -> None:
        """The caller abandons it, or else `close` does. No worker takes it."""
        ends = self._engine.backend.capabilities.expires
        until = self._engine.now() + claim.terms.ttl + PRESENCE_S if ends else FOREVER
        self._pending[claim.id] = PendingAbandon(claim, until)
        self._last_until = max(self._last_until, until)

    def add(self, claim: Claim) -> None:
        """Abandon it in the background, if there is a thread or an event loop for it. Else `close` does, or its ttl."""
        self.note(claim)
        self._enqueue(claim)
        self._start_worker()

    def done(self, claim: Claim) -> None:
        """It is abandoned, or its time is over."""
        self._pending.pop(claim.id, None)

    def begin_again(self) -> None:
        """In a new event loop: the workers in the old one never go on."""
        self._workers = set()
        self._queue = deque(self._pending)
        for _ in range(min(MAX_WORKERS, len(self._queue))):
            self._start_worker()

    def _enqueue(self, claim: Claim) -> None:
        with self._engine.mutex:
            self._queue.append(claim.id)

    def _start_worker(self) -> None:
        """Unless there are enough of them."""
        worker = object()
        started = False
        try:
            with self._engine.mutex:
                if len(self._workers) >= min(MAX_WORKERS, len(self._pending)):
                    return
                self._workers.add(worker)
            started = self._engine.spawn(lambda: self._work(worker), "lockfast-abandon")
        finally:
            if not started:  # or an interrupt came. Should it run all the same, another beside it does no harm
                self._workers.discard(worker)

    async def _work(self, worker: object) -> None:
        self._workers.add(worker)
        try:
            while self._goes_on(worker):
                until = self._last_until
                try:
                    await self._engine.insist(self._abandon_next, until)
                except BackendUnavailable:  # the next try would come after that
                    self._leave_to_time(until)
        except BaseException:
            self._workers.discard(worker)
            raise

    def _goes_on(self, worker: object) -> bool:
        """False is the end of the worker: the next claim starts another."""
        with self._engine.mutex:
            if not self._queue:
                self._workers.discard(worker)
            return bool(self._queue)

    async def _abandon_next(self, within: float) -> None:
        """One of them. If the backend does not answer, the others are tried before it is tried again."""
        pending = self._next()
        if pending is None:
            return
        claim, until = pending
        try:
            await self._engine.backend.abandon(claim, within=min(within, max(0.01, until - self._engine.now())))
        except BaseException as error:
            if not isinstance(error, LockError) or getattr(error, "transient", False):
                self._enqueue(claim)
                raise
            # Else the store cannot be used at all, and another try would not change that.
        self.done(claim)

    def _leave_to_time(self, until: float) -> None:
        """Drop those that wait for a worker and are over by then."""
        with self._engine.mutex:
            waiting = [pending for id in self._queue if (pending := self._pending.get(id)) is not None]
        for pending in waiting:
            if pending.until <= until:
                self.done(pending.claim)

    def _next(self) -> PendingAbandon | None:
        """The first that is not over."""
        while self._queue:
            try:
                pending = self._pending.get(self._queue.popleft())
            except IndexError:
                return None  # another worker has taken the last
            if pending is not None and pending.until > self._engine.now():
                return pending
            if pending is not None:
                self.done(pending.claim)
        return None
