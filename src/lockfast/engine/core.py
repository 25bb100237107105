"""What holds the engine together: one for each `Locks`.

Decides: how long to insist when a backend does not answer, and what is left when a process forks or an interpreter
ends. Leaves to `closing`: the end of a `Locks`. Leaves to `unfinished`: what could not be abandoned.
"""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from lockfast._debug import debug_is_on
from lockfast._ids import default_holder
from lockfast._model import Busy, Claim, Grant, Renewal
from lockfast._reentry import Mutex, nothing, put_off, start_put_off
from lockfast._text import shown
from lockfast._time import FOREVER, Seconds, length
from lockfast._worlds import ChangesLoops, World
from lockfast.backends.base import Backend
from lockfast.backends.optional import ReportsLosses
from lockfast.engine.backoff import Backoff
from lockfast.engine.callbacks import BackgroundEvents, OnLost
from lockfast.engine.closing import close
from lockfast.engine.keeper import Held, Keeper
from lockfast.engine.lease import Lease
from lockfast.engine.outage import Outage
from lockfast.engine.unfinished import Unfinished
from lockfast.errors import BackendUnavailable, LockError, SelfDeadlock, Unsupported
from lockfast.observe.events import Event, Events, Kind

if TYPE_CHECKING:
    from lockfast.engine.order import LockOrder

S = TypeVar("S")
T = TypeVar("T")

_living: weakref.WeakSet[Engine] = weakref.WeakSet()  # all of this process that are not closed

BRIEFLY = 0.03  # seconds over `wait` to clean up in; what a silent backend leaves is done in the background
DEFAULT_RETRY: Final = Backoff()
PATIENCE = 10.0  # seconds to keep asking a backend that does not answer, where no `wait` says otherwise


