"""How an advisory lock is asked for, and where a waiter stands.

Decides: in which session a claim is asked for, and what the answer means.
Leaves to `blocking`: everything after the grant. Leaves to `holds`: what a session may be
asked for.
"""

from __future__ import annotations

import builtins
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from lockfast._bounded import BoundedSet
from lockfast._model import EXCLUSIVE, SHARED, Busy, Claim, Grant, Terms, poll_after
from lockfast._time import boot_now
from lockfast._worlds import Clock, World
from lockfast.backends.postgres.io.endpoint import PostgresEndpoint
from lockfast.backends.postgres.io.wire import unavailable
from lockfast.backends.postgres_advisory.holds import Hold, Holds, fences_of, refuse_twins
from lockfast.backends.postgres_advisory.io.blocking import open_sessions
from lockfast.backends.postgres_advisory.io.session import (
    RATES,
    Cancelled,
    Line,
    Params,
    Rows,
    Statement,
    keeping,
    kept_for,
    short,
)
from lockfast.backends.postgres_advisory.keys import Key, halves, is_tag_of, key_of
from lockfast.backends.postgres_advisory.statements import PREPARE, Seen, read
from lockfast.errors import BackendUnavailable

SOON: Final = 0.1  # seconds after which a waiter looks who is in its way
OUTSIDE: Final = 0.25  # seconds between the looks of one that has no session to wait in
PROMPT: Final = 1.0  # seconds in which whoever is next has heard of it, on a busy machine too
AT_ONCE: Final = 0.001  # seconds in which a lock that nobody else wants is granted
MAX_CONTENDED: Final = 4096  # names

_living: weakref.WeakSet[Asking] = weakref.WeakSet()  # of this process


