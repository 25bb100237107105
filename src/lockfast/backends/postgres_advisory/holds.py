"""The claims of one `Locks` on advisory locks, and the sessions that they belong to.

Decides: which claim may be asked for in which session. The server grants a session again whatever it holds already, and
ahead of the waiters. So a session is never asked for a number that it holds or may hold: of the claims that share a
number, one is in the main session and each of the others in a session of its own.
Leaves to `acquiring`: what is asked, and when.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Literal

from lockfast._model import EXCLUSIVE, Claim, Grant
from lockfast._reentry import Mutex, critical_section
from lockfast._time import boot_now
from lockfast._worlds import Signal
from lockfast.backends.postgres_advisory.io.session import PendingStatement
from lockfast.backends.postgres_advisory.keys import Key, key_of, second_of
from lockfast.errors import Unsupported

# new: not asked for, or the answer was no; asked: a try is in flight; waits: its session is in the server's queue;
# in_doubt: a try or wait ended in an error, maybe after the grant; held; ended: released, or gone with its session
State = Literal["new", "asked", "waits", "in_doubt", "held", "ended"]


class Fences:
    """The fences of one server that this process has seen: they grow although the server's clock is set back."""

    def __init__(self) -> None:
        self._last = 0
        self.after_fork()

    def after_fork(self) -> None:
        self._mutex = Mutex()  # a thread of the parent may have held the old one

    def mint(self, read: int) -> int:
        """The fence that the server's clock gives, but never lower than the last."""
        with critical_section(self._mutex):
            self._last = max(read, self._last + 1)
            return self._last


_fences: dict[str, Fences] = {}  # by endpoint: each server has a clock of its own


def fences_of(endpoint: str) -> Fences:
    return _fences.setdefault(endpoint, Fences())


class AdvisoryHold:
    """One claim, from its first request to its end."""

    __slots__ = (
        "answered",
        "believed_until",
        "claim",
        "fence",
        "fences",
        "freeing",
        "granted_at",
        "in_main",
        "key",
        "mode",
        "polls",
        "read",
        "session",
        "signal",
        "state",
        "unanswered_since",
        "unlock",
        "unwanted",
    )

    def __init__(self, claim: Claim, key: Key, fences: Fences) -> None:
        self.claim = claim
        self.fences = fences
        self.key = key
        self.mode = claim.terms.mode
        self.signal: Signal | None = None  # set for a claim that waits
        self.state: State = "new"
        self.session: Any = None  # the session that it is asked for, waited for or held in
        self.in_main = False  # whether that is the main session
        self.fence = self.read = 0  # `read` is the server's clock
        self.granted_at = 0.0
        self.believed_until = 0.0  # by its holder, unless renewed, on the holder's own clock
        self.freeing = False  # an unlock is in flight, or its outcome is unknown
        self.unlock: PendingStatement | None = None  # set while a release is in flight
        self.unwanted = False  # its holder has released it, or given it up
        self.unanswered_since = 0.0  # when the server first showed an outcome that has not arrived here; 0 if none
        self.polls = 0  # how often a waiter was answered Busy
        self.answered = False  # an acquire has returned its grant: the next one repeats it

    def asked_in(self, session: Any, *, main: bool = False) -> None:
        """A try for it is about to be sent."""
        self.state, self.session, self.in_main = "asked", session, main

    def granted(self, answer: bytes) -> None:
        """The server has granted it, and this is the clock that it read."""
        self.state = "held"
        self.read = int(answer)
        self.fence = self.fences.mint(self.read)
        self.granted_at = self.read / 1e6
        self.renewed(self.claim.terms.ttl)

    def on_try_answered(self, statement: PendingStatement) -> None:
        """The try in the main session is answered."""
        if statement.error is None and (answer := statement.answer[0][0]) is not None:
            self.granted(answer)
        elif self.state == "asked" and statement.error is None:
            self.reset()
        elif self.state == "asked":  # what the statement did before the error stays done
            self.state = "in_doubt"

    def reset(self) -> None:
        """It belongs to no session, and is not held."""
        self.state, self.session, self.in_main = "new", None, False

    def wake(self) -> None:
        """Wake the caller that waits for it, if there is one."""
        if self.signal is not None:
            self.signal.set()

    def renewed(self, ttl: float) -> None:
        """The server has answered. Never shortens."""
        self.believed_until = max(self.believed_until, boot_now() + ttl)

    def remaining(self) -> float:
        """Seconds for which its holder still believes, unless renewed."""
        return self.believed_until - boot_now()

    @property
    def believed(self) -> bool:
        """Whether a holder relies on it."""
        return self.state == "held" and not self.unwanted and self.remaining() > 0

    @property
    def unlock_sent(self) -> bool:
        """Whether the server may have been asked to end it."""
        return self.unlock is not None and self.unlock.sent_at > 0

    @property
    def grant(self) -> Grant:
        return Grant(self.fence, self.granted_at)

    @property
    def unlock_params(self) -> tuple[int, int, int]:
        """Parameters of the statement that unlocks it."""
        return (*self.key, second_of(self.read))


