"""The events of claims and leases.

Decides: what an event says of a claim or a lease, which outcome and which reason; in which thread it is emitted; that
every reported acquire ends once.
Leaves to `observe`: which listeners there are. Leaves to the life-cycle of a lease: that every grant ends once.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lockfast._model import Busy, Claim, HolderInfo
from lockfast.engine.lease import Lease
from lockfast.engine.not_held import Reason
from lockfast.engine.request import Adopt, Refused, Request
from lockfast.errors import BackendUnavailable, LockError, SelfDeadlock
from lockfast.observe.events import Event, Kind, Outcome, Primitive
from lockfast.observe.patterns import pattern_of

if TYPE_CHECKING:
    from lockfast.backends.base import Backend
    from lockfast.engine.core import Engine

T = TypeVar("T")

LONG_WAIT_S: Final = 10.0  # after which a wait is reported, as soon as the waiter asks again; then after twice the time
_OUTCOMES: Final[dict[str, Outcome]] = {"broken": "broken", "max_hold": "expired", "not_renewed": "expired"}
Ask = Callable[["Engine", Request, Claim, float | None, Adopt, Refused, "AskReport"], Awaitable[Lease | Busy]]


def backend_name(backend: Backend) -> str:
    """The package that a backend is from: "redis", "postgres_table"."""
    backend = getattr(backend, "inner", backend)  # of a `FaultyBackend`
    module = type(backend).__module__.removeprefix("lockfast.").removeprefix("backends.")
    return module.split(".")[0]


# Acquires


class AskReport:
    """One acquire, as it is reported."""

    __slots__ = (
        "_claim",
        "_engine",
        "_request",
        "_started",
        "attempts",
        "busy",
        "lease",
        "lost",
        "notice_after",
        "over",
    )

    def __init__(self, engine: Engine, request: Request, claim: Claim, started: float) -> None:
        self._engine = engine
        self._request = request
        self._claim = claim
        self._started = started
        self.attempts: int | None = None  # requests that were sent, if they were counted
        self.busy: Busy | None = None  # the last answer that was not the grant
        self.notice_after = LONG_WAIT_S
        self.over = False  # its end is being reported, or was
        self.lease: Lease | None = None  # once it is granted
        self.lost: Event | None = None  # that lease was lost before its grant was reported

    def event(self, kind: Kind, outcome: str = "", waited: float | None = None, detail: str = "") -> Event:
        engine, terms, busy, lease = self._engine, self._claim.terms, self.busy, self.lease
        return Event(
            kind,
            terms.name,
            terms.holder,
            self._claim.id,
            None if lease is None else lease.fence,
            self._request.primitive,
            terms.mode,
            self._request.pattern or pattern_of(terms.name),
            engine.backend_name,
            engine.namespace,
            outcome,
            waited=waited,
            attempts=self.attempts,
            position=None if busy is None else busy.position,
            held_by=None if busy is None else busy.holder,
            remaining=None if lease is None else lease.remaining,
            detail=detail,
        )

    def begin(self) -> None:
        self._engine.events.emit(self.event("asked"))
        self.attempts = 0

    def granted(self, lease: Lease) -> None:
        engine = self._engine
        self.lease, self.over = lease, True
        engine.events.emit(self.event("granted", "granted", engine.now() - self._started))
        with engine.mutex:
            engine.reports.pop(self._claim.id, None)
            lost = self.lost
        if lost is not None:
            engine.events.emit(lost)

    def refused(self, busy: Busy, waited: float, once: bool) -> None:
        self.busy, self.over = busy, True
        outcome = "busy" if once else "timeout"
        self._engine.events.emit(self.event("not_granted", outcome, waited, busy.in_words))

    def failed(self, error: BaseException) -> None:
        """It ended with that. What was granted is taken back: its caller never had it."""
        engine, lease = self._engine, self.lease
        if not self.over:
            self.over = True
            _emit_failure(engine, self.event("not_granted", waited=engine.now() - self._started), error)
        elif lease is not None:
            lease._move("release")
            if lease._move("freed"):
                engine.events.emit(_ended(lease, "released", "released", "interrupted"))


async def reported_acquire(
    engine: Engine, request: Request, claim: Claim, wait: float | None, adopt: Adopt, refused: Refused, ask: Ask
) -> Lease | Busy:
    """What `ask` answers, with an event for each step."""
    report = AskReport(engine, request, claim, engine.now())
    engine.reports[claim.id] = report

    def adopt_and_report(lease: Lease) -> None:
        adopt(lease)
        body = lease._body
        lease._enter(lease._guard, body or sys._getframe())  # a listener that waits for it would wait for itself
        report.granted(lease)
        if lease._state == "held":
            lease._enter(lease._guard, body)

    def report_and_refuse(request: Request, busy: Busy, waited: float) -> Busy:
        report.refused(busy, waited, wait == 0)
        return refused(request, busy, waited)

    try:
        report.begin()
        return await ask(engine, request, claim, wait, adopt_and_report, report_and_refuse, report)
    except BaseException as error:
        report.failed(error)
        raise
    finally:
        if claim.id in engine.reports:  # no call is made here after `adopt`, as in `ask`
            del engine.reports[claim.id]


def _emit_failure(engine: Engine, event: Event, error: BaseException) -> None:
    """What ended with that error."""
    outcome = _outcome_of(engine, error)
    reason, detail = type(error).__name__ if outcome == "error" else "", str(error) or type(error).__name__
    closing = error.__class__ is GeneratorExit  # perhaps in a finalizer, in the middle of anything
    emit = engine.background.emit if closing else engine.events.emit
    emit(event._replace(outcome=outcome, reason=reason, detail=detail))


def _outcome_of(engine: Engine, error: BaseException) -> Outcome:
    if not isinstance(error, Exception):
        return "cancelled"
    if isinstance(error, SelfDeadlock):
        return "deadlock"
    if isinstance(error, BackendUnavailable):
        return "unavailable"
    return "closed" if engine.closed and isinstance(error, LockError) else "error"


# What an operator reads of an acquire for which there is no listener


def still_waiting(
    engine: Engine, request: Request, claim: Claim, report: AskReport | None, busy: Busy, waited: float
) -> AskReport:
    """It asks again after a long wait. The report to call this with the next time."""
    report = report or AskReport(engine, request, claim, engine.now() - waited)
    report.busy = busy
    if waited >= report.notice_after and engine.events.noted():
        report.notice_after = 2 * waited
        engine.events.emit(report.event("waiting", waited=waited, detail=busy.in_words))
    return report


def timed_out(engine: Engine, request: Request, claim: Claim, busy: Busy, waited: float) -> None:
    if engine.events.noted():
        AskReport(engine, request, claim, engine.now() - waited).refused(busy, waited, once=False)


# Limiters and cells


async def reported_call(
    engine: Engine,
    kind: Kind,
    primitive: Primitive,
    name: str,
    ask: Callable[[], Awaitable[T]],
    facts: Callable[[T], dict[str, Any]],
    cost: int | None = None,
) -> T:
    """What `ask` answers, with one event that has the `facts` of the answer."""
    started = engine.now()
    event = Event(
        kind,
        name,
        engine.holder,
        primitive=primitive,
        pattern=pattern_of(name),
        backend=engine.backend_name,
        namespace=engine.namespace,
        cost=cost,
    )
    try:
        answer = await ask()
    except BaseException as error:
        _emit_failure(engine, event._replace(waited=engine.now() - started), error)
        raise
    engine.events.emit(event._replace(waited=engine.now() - started, **facts(answer)))
    return answer


# Leases


def report_released(engine: Engine, lease: Lease) -> None:
    engine.events.emit(_ended(lease, "released", "released", "closed" if engine.closed else "by_holder"))


def report_unanswered(engine: Engine, lease: Lease) -> None:
    """Its release was not answered, and its time is over."""
    if lease._move("freed") and engine.events.wanted():
        _emit_behind(engine, _ended(lease, "released", "expired", "unanswered"))


def report_lost(engine: Engine, lease: Lease, reason: Reason) -> None:
    code = "broken" if reason.code == "gone" and lease.claim_id in engine.broken else reason.code
    event = _ended(lease, "lost", _OUTCOMES.get(code, "lost"), code, reason.text)
    with engine.mutex:
        report = engine.reports.get(lease.claim_id)
        if report is not None:  # its grant was not reported yet
            report.lost = event
    if report is None:
        _emit_behind(engine, event)


def report_renewed(engine: Engine, lease: Lease, left: float) -> None:
    """`left` seconds before its deadline."""
    _emit_behind(engine, _event(lease, "renewed")._replace(slack=left / lease._ttl))


def report_renewal_failed(engine: Engine, lease: Lease, error: Exception, failure: str) -> None:
    reason = "unavailable" if isinstance(error, BackendUnavailable) else "error"
    _emit_behind(engine, _event(lease, "renewal_failed", reason=reason, detail=failure))


def report_release_failed(engine: Engine, lease: Lease, detail: str) -> None:
    engine.events.emit(_event(lease, "release_failed", reason="unavailable", detail=detail))


def report_broken(engine: Engine, name: str, was: HolderInfo) -> None:
    """By this `Locks`."""
    ours = engine.keeper.leases.get(was.claim_id)
    request = ours and ours._request
    engine.events.emit(
        Event(
            "broken",
            name,
            was.holder,
            was.claim_id,
            was.fence,
            request.primitive if request else "",
            was.mode,
            (request and request.pattern) or pattern_of(name),
            engine.backend_name,
            engine.namespace,
            detail=f"broken by {engine.holder!r}",
        )
    )


def _emit_behind(engine: Engine, event: Event) -> None:
    """From a thread that keeps leases: a listener that blocks it would cost leases. An event loop has no other thread.

    While a loop is blocked its leases are kept from outside: then the event waits until the loop goes on.
    """
    events, background = engine.events, engine.background
    emit = events.emit if _runs_in_loop(engine) and not background.emitting else background.emit
    emit(event)


def _runs_in_loop(engine: Engine) -> bool:
    if engine.world.blocking:
        return False
    with suppress(RuntimeError):  # no loop runs in this thread
        engine.world.owner()
        return True
    return False


def _ended(lease: Lease, kind: Kind, outcome: Outcome, reason: str, detail: str = "") -> Event:
    return _event(lease, kind, outcome, reason, detail)._replace(remaining=None)


def _event(lease: Lease, kind: Kind, outcome: str = "", reason: str = "", detail: str = "") -> Event:
    engine, terms, request = lease._engine, lease._claim.terms, lease._request
    return Event(
        kind,
        terms.name,
        terms.holder,
        lease.claim_id,
        lease.fence,
        request.primitive,
        terms.mode,
        request.pattern or pattern_of(terms.name),
        engine.backend_name,
        engine.namespace,
        outcome,
        reason,
        waited=lease._waited,
        held_for=engine.now() - lease._granted_at,
        remaining=lease.remaining,
        detail=detail,
    )
