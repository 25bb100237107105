"""Whether the backend can be reached, as far as requests that failed or are not answered show it.

Decides: when an outage is worth a warning, that it is reported once, and what the last error says to do next.
Leaves to the caller: when to ask again, and when to give up. Leaves to the keeper: to poll in time.
"""

from __future__ import annotations

import copy
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from lockfast._time import format_duration
from lockfast.backends.optional import url_of
from lockfast.errors import BackendUnavailable
from lockfast.observe.events import Event, Kind

if TYPE_CHECKING:
    from lockfast.engine.core import Engine

REPORT_AFTER_S: Final = 1.0
POLL_AGAIN_S: Final = 0.1  # between two polls of a request that is not answered
FORGET_AFTER_S: Final = 10.0  # without a failure: the next one is another outage, though no request saw this one end
MAX_OVER: Final = 100  # late requests that are over, which an interrupt may leave behind, beside twice as many as wait
_A_YEAR_S: Final = 366 * 86400.0
_A_DAY_S: Final = 86400.0
_NEVER: Final = float("-inf")
_LATER: Final = float("inf")


_Sent = tuple[float, float | None]  # a request that is not answered: since when, and until when it is insisted on


class _Late:
    """A request that was not answered for a second. Few are, so each request costs no more than a `_Sent`."""

    __slots__ = ("overdue", "poll_at", "sent")

    def __init__(self, sent: _Sent, poll_at: float) -> None:
        self.sent = sent
        self.poll_at = poll_at
        self.overdue = False