class Engine:
    def __init__(
        self,
        backend: Backend,
        world: World,
        *,
        lease_type: type[Lease] = Lease,
        holder: str | None = None,
        patience: float = PATIENCE,
        order: LockOrder | None = None,
        retry: Backoff = DEFAULT_RETRY,
    ) -> None:
        self.backend = backend
        self.world = world
        self.now = world.now
        self.lease_type = lease_type
        self.patience = patience
        self.retry = retry  # pauses between requests to a backend that cannot be reached
        self.belief = 1.0 - backend.capabilities.drift  # the part of a ttl that we believe in
        self.events = Events()
        self.mutex = Mutex()  # held for single steps only, never while anything is awaited
        self.keeper = Keeper(self)
        self.outage = Outage(self)
        self.on_lost = OnLost(self)
        self.background = BackgroundEvents(self)
        self.on_renewed: Callable[[], object] = nothing  # of our own: called by the keeper, and never waits
        self.entered: dict[tuple[object, str], Lease] = {}  # by owner and key: leases that may be entered again
        self.waiting: dict[str, Claim] = {}  # by id: those that were asked for, and of which no lease has come yet
        self.unfinished = Unfinished(self)  # those that are still to be abandoned, in the background
        self._given_holder = holder
        self.holder = default_holder() if holder is None else holder
        self.order = order  # in debug mode: who asked for what while holding what
        self.briefly = BRIEFLY
        self.closed = False
        self.finish: Callable[[Engine], None] | None = None  # see `process`
        if isinstance(backend, ReportsLosses):
            backend.on_loss = self._hear_of_loss
        if isinstance(world, ChangesLoops):
            world.on_new_loop = self._begin_again
        _living.add(self)
        start_put_off()

    def __reduce_ex__(self, _: object) -> NoReturn:
        """All that belongs to a `Locks` has it, and so cannot be pickled either."""
        raise TypeError("a Locks can be neither pickled nor copied in depth; connect() in the other process")

    def _hear_of_loss(self, ended: Sequence[Held], reason: str) -> None:
        self.keeper.hear_of_loss(ended, reason)  # of now: a fork has another

    def _begin_again(self) -> None:
        """The event loop was closed with all that ran in it, and this is used in another one now."""
        waited = list(self.waiting.values())
        self.waiting.clear()
        self.outage.begin_again()
        self.on_lost.begin_again()
        self.background.begin_again()
        self.keeper.begin_again()
        for claim in waited:
            self.take_back(claim)
            self.unfinished.note(claim)
        self.unfinished.begin_again()

    def _arrive(self) -> None:
        if not self.world.blocking:
            self.world.arrive()

    def must_be_able(self, what: str, able: bool) -> None:
        """Raises Unsupported, at construction and not later, for what the backend has said it cannot do."""
        if not able:
            raise self.unsupported(what)

    def unsupported(self, what: str) -> Unsupported:
        return Unsupported(f"{self.backend!r} has no {what}; nothing was sent")

    def held_by(self, owner: object) -> Iterator[Lease]:
        """The leases that this thread or task has asked for and not let go of."""
        return (lease for lease in list(self.keeper.leases.values()) if lease._owner is owner and lease.held)

    def must_not_wait_for_itself(self, claim: Claim) -> None:
        """Raises SelfDeadlock in the body of a `with` that holds what would be waited for: it would never end."""
        name, key, limit = claim.terms.name, claim.terms.key, claim.terms.limit
        bodies: dict[FrameType | None, Lease] = {}
        store = None
        for engine in all_living():
            for lease in list(engine.keeper.leases.values()):
                terms = lease._claim.terms
                if lease._body is None or terms.key != key or not lease.held:
                    continue
                if None not in (terms.limit, limit):  # one may hold several permits of a semaphore
                    continue
                store = store or self.backend.store_id
                if engine is self or engine.backend.store_id == store:
                    bodies[lease._body] = lease
        around = next((frame for frame in self.world.stack() if frame in bodies), None) if bodies else None
        if around is not None:
            raise SelfDeadlock(
                f"lock {name!r} is held by the `with` block around this very call, in {around.f_code.co_qualname} "
                f"(fence {bodies[around]._fence}), which would wait for itself without end; "
                "give it a `wait`, release it first, or make a `lock` reentrant",
                name=name,
            )

    def must_be_open(self) -> None:
        if self.closed:
            raise LockError.closed()

    def valid_ttl(self, ttl: Seconds) -> float:
        """Raises ValueError for a length of time that the backend cannot keep."""
        can = self.backend.capabilities
        return length(ttl, "ttl", least=can.min_ttl, most=can.max_ttl)

    def valid_renewals(
        self, ttl: float, renew_every: Seconds | None, max_hold: Seconds | None
    ) -> tuple[float | None, float | None]:
        """Both in seconds, for a `Request`. Raises ValueError for an interval that lets the lease expire."""
        every = None if renew_every is None else length(renew_every, "renew_every", least=0.01)
        if every is not None and every >= ttl:
            raise ValueError(f"renew_every must be less than the ttl of {ttl:g} seconds, not {shown(renew_every)}")
        return every, None if max_hold is None else length(max_hold, "max_hold")

    # What happens to claims and leases

    async def abandon(self, claim: Claim, within: float = 1.0, *, sent: bool = True) -> None:
        """Leave nothing behind, whatever became of the claim; never raises a LockError.

        What cannot be done `within` that time is tried further in the background; but if nothing of it was ever `sent`,
        only this process can have anything to forget.
        """
        self.take_back(claim)
        if self.world.blocking or self.backend.capabilities.instant:
            await self._abandon(claim, within, sent)
        else:
            await self.world.shielded(self._abandon(claim, within, sent))

    def take_back(self, claim: Claim) -> None:
        """It may have been interrupted just after the grant, before anybody had the lease."""
        kept = self.keeper.leases.get(claim.id)
        if kept is not None:
            kept._move("release")
            self.keeper.forget(kept)
            self.let_go(kept)
            if kept._home is not None:
                kept._home.drop(kept)

    async def _abandon(self, claim: Claim, within: float, sent: bool) -> None:
        try:
            await self.backend.abandon(claim, within=min(within, self.patience))
        except BackendUnavailable:
            if sent:
                self.unfinished.add(claim)
        except LockError:
            pass  # the store cannot be used at all, and to try again would not change that

    async def extend(self, lease: Lease, ttl: float) -> None:
        self._arrive()
        asked_at = self.now()

        def ask(within: float) -> Awaitable[Sequence[bool | None]]:
            nonlocal asked_at
            asked_at = self.now()  # before sending: the server's ttl cannot have started earlier
            return self.backend.renew([Renewal(lease._claim, ttl, lease._fence)], within=within)

        answers, _ = await self.insist(ask, min(lease._deadline, asked_at + self.patience))
        self.keeper.notice(lease)  # an answer that comes after the deadline brings nothing back
        if not answers[0]:
            self.keeper.lose(lease, "denied", "the backend no longer has it: it expired or was broken")
        if lease._state != "held":
            raise lease._not_held()
        lease._extended(asked_at, ttl)
        self.keeper.renewed(lease, asked_at)
        self.keeper.look_again(lease)

    async def downgrade(self, lease: Lease) -> None:
        """Share it from now on, with nobody else in between."""
        self._arrive()
        if self.backend.capabilities.instant:
            await self._downgrade(lease)
        else:
            await self.world.shielded(self._downgrade(lease))

    async def _downgrade(self, lease: Lease) -> None:
        claim = lease._share()
        asked_at = self.now()

        async def ask(within: float) -> Grant | Busy:
            nonlocal asked_at
            asked_at = self.now()  # before sending: the server's ttl cannot have started earlier
            answer = await self.backend.acquire(claim, enqueue=False, within=within)
            if isinstance(answer, Busy) and answer.unsettled:
                raise BackendUnavailable(f"lock {lease.name!r} is {answer.in_words}", name=lease.name)
            return answer

        answer, _ = await self.insist(ask, min(lease._deadline, asked_at + self.patience))
        self.keeper.notice(lease)
        if not isinstance(answer, Grant) or answer.fence != lease._fence:
            self.keeper.lose(lease, "denied", "the backend no longer has it: it expired or was broken")
            await self.abandon(claim)  # what was granted instead is not what its holder had
        if lease._state != "held":
            raise lease._not_held()
        lease._renewed(asked_at, lease._ttl)
        self.keeper.renewed(lease, asked_at)

    async def release(self, lease: Lease, successor: str = "", *, until: float = FOREVER) -> bool:
        """True if it was held until now. False if it was not; then nobody else's hold is touched.

        Insists for as long as the engine's patience lasts, and not longer than `until`.
        """
        self._arrive()
        self.keeper.notice(lease)
        if lease._request.reentrant:
            self.let_go(lease)
        # Asked before, or by somebody else who waits for the answer now: then that may have freed it, but not time.
        again = lease._state == "releasing" and self.now() < lease._deadline
        linger = self.linger(lease) if lease._request.min_hold else 0.0
        try:
            if not lease._move("release"):
                return False
            now = self.now()
            within = (until if until < lease._deadline else lease._deadline) - now  # then it has ended by itself
            within = self.patience if within > self.patience else max(0.02, within)
            try:
                if not self.outage.watches:
                    freed = await self.backend.release(lease._claim, linger=linger, within=within, successor=successor)
                else:  # half of it: a connection may lead nowhere, and then there is time to try another
                    ask = partial(
                        self.backend.release, lease._claim, linger=linger, within=within / 2, successor=successor
                    )
                    freed = await self.watched(ask, now, now + within)
            except BackendUnavailable as error:
                if error.transient:
                    self.outage.failed(error, now, self.now(), now + within)
                freed, again = await self.release_again(lease, linger, successor, now + within, error), True
            return self._released(lease, freed or again)  # again: an earlier try that went unanswered has freed it
        except Exception:
            raise
        except BaseException as interrupt:
            # Cancelled or interrupted: what that cut short is done again, and then it goes on.
            try:
                if lease._state == "releasing" and interrupt.__class__ is not GeneratorExit:
                    with suppress(LockError):
                        await self.world.shielded(self._finish_release(lease, linger, successor))
            except BaseException:
                if self.world.blocking:  # another interrupt, in the middle of that; none falls into the background
                    self.behind(lambda lease: self._finish_release(lease, linger, successor), lease)
                raise
            if lease._state != "releasing":
                self.keeper.forget(lease)
            raise

    def behind(self, verb: Callable[[S], Awaitable[object]], subject: S) -> None:
        """Do it in the background, where there still is one; else the ttl does. Takes no mutex."""
        self.spawn(lambda: _quietly(verb, subject), "lockfast-behind")

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> bool:
        """Soon, or as soon as a thread can be started for it; False: never, it needs an event loop and none runs."""
        try:
            self.world.spawn(work(), name)
        except RuntimeError:
            if not (self.world.blocking or self.backend.capabilities.instant):
                return False
            put_off(work(), nothing)
        return True

    async def _finish_release(self, lease: Lease, linger: float, successor: str) -> None:
        await self.release_again(lease, linger, successor, self.now() + self.patience)
        self._released(lease, True)

    def _released(self, lease: Lease, freed: bool) -> bool:
        if freed:
            told = lease._move("freed") and self.events.wanted()
            self.keeper.forget(lease)
            if told:
                self.tell_lease("released", lease)
            return lease._state != "lost"  # the backend may have reported a loss meanwhile
        self.keeper.lose(lease, "gone", "it had ended on the backend before it was released")
        return False

    def linger(self, lease: Lease) -> float:
        """How long the name stays taken after the release."""
        return max(0.0, lease._request.min_hold - (self.now() - lease._granted_at))

    async def release_again(
        self, lease: Lease, linger: float, successor: str, until: float, error: BackendUnavailable | None = None
    ) -> bool:
        try:
            if error is not None and not error.transient:
                raise error
            freed, _ = await self.insist(
                lambda within: self.backend.release(lease._claim, linger=linger, within=within, successor=successor),
                min(lease._deadline, until),
            )
            return freed
        except BackendUnavailable as last:
            self.leave_to_time(lease, str(last))
            raise

    def leave_to_time(self, lease: Lease, why: str) -> None:
        if self.backend.capabilities.expires:
            self.tell_lease("release_failed", lease, f"it ends by itself when its ttl has passed; {why}")
        else:
            self.unfinished.add(lease._claim)
            self.tell_lease("release_failed", lease, f"it is tried again until its session ends; {why}")

    async def insist(self, ask: Callable[[float], Awaitable[T]], until: float) -> tuple[T, int]:
        """Ask again and again while the backend fails in passing; the answer, and how often it failed."""
        self._arrive()
        failures = 0
        while True:
            asked_at = self.now()
            try:
                within = max(0.01, min(self.patience, until - asked_at))
                answer = await self.watched(partial(ask, within), asked_at, until)
                if failures:
                    self.outage.over()
                return answer, failures
            except BackendUnavailable as error:
                failures += 1
                again_at = self.now() + self.retry.pause(failures, self.world.chance())
                if not error.transient or again_at >= until:
                    raise self.outage.final(error) from error.__cause__
                self.outage.failed(error, asked_at, again_at, until)
                await self.world.pause(again_at - self.now())

    async def watched(self, ask: Callable[[], Awaitable[T]], asked_at: float, until: float | None) -> T:
        """Ask once. Silence is reported, with how long the caller insists if that is known."""
        if not self.outage.watches:
            return await ask()
        request = object()
        try:
            self.outage.sent(request, asked_at, until)
            answer = await ask()
            self.outage.answered(request)
            return answer
        finally:
            if request in self.outage.unanswered:  # no call: an interrupt could fall into it
                del self.outage.unanswered[request]

    async def once(self, ask: Callable[..., Awaitable[T]]) -> T:
        """The answer to a question that is not repeated: `ask(within=…)` has all of the patience."""
        self._arrive()
        now = self.now()
        try:
            return await self.watched(partial(ask, within=self.patience), now, now + self.patience)
        except BackendUnavailable as error:
            raise self.outage.final(error) from error.__cause__

    def let_go(self, lease: Lease) -> None:
        """Nobody enters it again."""
        if lease._request.reentrant:
            self.entered.pop((lease._owner, lease._claim.terms.key), None)

    def put_off(self, work: Coroutine[Any, Any, Any]) -> None:
        """If a keeper runs it starts this work, else the next operation does. Takes no mutex."""
        put_off(work, self.world.stand_in())
        self.keeper.poke()

    # What is told

    def tell_claim(
        self, kind: Kind, claim: Claim, *, fence: int | None = None, waited: float | None = None, detail: str = ""
    ) -> None:
        terms = claim.terms
        self.events.tell(Event(kind, terms.name, terms.holder, claim.id, fence, waited, None, detail))

    def tell_lease(self, kind: Kind, lease: Lease, detail: str = "") -> None:
        self.events.tell(self._of_lease(kind, lease, detail))

    def tell_behind(self, kind: Kind, lease: Lease, detail: str = "") -> None:
        """A keeper's thread does it: a listener that blocks that would cost leases. An event loop has no other."""
        tell = self.background.tell if self.world.blocking else self.events.tell
        tell(self._of_lease(kind, lease, detail))

    def _of_lease(self, kind: Kind, lease: Lease, detail: str) -> Event:
        held = self.now() - lease._granted_at
        facts = (lease.name, lease.holder, lease.claim_id, lease.fence, lease._waited, held, detail)
        return Event(kind, *facts)

    # The end

    @property
    def leaves_something(self) -> bool:
        """If it is not closed, something stays in the store until its time is up, or is never told."""
        if self.closed:
            return False
        kept = self.keeper.leases or self.waiting or self.unfinished
        return bool(kept) or self.on_lost.calling or self.background.telling

    async def close(self, within: float | None = None) -> None:
        """See `closing`."""
        self._arrive()
        await close(self, within)
        _living.discard(self)

    def after_fork(self) -> None:
        """In the child: the leases are the parent's, and so is every connection and thread."""
        self.mutex = Mutex()
        self.world.after_fork()
        self.backend.after_fork(child=True)
        for lease in list(self.keeper.leases.values()):
            lease._move("fork")
        self.keeper = Keeper(self)
        self.outage = Outage(self)
        self.on_lost = OnLost(self)
        self.background = BackgroundEvents(self)
        self.events.after_fork()
        self.entered = {}
        self.waiting = {}
        self.unfinished = Unfinished(self)
        self.holder = default_holder() if self._given_holder is None else self._given_holder


def all_living() -> list[Engine]:
    while True:
        try:
            return list(_living)
        except RuntimeError:  # another thread has made one meanwhile
            continue


def held_here() -> Iterator[tuple[Engine, Lease]]:
    """What this thread or task holds, through whichever `Locks` of the process."""
    for engine in all_living():
        if not engine.keeper.leases:
            continue
        owner = None
        with suppress(RuntimeError):  # there is no task where no loop runs
            owner = engine.world.owner()
        if owner is not None:
            yield from ((engine, lease) for lease in engine.held_by(owner))


def lock_order(debug: bool | None) -> LockOrder | None:
    """What debug mode needs; None says `$LOCKFAST_DEBUG`."""
    if debug is None:
        debug = debug_is_on()
    if not debug:
        return None
    from lockfast.engine.order import ORDER

    return ORDER


async def _quietly(verb: Callable[[S], Awaitable[object]], subject: S) -> None:
    with suppress(LockError):
        await verb(subject)
