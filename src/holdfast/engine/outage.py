"""Whether the backend can be reached, as far as failed requests show it.

Decides: when an outage is worth a warning, that it is reported once, and what the last error says to do next.
Leaves to whoever asks: when to ask again, and when to give up. While requests are answered nothing happens here.
"""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING, Final

from holdfast._time import say
from holdfast.errors import BackendUnavailable
from holdfast.observe.events import Event, Kind

if TYPE_CHECKING:
    from holdfast.engine.core import Engine

REPORT_AFTER_S: Final = 1.0
FORGET_AFTER_S: Final = 10.0  # without a failure: the next one is another outage, though nobody saw this one end
_A_YEAR_S: Final = 366 * 86400.0
_A_DAY_S: Final = 86400.0
_NEVER: Final = float("-inf")


class Outage:
    """The outages of one engine's backend, one after the other."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._since = _NEVER  # when the first request that failed was sent
        self._failed_at = _NEVER  # when a request failed last
        self._reported = False

    def failed(self, error: BackendUnavailable, asked_at: float, again_at: float, until: float) -> None:
        """A request that was sent at `asked_at` failed, and is repeated at `again_at`, and so on `until` then."""
        engine = self._engine
        with engine.mutex:
            if asked_at - self._failed_at > FORGET_AFTER_S:
                self._since, self._reported = asked_at, False
            self._failed_at = engine.now()
            report = not self._reported and again_at - self._since >= REPORT_AFTER_S
            self._reported = self._reported or report
        if report:
            self._tell("unreachable", f"{error}; trying again {_until(until - engine.now())}")

    def over(self) -> None:
        """A request that had failed was answered."""
        engine = self._engine
        with engine.mutex:
            reported, lasted = self._reported, engine.now() - self._since
            self._failed_at, self._reported = _NEVER, False
        if reported:
            self._tell("reachable", f"{_address(engine)} answers again, after {say(lasted)}")

    def _tell(self, kind: Kind, detail: str) -> None:
        self._engine.events.tell(Event(kind, "", self._engine.holder, detail=detail))

    def final(self, error: BackendUnavailable) -> BackendUnavailable:
        """The error for the caller, to be raised from the cause of `error`: the same, and which command tells more.

        It is another exception, so its traceback ends where it is raised and not deep in a driver.
        """
        told = copy.copy(error)
        if error.transient and not error.hint:
            told.hint = _doctor(self._engine)
            told.args = (f"{error}; {told.hint}",)
        return told


def _address(engine: Engine) -> str:
    return getattr(engine.backend, "url", "") or repr(engine.backend)


def _doctor(engine: Engine) -> str:
    url = getattr(engine.backend, "url", "")
    if not url:
        return "locks.doctor() tells more"
    from shlex import quote  # here: most programs never need it

    return f"for more, run: holdfast doctor {quote(url)}"


def _until(left: float) -> str:
    if left > _A_YEAR_S:
        return "for as long as it takes"
    shape = "%H:%M:%S" if left < _A_DAY_S else "%Y-%m-%d %H:%M"
    return time.strftime(f"until {shape}", time.localtime(time.time() + left))
