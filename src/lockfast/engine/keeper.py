"""Keep leases alive, and notice when one is no longer ours.

Decides: when to renew, and when to stop believing.
Leaves to the backend: whether the record is still ours. Leaves to the caller: what to do after a loss.

One keeper serves all leases of a `Locks`. It sleeps until the first lease is due, renews all that are due about
then in one request, and never waits for that request: a deadline that passes meanwhile is noticed in time.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

from lockfast._bounded import BoundedDict
from lockfast._model import Renewal
from lockfast._reentry import start_put_off
from lockfast._time import pause_before_retry
from lockfast.engine.lease import OUT_OF_TIME, Lease, Step
from lockfast.errors import BackendUnavailable

if TYPE_CHECKING:
    from lockfast._worlds import Signal
    from lockfast.engine.core import Engine

Held = tuple[str, int]  # a claim's id and its fence: the same claim may be granted again later
NEVER: Final = float("inf")
WATCHED: Final = ("held", "releasing")
IDLE: Final = 10.0  # seconds without leases after which the loop ends
HANGING: Final = 0.25  # seconds after which an unanswered renewal no longer holds up the others
FORGOTTEN: Final = 100  # leases that are over and may stay in the heap, beside as many as are held
EARLY_LOSSES: Final = 1000  # that are remembered for leases which may never come
EARLY: Final = 0.05  # of a ttl: leases due this soon are renewed along, so that renewals come in batches


class _Batch:
    """Leases that are renewed in one request, watched until it is answered."""

    __slots__ = ("leases", "watch_until")

    def __init__(self, leases: list[Lease]) -> None:
        self.leases = leases
        self.watch_until = min(lease._deadline for lease in leases)  # when the first of them is lost unanswered


class Keeper:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.leases: dict[str, Lease] = {}  # all that are held, by claim id
        self._fresh: dict[str, Lease] = {}  # those to look at as soon as the loop is awake
        # When to look at which; only the loop touches it. What is renewed together falls due together, so the heap
        # has an entry for each batch rather than for each lease.
        self._heap: list[tuple[float, int, list[Lease]]] = []
        self._in_heap = 0  # leases there
        self._tiebreak = count()
        self._next_look = NEVER  # until when the loop sleeps at most; set before it looks at _fresh again
        self._signal: Signal | None = None  # there is one while the loop runs, or is about to
        self._running: Signal | None = None  # the same, once the loop has begun
        self._due: list[_Batch] = []  # to be renewed next
        self._unanswered: list[_Batch] = []  # due, or asked for and not answered yet
        self._renewers = 0  # those that renew: one, or more while requests hang
        self._asked_at = 0.0  # when one of them last sent a request
        self._early = BoundedDict[Held, str](EARLY_LOSSES)  # losses that were told before the lease was kept, and why
        self._closed = False

    def keep(self, lease: Lease) -> None:
        """From now on: renew it, and tell of its loss."""
        id = lease._claim.id
        self.leases[id] = lease
        self._fresh[id] = lease
        if self._early and (reason := self._early.pop((id, lease._fence), "")):
            self.lose(lease, "denied", reason)
            return
        due = lease._renew_at if lease._request.renew else lease._deadline
        if due < self._next_look or self._signal is None:  # as in `look_by`, which costs a call
            try:
                self.look_by(due)
            except RuntimeError:
                self.forget(lease)  # the caller does not get it
                raise

    def look_by(self, at: float) -> None:
        """Look no later than that. Raises RuntimeError if no thread or task can be started for it."""
        if at < self._next_look or self._signal is None:
            self._next_look = at  # so that many short holds, each gone when the loop looks, wake it once
            self._wake()

    def forget(self, lease: Lease) -> None:
        """It is released or lost: nothing more to do for it."""
        id = lease._claim.id
        self.leases.pop(id, None)
        self._fresh.pop(id, None)

    def notice(self, lease: Lease) -> None:
        """Somebody looked at the clock before the loop did."""
        if lease._state == "held" and self._engine.now() >= lease._deadline:
            self.lose(lease, "deadline", OUT_OF_TIME)

    def look_again(self, lease: Lease) -> None:
        """Its times have changed."""
        id = lease._claim.id
        if id in self.leases:
            self._fresh[id] = lease
            self._wake()

    def close(self) -> None:
        """Leases that are still kept are no longer renewed. The loop ends, as soon as no request is unanswered."""
        self._closed = True
        if self._signal is not None:
            self._signal.set()

    def poke(self) -> None:
        """Something was put off: start it, if the loop runs. Takes no mutex."""
        signal = self._signal
        if signal is not None:
            signal.set()

    def _wake(self) -> None:
        started: Signal | None = None
        try:
            with self._engine.mutex:
                if self._signal is None and (not self._closed or self._engine.outage.unanswered):
                    self._signal = started = self._engine.world.signal()
                signal = self._signal
            if started is not None:
                self._engine.world.spawn(self._run(started), "lockfast-keeper")
            elif signal is not None:
                signal.set()
        except BaseException:  # no thread to be had, or an interrupt
            if started is not None:
                self._call_off(started)
            raise

    def _call_off(self, signal: Signal) -> None:
        """The loop with that signal does not begin, unless it has begun; the next lease starts another."""
        with self._engine.mutex:
            if self._signal is signal and self._running is not signal:
                self._end_loop()

    def _end_loop(self) -> None:
        """The next lease starts another."""
        self._signal = self._running = None
        self._next_look = NEVER

    def _begin_loop(self, signal: Signal) -> bool:
        """False if it was called off before."""
        with self._engine.mutex:
            if self._signal is not signal:
                return False
            self._running = signal
            return True

    async def _run(self, signal: Signal) -> None:
        if not self._begin_loop(signal):
            return
        busy_at = self._engine.now()  # when there was something to do last
        try:
            while not self._closed or self._is_needed(signal):
                start_put_off()
                now = self._engine.now()
                if self._closed:
                    await signal.wait(min(IDLE, self._engine.outage.look(now) - now))
                    continue
                if self.leases or self._engine.outage.unanswered:
                    busy_at = now
                self._look(now)
                soonest = min(self._see_to_due(now), self._watch_unanswered(now), self._first_in_heap())
                soonest = min(soonest, self._engine.on_lost.look(now))
                promised = self._next_look if self._next_look > now else NEVER
                self._next_look = min(promised, soonest)
                self._next_look = min(self._next_look, self._engine.outage.look(now))  # a request after it wakes us
                if self._fresh:
                    continue  # it came since we looked, when there was no need to wake us
                woken = await signal.wait(min(busy_at + IDLE, self._next_look) - self._engine.now())
                if woken:
                    busy_at = self._engine.now()
                    continue
                idle = self._engine.now() >= busy_at + IDLE and not self.leases
                if idle and self._retire() and not self._take_up(signal):
                    return
        except Exception as error:
            if self._signal is signal:
                self._end_loop()
            self._give_up(error)
            raise
        except BaseException as error:  # an interrupt that fell into it: another goes on
            if self._signal is signal:
                self._end_loop()
            if error.__class__ is not GeneratorExit:  # else its event loop is gone, see `begin_again`
                try:
                    self._go_on()
                except RuntimeError as reason:
                    self._give_up(reason)
            raise

    def _go_on(self) -> None:
        """In another loop. Raises RuntimeError if none can be started."""
        with self._engine.mutex:
            self._fresh.update(self.leases)
        if self.leases and not self._closed:
            self._wake()

    def _give_up(self, error: Exception) -> None:
        """No lease can be renewed any more: its holder learns that now, not at the deadline."""
        for lease in list(self.leases.values()):
            self.lose(lease, "deadline", f"renewing failed: {type(error).__name__}: {error}")

    def begin_again(self) -> None:
        """In a new event loop, after the old one was closed with all that ran in it: what is held is kept from there.

        A body that ran in the old one never goes on, so what it held is lost.
        """
        with self._engine.mutex:
            self._end_loop()
            self._forget_heap()
            self._due, self._unanswered, self._renewers = [], [], 0
        for lease in list(self.leases.values()):
            lease._renewing = False
            if lease._guard is not None:
                self.lose(lease, "deadline", "the event loop that its body ran in was closed")
        self._go_on()

    def _forget_heap(self) -> None:
        self._heap.clear()
        self._in_heap = 0

    def _first_in_heap(self) -> float:
        return self._heap[0][0] if self._heap else NEVER

    def _retire(self) -> bool:
        """Nothing to keep for a while: end the loop, unless a lease comes this very moment."""
        with self._engine.mutex:
            if not self._fresh and not self._unanswered and not self._engine.outage.unanswered:
                self._forget_heap()  # it may still name leases that were released long before they were due
                self._end_loop()
            return self._signal is None

    def _is_needed(self, signal: Signal) -> bool:
        """After `close`: to watch over requests that are not answered. One that is sent later starts another loop."""
        with self._engine.mutex:
            if self._engine.outage.unanswered:
                return self._signal is signal
            if self._signal is signal:
                self._end_loop()
        return self._take_up(signal)

    def _take_up(self, signal: Signal) -> bool:
        """Whether the loop goes on: something came while it ended, and counted on it, and no other has begun."""
        with self._engine.mutex:
            fresh = self._fresh and not self._closed
            wanted = self._signal is None and bool(fresh or self._engine.outage.unanswered)
            if wanted:
                self._signal = self._running = signal
            return wanted

    def _look(self, now: float) -> None:
        """Look at every lease whose time has come."""
        due: list[Lease] = []
        fresh: list[Lease] = []
        with suppress(KeyError):  # until it is empty, also if another thread takes the last one out
            while True:
                fresh.append(self._fresh.popitem()[1])
        self._look_at(fresh[::-1], now, due)
        while self._heap and self._is_time(*self._heap[0], now):
            look_at, _, group = heapq.heappop(self._heap)
            self._in_heap -= len(group)
            # Those that were looked at since stand elsewhere in the heap.
            self._look_at([lease for lease in group if lease._look_at == look_at], now, due)
        size = self._engine.backend.capabilities.renew_batch
        batches = [_Batch(due[start : start + size]) for start in range(0, len(due), size)]
        with self._engine.mutex:
            self._due += batches
            self._unanswered += batches

    def _is_time(self, look_at: float, _: int, group: list[Lease], now: float) -> bool:
        first = group[0]
        return look_at <= now or (look_at == first._look_at == first._renew_at and _renewable_at(first) <= now)

    def _look_at(self, leases: list[Lease], now: float, due: list[Lease]) -> None:
        """Decide for each: over, due for renewal, or when to look again."""
        later: dict[float, list[Lease]] = {}
        for lease in leases:
            if lease._state not in WATCHED:
                continue
            if now >= lease._deadline:
                self.notice(lease)
                self.forget(lease)
                continue
            look_at = lease._deadline
            if lease._state == "held" and lease._request.renew and not lease._renewing:
                if now >= _renewable_at(lease):
                    lease._renewing = True
                    due.append(lease)
                    continue  # watched with its batch until that is answered
                look_at = min(look_at, lease._renew_at)
            lease._look_at = look_at
            later.setdefault(look_at, []).append(lease)
        for look_at, group in later.items():
            heapq.heappush(self._heap, (look_at, next(self._tiebreak), group))
            self._in_heap += len(group)
        if self._in_heap > 2 * len(self.leases) + FORGOTTEN:
            self._clear_out()

    def _clear_out(self) -> None:
        """Leases that were released long before they were due, or that stand elsewhere in the heap."""
        kept = (
            (look_at, number, [lease for lease in group if lease._look_at == look_at and lease._state in WATCHED])
            for look_at, number, group in self._heap
        )
        self._heap = [entry for entry in kept if entry[2]]
        heapq.heapify(self._heap)
        self._in_heap = sum(len(group) for _, _, group in self._heap)

    def _watch_unanswered(self, now: float) -> float:
        """Notice deadlines that pass before a renewal is answered; the answer is when the next one does."""
        for batch in list(self._unanswered):
            if batch.watch_until <= now:
                for lease in batch.leases:
                    self.notice(lease)
                held = [lease._deadline for lease in batch.leases if lease._state == "held"]
                batch.watch_until = min(held, default=NEVER)
        return min((batch.watch_until for batch in list(self._unanswered)), default=NEVER)

    def _see_to_due(self, now: float) -> float:
        """See to it that somebody renews what is due; the answer is when to look whether that goes on.

        One renewer does all, batch after batch. Another is only started when its request hangs, so that one hanging
        request does not cost the leases that fall due meanwhile.
        """
        with self._engine.mutex:
            start = bool(self._due) and (not self._renewers or self._asked_at + HANGING <= now)
            if start:
                self._renewers += 1
                self._asked_at = now
        if start:
            try:
                self._engine.world.spawn(self._renew(), "lockfast-renewal")
            except RuntimeError:  # no thread to be had just now; tried again
                with self._engine.mutex:
                    self._renewers -= 1
        return now + HANGING if self._due else NEVER

    async def _renew(self) -> None:
        while True:
            with self._engine.mutex:
                if not self._due:
                    self._renewers -= 1
                    return
                batch = self._due.pop(0)
                self._asked_at = self._engine.now()
            try:
                await self._renew_batch(batch.leases)
            finally:
                with self._engine.mutex:
                    self._unanswered.remove(batch)

    async def _renew_batch(self, leases: list[Lease]) -> None:
        engine = self._engine
        batch = [Renewal(lease._claim, lease._ttl, lease._fence) for lease in leases]
        asked_at = engine.now()  # before sending: the server's ttl cannot have started earlier
        # A third of what is left: if this request goes unanswered, there is time to ask again, more than once.
        within = min(engine.patience, max(0.01, (min(lease._deadline for lease in leases) - asked_at) / 3))
        try:
            ask = partial(engine.backend.renew, batch, within=within)
            answers = await engine.watched(ask, asked_at, max(lease._deadline for lease in leases))
        except Exception as error:
            self._ride_out(leases, error)
            if isinstance(error, BackendUnavailable):
                until = max(lease._deadline for lease in leases)
                again_at = min(lease._renew_at for lease in leases)
                engine.outage.failed(error, asked_at, again_at, until, behind=engine.world.blocking)
        else:
            if any(lease._failures for lease in leases):
                engine.outage.over(behind=engine.world.blocking)
            self._hear(leases, batch, answers, asked_at)
        finally:
            for lease in leases:
                lease._renewing = False
                self._fresh[lease._claim.id] = lease
            self._wake()

    def _hear(self, leases: list[Lease], batch: list[Renewal], answers: Sequence[bool | None], asked_at: float) -> None:
        now = self._engine.now()
        told = self._engine.events.wanted()
        for lease, renewal, kept in zip(leases, batch, answers, strict=True):
            if now >= lease._deadline:
                self.notice(lease)  # an answer that comes after the deadline brings nothing back
            elif kept is None:
                self._ride_out([lease], BackendUnavailable("the backend could not say whether it still has it"))
            elif not kept:
                self.lose(lease, "denied", "the backend no longer has it: it expired or was broken")
            elif lease._state == "held":
                lease._renewed(asked_at, renewal.ttl)
                self._engine.on_renewed()
                if told:
                    self._engine.tell_behind("renewed", lease)

    def _ride_out(self, leases: list[Lease], error: Exception) -> None:
        """An error is not a loss: try again soon, until the deadline."""
        engine = self._engine
        now = engine.now()
        for lease in leases:
            lease._failures += 1
            lease._renew_at = now + _pause_before_renewal(lease, now, engine.world.chance())
            if engine.events.wanted():
                engine.tell_behind("renewal_failed", lease, f"{type(error).__name__}: {error}")

    def hear_of_loss(self, ended: Sequence[Held], reason: str) -> None:
        """The backend has noticed that these are held no longer. Called from any thread."""
        for held in ended:
            self._early[held] = reason  # before looking: it may be granted, and on its way to be kept
            id, fence = held
            lease = self.leases.get(id)
            if lease is not None and lease._fence == fence:
                self._early.pop(held, None)
                self.lose(lease, "denied", reason)
                self.lose(lease, "gone", reason)  # if its release is under way, and not answered yet

    def lose(self, lease: Lease, step: Step, reason: str) -> None:
        """Stop believing, and tell everybody who must know. Only the first to notice tells."""
        if not lease._move(step, reason):
            return
        self.forget(lease)
        engine = self._engine
        if step == "deadline" and not engine.backend.capabilities.expires:
            engine.unfinished.add(lease._claim)  # else the store would keep it for ever
        try:
            if lease._request.on_lost is not None:
                engine.on_lost.lost(lease)
        finally:  # after that: the body may be all that its event loop runs for
            if lease._guard is not None:
                lease._guard.interrupt()
            else:
                engine.let_go(lease)  # inside a `with` it stays, so that entering again tells of the loss
        engine.tell_behind("lost", lease, reason)  # last: a listener may raise


def _renewable_at(lease: Lease) -> float:
    """A little early, along with others that are due; but not after a failure, or there would be no pause."""
    return lease._renew_at if lease._failures else lease._renew_at - lease._ttl * EARLY


def _pause_before_renewal(lease: Lease, now: float, chance: float) -> float:
    """Longer after each failure, and shorter again towards the deadline: a late recovery is still in time."""
    ttl = lease._ttl
    pause = pause_before_retry(lease._failures, chance, base=ttl / 60, cap=ttl / 10)
    return max(ttl / 200, min(pause, (lease._deadline - now) / 2))
