"""What one `Locks` has of PostgreSQL's advisory locks: its claims, and the sessions that they belong to.

Decides: which claim may be asked for in which session. A session is granted again whatever it holds already, so it is
never asked for a number that it holds or may hold. What it shares is the one exception, see `may_share`.
Leaves to `postgres_advisory`: what is asked, and when.
"""

from __future__ import annotations

import threading
from typing import Any, Literal

from holdfast._model import EXCLUSIVE, Claim, Grant
from holdfast._time import boot_now
from holdfast._worlds import Signal
from holdfast.backends.postgres_advisory_keys import key_of, second_of
from holdfast.errors import Unsupported

# new: nothing is asked, or the answer was no; asked: a try is under way; waits: a session stands in the server's queue
# for it; doubt: that ended, nobody knows how; held; ended: released, or gone with its session
State = Literal["new", "asked", "waits", "doubt", "held", "ended"]

_last_fence = 0  # of this process: should the server's clock be set back, ours go on
_minting = threading.Lock()


def mint(read: int) -> int:
    """The fence that the server's clock gives, but never lower than the last."""
    global _last_fence
    with _minting:
        _last_fence = max(read, _last_fence + 1)
        return _last_fence


class Hold:
    """One claim, from the first asking to its end."""

    __slots__ = (
        "claim",
        "fence",
        "freeing",
        "granted_at",
        "heard_at",
        "key",
        "line",
        "looks",
        "mode",
        "read",
        "signal",
        "state",
        "ttl",
    )

    def __init__(self, claim: Claim, signal: Signal) -> None:
        self.claim = claim
        self.key = key_of(claim.terms.key)
        self.mode = claim.terms.mode
        self.signal = signal  # for whoever waits
        self.state: State = "new"
        self.line: Any = None  # the session that it is asked for, waited for or held in
        self.fence = self.read = 0  # `read` is what the server said
        self.granted_at = 0.0
        self.ttl = claim.terms.ttl
        self.heard_at = 0.0  # when its holder last had word from the server, on its own clock
        self.freeing = False  # an unlock was sent, and its answer is not known
        self.looks = 0  # how often a waiter has looked up

    def come(self, answer: bytes) -> None:
        """It is granted."""
        self.state = "held"
        self.read = int(answer)
        self.fence = mint(self.read)
        self.granted_at = self.read / 1e6
        self.heard_at = boot_now()

    def renewed(self, ttl: float) -> None:
        self.ttl = ttl
        self.heard_at = boot_now()

    def remaining(self) -> float:
        """Seconds for which its holder believes in it, unless renewed."""
        return self.heard_at + self.ttl - boot_now()

    @property
    def grant(self) -> Grant:
        return Grant(self.fence, self.granted_at)

    @property
    def words(self) -> tuple[int, int, int]:
        """To unlock it."""
        return (*self.key, second_of(self.read))


class Holds:
    """All claims of one `Locks`, by their id and by the number that they are about."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()  # for single steps
        self.by_id: dict[str, Hold] = {}
        self.outside: dict[str, Hold] = {}  # those who wait and have no session to wait in, in order
        self._in_main: dict[int, dict[str, Hold]] = {}  # by number: what the main session holds or is asked for
        self._by_number: dict[int, dict[str, Hold]] = {}

    def enter(self, claim: Claim, signal: Signal) -> Hold:
        """Raises Unsupported if another name, in use here, has the same number."""
        hold = Hold(claim, signal)
        with self.mutex:
            others = self._by_number.setdefault(hold.key.number, {})
            for other in others.values():
                if other.claim.terms.key != claim.terms.key:
                    refuse_twins(claim.terms.name, repr(other.claim.terms.name))
                break
            others[claim.id] = self.by_id[claim.id] = hold
        return hold

    def leave(self, hold: Hold) -> None:
        with self.mutex:
            self._out_of_main(hold)
            hold.state = "ended"
            self.by_id.pop(hold.claim.id, None)
            self.outside.pop(hold.claim.id, None)
            others = self._by_number.get(hold.key.number, {})
            others.pop(hold.claim.id, None)
            if not others:
                self._by_number.pop(hold.key.number, None)
        hold.signal.set()

    def of(self, number: int) -> list[Hold]:
        with self.mutex:
            return list(self._by_number.get(number, {}).values())

    def in_line(self, line: Any) -> list[Hold]:
        """What belongs to that session."""
        with self.mutex:
            return [hold for hold in self.by_id.values() if hold.line is line]

    def in_use(self) -> list[Hold]:
        with self.mutex:
            return list(self.by_id.values())

    def is_next(self, hold: Hold) -> bool:
        """Whether nobody else waits for a session to wait in; from now on it does."""
        with self.mutex:
            self.outside.setdefault(hold.claim.id, hold)
            return next(iter(self.outside)) == hold.claim.id

    # The main session

    def is_in_main(self, hold: Hold) -> bool:
        return hold.claim.id in self._in_main.get(hold.key.number, {})

    def may_share(self, hold: Hold) -> bool:
        """Whether the main session may share the number already, and so be granted it past whoever waits."""
        return hold.key.number in self._in_main

    def into_main(self, hold: Hold, line: Any) -> bool:
        """True if the main session may be asked for it; from then on it counts as asked."""
        with self.mutex:
            there = self._in_main.get(hold.key.number, {})
            if there and (hold.mode == EXCLUSIVE or any(other.mode == EXCLUSIVE for other in there.values())):
                return False
            self._in_main.setdefault(hold.key.number, there)[hold.claim.id] = hold
            hold.state, hold.line = "asked", line
            return True

    def out_of_main(self, hold: Hold) -> None:
        with self.mutex:
            self._out_of_main(hold)
            hold.state, hold.line = "new", None

    def _out_of_main(self, hold: Hold) -> None:
        there = self._in_main.get(hold.key.number)
        if there is not None and there.pop(hold.claim.id, None) is not None and not there:
            del self._in_main[hold.key.number]


def refuse_twins(name: str, other: str) -> None:
    raise Unsupported(
        f"lock {name!r} has the same 64-bit number as {other}, which is in use: PostgreSQL could not tell them apart; "
        "one of them needs another name, or postgresql:// (the lock table)",
        name=name,
    )
