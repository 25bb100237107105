"""Keep leases alive, and notice when one is no longer ours.

Decides: when to renew, and when to stop believing.
Leaves to the backend: whether the record is still ours. Leaves to the caller: what to do after a loss.

One keeper serves all leases of a `Locks`. It sleeps until the first lease is due, renews all that are due about
then in one request, and never waits for that request: a deadline that passes meanwhile is noticed in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from lockfast._bounded import BoundedDict
from lockfast._model import Renewal
from lockfast._reentry import start_put_off
from lockfast.engine.lease import Lease, Step
from lockfast.engine.schedule import NEVER, WATCHED, RenewalState, Schedule, renewal_interval
from lockfast.errors import BackendUnavailable

if TYPE_CHECKING:
    from lockfast._worlds import Signal
    from lockfast.engine.core import Engine

Held = tuple[str, int]  # a claim's id and its fence: the same claim may be granted again later
IDLE: Final = 10.0  # seconds without leases after which the loop ends
HANGING: Final = 0.25  # seconds after which an unanswered renewal no longer holds up the others
EARLY_LOSSES: Final = 1000  # that are remembered for leases which may never come


class _Batch:
    """Leases that are renewed in one request, watched until it is answered."""

    __slots__ = ("leases", "states", "watch_until")

    def __init__(self, states: list[RenewalState]) -> None:
        self.states = states
        self.leases = [state.lease for state in states]
        self.watch_until = min(lease._deadline for lease in self.leases)  # when the first of them is lost unanswered


class Keeper:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.leases: dict[str, Lease] = {}  # all that are held, by claim id
        self._fresh: dict[str, Lease] = {}  # those to look at as soon as the loop is awake
        self._states: dict[str, RenewalState] = {}  # of those that were looked at or renewed, by claim id
        self._schedule = Schedule()
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
        due = lease._granted_at + renewal_interval(lease) if lease._request.renew else lease._deadline
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
        self._states.pop(id, None)

    def state_of(self, lease: Lease) -> RenewalState:
        """Made when it is first asked for: most leases are released before the loop looks at them."""
        id = lease._claim.id
        return self._states.get(id) or self._states.setdefault(id, RenewalState(lease))

    def renewed(self, lease: Lease, asked_at: float) -> None:
        """A request that was sent then has renewed it."""
        self.state_of(lease).renewed(asked_at)

    def notice(self, lease: Lease) -> None:
        """Somebody looked at the clock before the loop did."""
        if lease._state == "held" and self._engine.now() >= lease._deadline:
            self.lose(lease, "deadline", lease._why_out_of_time())

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
                soonest = min(self._see_to_due(now), self._watch_unanswered(now), self._schedule.first())
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
            self._schedule.clear()
            self._due, self._unanswered, self._renewers = [], [], 0
        for lease in list(self.leases.values()):
            self.state_of(lease).renewing = False
            if lease._guard is not None:
                self.lose(lease, "deadline", "the event loop that its body ran in was closed")
        self._go_on()

    def _retire(self) -> bool:
        """Nothing to keep for a while: end the loop, unless a lease comes this very moment."""
        with self._engine.mutex:
            if not self._fresh and not self._unanswered and not self._engine.outage.unanswered:
                self._schedule.clear()  # it may still name leases that were released long before they were due
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
        due: list[RenewalState] = []
        fresh: list[Lease] = []
        with suppress(KeyError):  # until it is empty, also if another thread takes the last one out
            while True:
                fresh.append(self._fresh.popitem()[1])
        self._look_at([self.state_of(lease) for lease in fresh[::-1]], now, due)
        while group := self._schedule.take(now):
            self._look_at(group, now, due)
        size = self._engine.backend.capabilities.renew_batch
        batches = [_Batch(due[start : start + size]) for start in range(0, len(due), size)]
        with self._engine.mutex:
            self._due += batches
            self._unanswered += batches

    def _look_at(self, states: list[RenewalState], now: float, due: list[RenewalState]) -> None:
        """Decide for each: over, due for renewal, or when to look again."""
        later: dict[float, list[RenewalState]] = {}
        for state in states:
            lease = state.lease
            if lease._state not in WATCHED:
                self.forget(lease)
                continue
            if now >= lease._deadline:
                self.notice(lease)
                self.forget(lease)
                continue
            due_at = lease._deadline
            if state.wants_renewal(now):
                if now >= state.renewable_at:
                    state.renewing = True
                    due.append(state)
                    continue  # watched with its batch until that is answered
                due_at = min(due_at, state.renew_at)
            state.due_at = due_at
            later.setdefault(due_at, []).append(state)
        self._schedule.add(later, len(self.leases))

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
                await self._renew_batch(batch.states)
            finally:
                with self._engine.mutex:
                    self._unanswered.remove(batch)

    async def _renew_batch(self, states: list[RenewalState]) -> None:
        engine, leases = self._engine, [state.lease for state in states]
        batch = [Renewal(lease._claim, lease._ttl, lease._fence) for lease in leases]
        asked_at = engine.now()  # before sending: the server's ttl cannot have started earlier
        # A third of what is left: if this request goes unanswered, there is time to ask again, more than once.
        within = min(engine.patience, max(0.01, (min(lease._deadline for lease in leases) - asked_at) / 3))
        try:
            ask = partial(engine.backend.renew, batch, within=within)
            answers = await engine.watched(ask, asked_at, max(lease._deadline for lease in leases))
        except Exception as error:
            self._ride_out(states, error)
            if isinstance(error, BackendUnavailable):
                until = max(lease._deadline for lease in leases)
                again_at = min(state.renew_at for state in states)
                engine.outage.failed(error, asked_at, again_at, until, behind=engine.world.blocking)
        else:
            if any(state.failures for state in states):
                engine.outage.over(behind=engine.world.blocking)
            self._hear(states, batch, answers, asked_at)
        finally:
            for state in states:
                state.renewing = False
                self._fresh[state.lease._claim.id] = state.lease
            self._wake()

    def _hear(
        self, states: list[RenewalState], batch: list[Renewal], answers: Sequence[bool | None], asked_at: float
    ) -> None:
        now = self._engine.now()
        told = self._engine.events.wanted()
        for state, renewal, kept in zip(states, batch, answers, strict=True):
            lease = state.lease
            if now >= lease._deadline:
                self.notice(lease)  # an answer that comes after the deadline brings nothing back
            elif kept is None:
                self._ride_out([state], BackendUnavailable("the backend could not say whether it still has it"))
            elif not kept:
                self.lose(lease, "denied", "the backend no longer has it: it expired or was broken")
            elif lease._state == "held":
                lease._renewed(asked_at, renewal.ttl)
                state.renewed(asked_at)
                self._engine.on_renewed()
                if told:
                    self._engine.tell_behind("renewed", lease)

    def _ride_out(self, states: list[RenewalState], error: Exception) -> None:
        """An error is not a loss: try again soon, until the deadline."""
        engine = self._engine
        now = engine.now()
        for state in states:
            state.failed(now, engine.world.chance())
            if engine.events.wanted():
                engine.tell_behind("renewal_failed", state.lease, f"{type(error).__name__}: {error}")

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