class Holds:
    """All claims of one `Locks`, by id and by number."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self.fences = fences_of(endpoint)
        self._reset()
        _living.add(self)

    def after_fork(self) -> None:
        self.fences.after_fork()
        self._reset()

    def _reset(self) -> None:
        self.mutex = threading.Lock()  # for single steps
        self.by_id: dict[str, AdvisoryHold] = {}
        self.unqueued: dict[str, AdvisoryHold] = {}  # waiters that have no session to wait in, in order
        self._by_number: dict[int, dict[str, AdvisoryHold]] = {}

    def enter_alone(self, claim: Claim, key: Key, session: Any) -> AdvisoryHold | None:
        """As `enter`, and it counts as asked in the main session; None if another claim here is for that number."""
        with self.mutex:
            if key.number in self._by_number:
                return None
            hold = self.by_id[claim.id] = AdvisoryHold(claim, key, self.fences)
            self._by_number[key.number] = {claim.id: hold}
        hold.asked_in(session, main=True)
        return hold

    def enter(self, claim: Claim) -> AdvisoryHold:
        """Raises Unsupported if another name, in use here, has the same number."""
        hold = AdvisoryHold(claim, key_of(claim.terms.key), self.fences)
        with self.mutex:
            others = self._by_number.setdefault(hold.key.number, {})
            for other in others.values():
                if other.key != hold.key:
                    refuse_hash_collision(claim.terms.name, repr(other.claim.terms.name))
                break
            others[claim.id] = self.by_id[claim.id] = hold
        return hold

    def leave(self, hold: AdvisoryHold) -> None:
        """Can be repeated: the id is removed last, so a claim whose removal was interrupted is found again."""
        id, number = hold.claim.id, hold.key.number
        with self.mutex:
            hold.state = "ended"
            hold.in_main = False
            self.unqueued.pop(id, None)
            others = self._by_number.get(number)
            if others is not None:
                others.pop(id, None)
                if not others:
                    del self._by_number[number]
            self.by_id.pop(id, None)
        hold.wake()

    def of(self, number: int) -> list[AdvisoryHold]:
        with self.mutex:
            return list(self._by_number.get(number, {}).values())

    def in_pid(self, pid: int, number: int) -> list[AdvisoryHold]:
        """The claims for that number in the session that the server calls `pid`."""
        return [one for one in self.of(number) if one.session is not None and one.session.pid == pid]

    def in_session(self, session: Any) -> list[AdvisoryHold]:
        """The claims that belong to that session."""
        with self.mutex:
            return [hold for hold in self.by_id.values() if hold.session is session]

    def is_next(self, hold: AdvisoryHold, *, alone: bool) -> bool:
        """Whether it is the first unqueued waiter; `alone`: the first of those for its number."""
        number = hold.key.number
        with self.mutex:
            self.unqueued.setdefault(hold.claim.id, hold)
            return next(one for one in self.unqueued.values() if not alone or one.key.number == number) is hold

    def unqueued_before(self, hold: AdvisoryHold) -> int:
        """How many claims wait for the number and for a session, and came before it."""
        if not self.unqueued:
            return 0
        with self.mutex:
            same = [one for one in self.unqueued.values() if one.key.number == hold.key.number]
        return same.index(hold) if hold in same else len(same)

    def into_main(self, hold: AdvisoryHold, session: Any) -> bool:
        """True if the main session may be asked for it; from then on it counts as asked."""
        with self.mutex:
            if any(other.in_main for other in self._by_number.get(hold.key.number, {}).values()):
                return False
            hold.asked_in(session, main=True)
            return True

    # Of all `Locks` of this process that use the same server

    def neighbours(self) -> list[Holds]:
        return [holds for holds in list(_living) if holds._endpoint == self._endpoint]

    def in_this_process(self, pid: int, number: int) -> list[AdvisoryHold]:
        """As `in_pid`."""
        return [hold for holds in self.neighbours() for hold in holds.in_pid(pid, number)]

    def known_holder(self, hold: AdvisoryHold) -> str | None:
        """Who holds it, if that is a claim of this process."""
        for holds in self.neighbours():
            for other in holds.of(hold.key.number):
                if other.state == "held" and EXCLUSIVE in (hold.mode, other.mode):
                    return other.claim.terms.holder
        return None


_living: weakref.WeakSet[Holds] = weakref.WeakSet()  # of this process


def refuse_hash_collision(name: str, other: str) -> None:
    raise Unsupported(
        f"lock {name!r} has the same 64-bit number as {other}, which is in use: PostgreSQL could not tell them apart; "
        "one of them needs another name, or postgresql:// (the lock table)",
        name=name,
    )
