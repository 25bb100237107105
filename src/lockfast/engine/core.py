"""What holds the engine together: one for each `Locks`.

Decides: which parts there are, and where each verb is found.
Leaves to `acquire`, `releasing`, `extending` and `keeper`: what happens to claims and leases. Leaves to `retrying` and
`outage`: a backend that does not answer. Leaves to `closing`: the end of a `Locks`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from lockfast._bounded import BoundedSet
from lockfast._ids import default_holder
from lockfast._model import Claim
from lockfast._reentry import Mutex, nothing, start_put_off
from lockfast._refusals import closed_locks
from lockfast._worlds import ChangesLoops, World
from lockfast.backends.base import Backend
from lockfast.backends.optional import ReportsLosses
from lockfast.engine import background, checks, closing, extending, living, releasing, restarting, retrying
from lockfast.engine.backoff import Backoff
from lockfast.engine.callbacks import BackgroundEvents, OnLost
from lockfast.engine.keeper import Keeper
from lockfast.engine.lease import Lease
from lockfast.engine.outage import Outage
from lockfast.engine.reporting import AskReport, backend_name
from lockfast.engine.unfinished import Unfinished
from lockfast.observe.events import Events

if TYPE_CHECKING:
    from lockfast.engine.order import LockOrder
    from lockfast.engine.standby import Standby

BRIEFLY_S: Final = 0.03  # over `wait`, to clean up in; what a silent backend leaves is done in the background
PATIENCE_S: Final = 10.0  # to keep asking a backend that does not answer, where no `wait` says otherwise
MAX_BROKEN: Final = 1000
DEFAULT_RETRY: Final = Backoff()


class Engine:
    def __init__(
        self,
        backend: Backend,
        world: World,
        *,
        lease_type: type[Lease] = Lease,
        holder: str | None = None,
        patience: float = PATIENCE_S,
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
        self.backend_name = backend_name(backend)  # in events, as the next
        self.namespace = ""
        self._given_holder = holder
        self.order = order  # in debug mode: who asked for what while holding what
        self.briefly = BRIEFLY_S
        self.closed = False
        self.standby: Standby | None = None  # renews what is held while its event loop is blocked
        self.open_twin: Callable[[], Backend] | None = None  # of the same store, for a thread
        self.on_renewed: Callable[[], object] = nothing  # of our own: called by the keeper, and never waits
        self.finish: Callable[[Engine], None] | None = None  # see `process`
        self.make_parts()
        if isinstance(backend, ReportsLosses):
            backend.on_loss = self._on_loss
        if isinstance(world, ChangesLoops):
            world.on_new_loop = partial(restarting.begin_again, self)
        living.begins(self)
        start_put_off()

    def make_parts(self) -> None:
        """All that belongs to this process alone."""
        self.mutex = Mutex()  # held for single steps only, never while anything is awaited
        self.holder = default_holder() if self._given_holder is None else self._given_holder
        self.entered: dict[tuple[object, str], Lease] = {}  # by owner and key: leases that may be entered again
        self.waiting: dict[str, Claim] = {}  # by id: claims that were asked for, and of which no lease has come yet
        self.observing: set[str] = set()  # ids of those of them that observe an election, and do not want a lease
        self.reports: dict[str, AskReport] = {}  # by id: claims of which no end was reported yet
        self.broken = BoundedSet[str](MAX_BROKEN)  # claims, of any holder, that were broken through this engine
        self.keeper = Keeper(self)  # of the leases that are held
        self.loop_watch = None if self.standby is None else self.standby.watch(self)
        self.unfinished = Unfinished(self)  # claims that are still to be abandoned, in the background
        self.outage = Outage(self)
        self.on_lost = OnLost(self)
        self.background = BackgroundEvents(self)

    def stand_by(self, standby: Standby) -> None:
        """From now on that thread renews what is held while the event loop is blocked. Nothing is held yet."""
        self.standby = standby
        self.loop_watch = standby.watch(self)

    def __reduce_ex__(self, _: object) -> NoReturn:
        """All that belongs to a `Locks` has it, and so cannot be pickled either."""
        raise TypeError("a Locks can be neither pickled nor copied in depth; connect() in the other process")

    # What happens to claims and leases; `acquire` makes them

    extend = extending.extend
    downgrade = extending.downgrade
    release = releasing.release
    abandon = releasing.abandon

    def forget_entry(self, lease: Lease) -> None:
        """Its owner does not enter it again."""
        if lease._request.reentrant:
            self.entered.pop((lease._owner, lease._claim.terms.key), None)

    # Requests, and work that is done later

    insist = retrying.insist
    once = retrying.once
    watched = retrying.watched
    behind = background.behind
    spawn = background.spawn
    put_off = background.put_off

    # What is refused

    must_not_wait_for_itself = living.must_not_wait_for_itself
    must_be_able = checks.must_be_able
    unsupported = checks.unsupported
    valid_ttl = checks.valid_ttl
    valid_renewals = checks.valid_renewals

    def arrive(self) -> None:
        """Raises RuntimeError in an event loop that this `Locks` does not belong to."""
        if not self.world.blocking:
            self.world.arrive()

    def must_be_open(self) -> None:
        if self.closed:
            raise closed_locks()

    # Losses, a fork, the end

    def _on_loss(self, ended: Sequence[tuple[str, int]], reason: str) -> None:
        self.keeper.on_loss(ended, reason)  # of now: a fork has another

    after_fork = restarting.after_fork

    @property
    def leaves_something(self) -> bool:
        """If it is not closed, something stays in the store until its time is up, or is never reported."""
        if self.closed:
            return False
        kept = self.keeper.leases or self.waiting or self.unfinished
        return bool(kept) or self.on_lost.calling or self.background.emitting

    async def close(self, within: float | None = None) -> None:
        """See `closing`."""
        self.arrive()
        await closing.close(self, within)
        living.ends(self)
        if self.standby is not None:
            self.standby.unwatch(self)