class Outage:
    """The outages of one engine's backend, one after the other."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.watches = engine.world.real_time and not engine.backend.capabilities.instant  # for silence
        self._since = _NEVER  # when the first request that failed was sent
        self._failed_at = _NEVER  # when a request failed last
        self._given_up = False  # the last failure was an operation's last: whatever is answered next ends the outage
        self._reported = False
        self.unanswered: dict[object, _Sent] = {}  # by request, from before it is sent
        self._late: dict[object, _Late] = {}  # of these, and of some that are over

    def begin_again(self) -> None:
        """In a new event loop: what was asked in the old one is not answered any more."""
        self.unanswered.clear()
        self._late.clear()

    # Requests that are not answered

    def sent(self, request: object, asked_at: float, until: float | None) -> None:
        """A request is about to be sent, and insisted on until then. Silence for a second is reported.

        Ends with `answered` or `ended`. Not called unless it `watches`.
        """
        self.unanswered[request] = asked_at, until
        loop = self._engine.keeper.loop
        if asked_at + REPORT_AFTER_S < loop.wake_at or loop.signal is None:  # as in `wake_by`, which costs a call
            with suppress(RuntimeError):  # no thread can be started: then only its failure is reported
                loop.wake_by(asked_at + REPORT_AFTER_S)

    def answered(self, request: object) -> None:
        sent = self.unanswered.pop(request, None)
        loop = self._engine.keeper.loop
        if loop.closed:
            loop.end_if_done()
        if sent is not None and (self._late or self._given_up):
            late = self._late.pop(request, None)
            overdue = late is not None and late.sent is sent and late.overdue
            if overdue or (self._given_up and sent[0] >= self._failed_at):
                self.over()

    def ended(self, request: object) -> None:
        """It failed, or was given up."""
        self.unanswered.pop(request, None)
        self._late.pop(request, None)
        self._engine.keeper.loop.end_if_done()

    def poll(self, now: float) -> float:
        """Report requests that were sent a second ago and are not answered; when to poll again.

        Each is polled twice: after this process stood still, its answer may be there and not read yet.
        """
        soonest = _LATER
        for key, sent in self.unanswered.copy().items():
            late = self._late.get(key)
            if late is None or late.sent is not sent:  # the same claim may have been asked for before
                if (poll_at := sent[0] + REPORT_AFTER_S) > now:
                    soonest = min(soonest, poll_at)
                    continue
                late = self._late[key] = _Late(sent, now + POLL_AGAIN_S)
            elif late.poll_at <= now:
                late.overdue, late.poll_at = True, _LATER
                if key in self.unanswered and self._begins(sent[0], now):
                    self._engine.background.emit(self._event("unreachable", self._silence(sent, now)))
                    if key not in self.unanswered:
                        self.over(behind=True)  # answered meanwhile, and perhaps too early to end what had not begun
            soonest = min(soonest, late.poll_at)
        if len(self._late) > 2 * len(self.unanswered) + MAX_OVER:
            self._late = {key: late for key, late in self._late.copy().items() if key in self.unanswered}
        return soonest

    def _silence(self, sent: _Sent, now: float) -> str:
        asked_at, until = sent
        silence = f"no answer from {_address(self._engine)} for {format_duration(now - asked_at)}"
        return silence if until is None else f"{silence}; waiting {_until(until - now)}"

    # Requests that fail

    def failed(
        self, error: BackendUnavailable, asked_at: float, again_at: float, until: float, behind: bool = False
    ) -> None:
        """A request that was sent at `asked_at` failed, and is repeated at `again_at`, and so on `until` then.

        Where a listener that blocks would hold up others, it is reported `behind`.
        """
        if self._begins(asked_at, again_at):
            text = f"{error}; trying again {_until(until - self._engine.now())}"
            self._report(self._event("unreachable", text), behind)

    def _begins(self, asked_at: float, at: float) -> bool:
        """Whether this failure of a request, which is not repeated or answered before `at`, is to be reported."""
        engine = self._engine
        silent = any(late.overdue and self.unanswered.get(key) is late.sent for key, late in self._late.copy().items())
        with engine.mutex:
            if asked_at - self._failed_at > FORGET_AFTER_S and not (silent and self._reported):
                self._since, self._reported = asked_at, False
            self._failed_at, self._given_up = engine.now(), False
            report = not self._reported and at - self._since >= REPORT_AFTER_S
            self._reported = self._reported or report
            return report

    def over(self, behind: bool = False) -> None:
        """A request that had failed was answered."""
        engine = self._engine
        with engine.mutex:
            reported, lasted = self._reported, engine.now() - self._since
            self._failed_at, self._given_up, self._reported = _NEVER, False, False
        if reported:
            text = f"{_address(engine)} can be used again, after {format_duration(lasted)}"
            self._report(self._event("reachable", text), behind)

    def final(self, error: BackendUnavailable) -> BackendUnavailable:
        """The error for the caller, see `with_hint`."""
        self._failed_at, self._given_up = self._engine.now(), True
        return with_hint(error, url_of(self._engine.backend))

    # What is reported

    def _event(self, kind: Kind, detail: str) -> Event:
        engine = self._engine
        backend, namespace = engine.backend_name, engine.namespace
        return Event(kind, "", engine.holder, backend=backend, namespace=namespace, detail=detail)

    def _report(self, event: Event, behind: bool) -> None:
        if behind or self._engine.background.emitting:  # what came before it is emitted first
            self._engine.background.emit(event)
        else:
            self._engine.events.emit(event)


def _address(engine: Engine) -> str:
    return url_of(engine.backend) or repr(engine.backend)


def with_hint(error: BackendUnavailable, url: str) -> BackendUnavailable:
    """To be raised from the cause of `error`: the same, and which command says more about that URL.

    It is another exception, so its traceback ends where it is raised and not deep in a driver.
    """
    hinted = copy.copy(error)
    if error.transient and not error.hint:
        hinted.hint = _doctor(url)
        hinted.args = (f"{error}; {hinted.hint}",)
    return hinted


def _doctor(url: str) -> str:
    if not url:
        return "locks.doctor() shows more"
    from shlex import quote  # here: most programs never need it

    return f"for more, run: lockfast doctor {quote(url)}"


def _until(left: float) -> str:
    if left > _A_YEAR_S:
        return "for as long as it takes"
    shape = "%H:%M:%S" if left < _A_DAY_S else "%Y-%m-%d %H:%M"
    return time.strftime(f"until {shape}", time.localtime(time.time() + left))