class Asking:
    def __init__(self, endpoint: PostgresEndpoint, world: World, clock: Clock | None) -> None:
        self._endpoint = endpoint
        self._world = world
        self._holds = Holds(fences_of(endpoint.name))
        self._contended = BoundedSet[int](
            MAX_CONTENDED
        )  # numbers that others lately wanted too: a try would be in vain
        told: weakref.WeakMethod[Callable[[Line], None]] = weakref.WeakMethod(self._ended)
        self._sessions = open_sessions(endpoint, PREPARE, world, clock, partial(_tell_end, told))
        _living.add(self)

    def _ended(self, line: Line) -> None:
        raise NotImplementedError

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant | Busy:
        key, ready = key_of(claim.terms.key), self._sessions.ready
        hold = None
        if ready is not None and _is_usual(claim.terms, ready) and key.number not in self._contended:
            hold = self._holds.enter_alone(claim, key, ready)  # the quick one
            if hold is not None and await self._try_in(ready, b"hf_try_exclusive", hold, within):
                hold.answered = True
                return hold.grant
        until = boot_now() + within
        answer = await self._acquire(claim, hold, enqueue, until)
        if isinstance(answer, Grant):
            await self._be_sure(claim, until)
        return answer

    async def _acquire(self, claim: Claim, tried: Hold | None, enqueue: bool, until: float) -> Grant | Busy:
        """Where others want it too, or it was asked for before."""
        self._sessions.holder = claim.terms.holder
        main = await self._sessions.main(max(0.01, until - boot_now()))
        if not main.named:
            await self._ask(main, b"hf_name", (short(claim.terms.holder).encode(),), until)
            main.named = True
        await self._keep(main, claim.terms.ttl, until)
        hold = self._holds.by_id.get(claim.id)
        if hold is not None and hold.state == "held" and hold.answered and not await self._is_kept(hold, until):
            return await self._acquire(claim, None, enqueue, until)
        if hold is None:
            hold = self._holds.enter(claim)
        elif hold is not tried:
            await self._settle(hold, main, until)
        if hold.state == "held":
            if claim.terms.mode == SHARED and hold.mode == EXCLUSIVE:
                await self._share(hold, until)
            return hold.grant
        if hold.state == "new":
            in_vain = enqueue and not hold.looks and hold.key.number in self._contended
            if not (in_vain or hold is tried) and await self._try(hold, main, until):
                self._come_in(hold)
                return hold.grant
            if not enqueue:
                self._holds.leave(hold)
                return await self._busy(hold, main, until)
            await self._stand_in_line(hold, until)
            untried = in_vain or hold.key in self._holds.ghosts
            if untried and hold.line is not None and self._known_holder(hold) is None:
                await self._sessions.briefly(hold.line, min(PROMPT, until - boot_now()))
                if hold.fence:
                    return hold.grant
        return await self._busy(hold, main, until)

    async def _keep(self, line: Line, ttl: float, until: float, *, urgent: bool = False) -> None:
        """See to it that the server keeps the session for longer than a holder believes without a word from it."""
        if ttl > line.longest_ttl:
            settings = keeping(seconds := kept_for(ttl))
            params = settings["tcp_user_timeout"], settings["tcp_keepalives_interval"]
            await self._ask(line, b"hf_keep", params, until, urgent=urgent)
            line.keeps(max(seconds, line.kept))

    async def _be_sure(self, claim: Claim, until: float) -> None:
        """Its holder believes from now on. After a long wait the server may not have heard from us for as long."""
        hold = self._holds.by_id.get(claim.id)
        if hold is None:
            raise unavailable(self._endpoint.name, "ended the session")
        line = hold.line
        if boot_now() - line.proven_at > line.kept - claim.terms.ttl * RATES:
            await self._ask(line, b"hf_ping", (), until)
        hold.renewed(claim.terms.ttl)
        hold.answered = True

    async def _is_kept(self, hold: Hold, until: float) -> bool:
        """Whether the session that holds it is there. The server may have ended it, and nobody has read that yet."""
        line = hold.line
        try:
            await self._ask(line, b"hf_ping", (), until)
        except BackendUnavailable:
            if line.alive:
                raise
            return False
        return True

    async def _settle(self, hold: Hold, main: Line, until: float) -> None:
        """It was asked for before: find out what came of that."""
        if hold.state == "waits":
            self._sessions.peek(hold.line)
        if hold.state == "asked" or hold.freeing:
            await self._ask(hold.line or main, b"hf_ping", (), until)  # whatever was sent before is answered first
        if hold.state == "in_doubt" and hold.in_main:
            await self._undo(hold, until)
        elif hold.state == "in_doubt":
            await self._settle_by_looking(hold, until)

    async def _undo(self, hold: Hold, until: float) -> None:
        """A try ended in an error: whatever it left in the main session is let go of."""
        if not self._holds.haunts(hold):
            await self._clear(hold.key, hold.line, until)
        hold.go_back()

    async def _clear(self, key: Key, line: Line, until: float) -> None:
        """All that the session has of it, as often as that may be. Nobody of ours is there."""
        while (await self._ask(line, b"hf_undo", key, until))[0][0] == b"t":
            pass

    async def _lay_ghost(self, key: Key, until: float) -> None:
        """As soon as nobody of ours shares it in the main session, that must not either."""
        line = left = self._holds.call_ghost(key)
        if line is None:
            return
        try:
            await self._clear(key, line, until)
            left = None
        finally:
            self._holds.leave_ghost(key, left if line.alive else None)

    async def _settle_by_looking(self, hold: Hold, until: float) -> None:
        """The wait was given up, by somebody or by a time limit; it may have been granted just before."""
        line = hold.line
        seen = read(await self._ask(line, b"hf_look", halves(hold.key.number), until))
        if any(one.pid == line.pid and one.granted for one in seen):
            rows = await self._ask(line, b"hf_tag", hold.key, until)
            self._hold_there(hold, rows)
        else:
            hold.state, hold.line = "new", None
            self._give_back(line)

    async def _try(self, hold: Hold, main: Line, until: float) -> bool:
        if hold.key in self._holds.ghosts:
            await self._lay_ghost(hold.key, until)
        if hold.mode != EXCLUSIVE and self._holds.may_share(hold) and not await self._probe(hold, until):
            return False
        if not self._holds.into_main(hold, main):
            return False
        name = b"hf_try_exclusive" if hold.mode == EXCLUSIVE else b"hf_try_shared"
        return await self._try_in(main, name, hold, max(0.01, until - boot_now()))

    async def _try_in(self, main: Line, name: bytes, hold: Hold, within: float) -> bool:
        statement = Statement(name, hold.key, hold.tried)
        try:
            await self._sessions.ask(main, statement, within)
        finally:
            if not statement.sent_at:
                hold.go_back()
        return hold.state == "held"

    async def _probe(self, hold: Hold, until: float) -> bool:
        """Whether a session that does not share the number yet would be let in: then nobody waits who came before."""
        line = await self._sessions.waiter(max(0.01, until - boot_now()))
        if line is None:
            return False
        try:
            rows = await self._ask(line, b"hf_probe", hold.key[:1], until)
        except BaseException:
            self._sessions.drop(line)  # what it was asked may still come
            raise
        finally:
            self._give_back(line)
        return rows[0][0] == b"t"

    async def _stand_in_line(self, hold: Hold, until: float) -> None:
        """In a session of its own, or outside if all are taken."""
        if hold.signal is None:
            hold.signal = self._world.signal()
        alone = not self._has_company(hold)
        if not self._holds.is_next(hold, alone=alone):
            return
        try:
            line = await self._sessions.waiter(max(0.01, until - boot_now()), beside=alone)
        except BackendUnavailable as error:
            if not error.transient:
                raise
            line = None  # no room there, or not in time; the main session has answered that it is taken
        if line is None:
            return
        try:
            await self._keep(line, hold.claim.terms.ttl, until)
        except BaseException:
            self._sessions.drop(line)
            self._give_back(line)
            raise
        hold.state, hold.line = "waits", line
        name = b"hf_lock_exclusive" if hold.mode == EXCLUSIVE else b"hf_lock_shared"
        statement = Statement(name, hold.key, partial(self._came, hold))
        self._sessions.send(line, statement)
        self._come_in(hold)  # not before: the next one must come after it at the server too

    def _come_in(self, hold: Hold) -> None:
        """Whoever is next outside may look: there may be a session for that one too."""
        if self._holds.outside.pop(hold.claim.id, None) is not None:
            self._wake_outside()

    def _came(self, hold: Hold, statement: Statement) -> None:
        """The wait is over."""
        if hold.state != "waits":
            return
        if statement.error is None:
            self._hold_there(hold, statement.answer)
            self._contended.keep(hold.key.number, boot_now() - statement.sent_at > AT_ONCE)
        else:
            hold.state = "in_doubt"
        hold.wake()

    def _hold_there(self, hold: Hold, rows: Rows) -> None:
        """In the session in which it was waited for; one more may wait now."""
        hold.come(rows[0][0] or b"0")
        self._sessions.has_come(hold.line)
        self._wake_outside()

    async def _busy(self, hold: Hold, main: Line, until: float) -> Grant | Busy:
        self._contended.add(hold.key.number)
        hold.looks += 1
        if hold.state == "ended" or hold.looks > 1:
            seen = read(await self._ask(main, b"hf_look", halves(hold.key.number), until))
            if await self._is_granted(hold, seen, until):
                return hold.grant
            holder = self._in_the_way(hold, seen)
            ahead = self._ahead(hold, seen)
            if hold.state == "new" and not self._has_company(hold):
                return Busy(ahead, OUTSIDE, holder)
            return Busy(ahead, poll_after(max(1, ahead)), holder)
        others = (other for backend in self._near() for other in backend._holds.of(hold.key.number))
        ahead = sum(other.state == "waits" and other is not hold for other in others)  # as far as this process knows
        return Busy(ahead, SOON, self._known_holder(hold))

    async def _is_granted(self, hold: Hold, seen: Sequence[Seen], until: float) -> bool:
        """If nobody is in its way, the request or its answer is on the way: wait for that."""
        line = hold.line
        holders = [one for one in seen if one.granted and line is not None and one.pid != line.pid]
        if line is not None and not any(hold.mode == EXCLUSIVE or not one.shared for one in holders):
            await self._sessions.briefly(line, min(PROMPT, until - boot_now()))
        return hold.fence > 0

    def _known_holder(self, hold: Hold) -> str | None:
        """Who is in the way, if it is one of this process."""
        for backend in self._near():
            for other in backend._holds.of(hold.key.number):
                if other.state == "held" and EXCLUSIVE in (hold.mode, other.mode):
                    return other.claim.terms.holder
        return None

    def _ahead(self, hold: Hold, seen: Sequence[Seen]) -> int:
        """How many stand in the server's queue before it."""
        queue = [one.pid for one in seen if not one.granted]
        pid = hold.line.pid if hold.line is not None else 0
        return queue.index(pid) if pid in queue else len(queue)

    def _has_company(self, hold: Hold) -> bool:
        """Somebody of ours stands in line for it, and wakes whoever is next outside."""
        return any(other.state == "waits" for other in self._holds.of(hold.key.number))

    def _in_the_way(self, hold: Hold, seen: Sequence[Seen]) -> str | None:
        """Who holds it. Raises Unsupported if that is another name with the same number; the claim waits on, then."""
        for one in seen:
            if one.granted:
                here = [other for other in self._here(one.pid, one.number) if other.state == "held"]
                if here and here[0].claim.terms.key == hold.claim.terms.key:
                    return here[0].claim.terms.holder
                tags = [tag for tag, _ in one.tags if is_tag_of(tag, hold.key.number)]
                if tags and hold.key.tag not in tags:
                    refuse_twins(hold.claim.terms.name, f"another lock, held by {one.application!r}")
                return one.application or f"pid {one.pid}"
        return None

    async def wait(self, claim: Claim, seconds: float) -> bool:
        hold = self._holds.by_id.get(claim.id)
        if hold is None or hold.state in ("held", "in_doubt"):
            return True
        line, signal = hold.line, hold.signal
        assert signal is not None  # whoever waits has been told to stand in line
        if hold.state == "waits" and line is not None:
            return await self._sessions.hear(line, signal, seconds)
        return await signal.wait(seconds)

    async def _share(self, hold: Hold, until: float) -> None:
        """Held alone until now. In one statement, so that nobody comes in between."""

        def shared(statement: Statement) -> None:
            hold.freeing = False
            if statement.error is None:
                hold.mode = SHARED

        hold.freeing = True
        statement = Statement(b"hf_share", hold.key[:1], shared)
        try:
            await self._sessions.ask(hold.line, statement, max(0.01, until - boot_now()))
        finally:
            if not statement.sent_at:
                hold.freeing = False

    def _give_back(self, line: Line) -> None:
        self._sessions.give_back(line)
        self._wake_outside()

    def _wake_outside(self) -> None:
        if self._holds.outside:
            with self._holds.mutex:
                first = next(iter(self._holds.outside.values()), None)
            if first is not None:
                first.wake()

    async def _leave_the_line(self, hold: Hold, until: float) -> None:
        """Out of the server's queue; should it be granted meanwhile, it is let go of."""
        line = hold.line
        try:
            self._holds.leave(hold)
            main = await self._sessions.main(max(0.01, until - boot_now()))
            await self._cancel(line, main, until)
            await self._free_all(line, until)
        except BaseException as error:
            self._sessions.drop(line)  # the server lets go of all that it held, or stood in line for
            if not isinstance(error, BackendUnavailable):
                raise
        finally:
            self._give_back(line)

    async def _cancel(self, line: Line, main: Line, until: float) -> None:
        """Again and again: one that comes before the statement has begun at the server is ignored there."""
        pause = AT_ONCE
        while line.flight is not None and line.alive:
            if boot_now() >= until:
                raise unavailable(self._endpoint.name, "does not cancel in time")
            await self._ask(main, b"hf_cancel", (line.pid,), until)
            await self._sessions.briefly(line, pause)
            pause *= 2

    async def _free_all(self, line: Line, until: float) -> None:
        for _ in range(3):
            try:
                await self._ask(line, b"hf_free_all", (), until)
                return
            except Cancelled:  # the cancellation came late, and hit this
                continue
        raise unavailable(self._endpoint.name, "cancels everything")

    # What this process knows

    def has_in(self, pid: int, number: int) -> builtins.list[Hold]:
        """What this `Locks` has of a number in that session."""
        return [one for one in self._holds.of(number) if one.line is not None and one.line.pid == pid]

    def _here(self, pid: int, number: int) -> builtins.list[Hold]:
        """What this process has of it."""
        return [hold for backend in self._near() for hold in backend.has_in(pid, number)]

    def _near(self) -> builtins.list[Asking]:
        return [backend for backend in list(_living) if backend._endpoint.name == self._endpoint.name]

    async def _ask(self, line: Line, name: bytes, params: Params, until: float, *, urgent: bool = False) -> Rows:
        statement = Statement(name, params)
        statement.urgent = urgent
        return await self._sessions.ask(line, statement, max(0.01, until - boot_now()))


def _is_usual(terms: Terms, main: Line) -> bool:
    """Whether there is nothing to settle before it is asked for in the main session."""
    return terms.mode == EXCLUSIVE and main.named and terms.ttl <= main.longest_ttl


def _tell_end(ended: weakref.WeakMethod[Callable[[Line], None]], line: Line) -> None:
    """The driver's threads keep nothing alive."""
    method = ended()
    if method is not None:
        method(line)
