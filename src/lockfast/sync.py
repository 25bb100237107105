"""The blocking world's face: flat, one line a method. All logic is in `primitives` and `engine`."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from lockfast._facades.lock import Lease, Lock
from lockfast._facades.observing import Observers, installers, observed
from lockfast._facades.opening import LocksOptions, open_locks
from lockfast._model import Diagnosis, LockInfo
from lockfast._reentry import drive, nothing
from lockfast._time import Seconds
from lockfast._worlds import Clock
from lockfast.backends.opening import ConnectOptions
from lockfast.engine.backoff import Backoff
from lockfast.engine.core import DEFAULT_RETRY, PATIENCE_S
from lockfast.observe.events import Events
from lockfast.primitives.locks import LocksLogic
from lockfast.primitives.names import DEFAULT_NAMESPACE, LockName

if TYPE_CHECKING:
    from lockfast._clients import UrlOrClient, UserConnection
    from lockfast._facades.primitives import Cell, Election, Limiter, MultiLease, MultiLock, RWLock
    from lockfast._facades.signatures import (
        F,
        LockedOptions,
        LockedWithLease,
        Singleton,
        SingletonOptions,
        SingletonOr,
        SingletonWithLease,
        SingletonWithLeaseOr,
    )
    from lockfast.observe.stats import Stats

__all__ = ["Lease", "Lock", "Locks", "connect"]

D = TypeVar("D")


class Locks:
    """All locks of one backend. Make one for a process and share it between threads."""

    def __init__(self, logic: LocksLogic) -> None:
        self._logic = logic

    @property
    def holder(self) -> str:
        """What others see when they ask who holds a lock of this instance."""
        return self._logic.engine.holder

    @property
    def events(self) -> Events:
        """The stream of what happens to the leases of this instance."""
        return self._logic.engine.events

    def lock(
        self,
        name: LockName,
        *,
        ttl: Seconds = 30,
        wait: Seconds | None = None,
        renew: bool = True,
        reentrant: bool = False,
        metadata: Any = None,
        min_hold: Seconds = 0,
        max_hold: Seconds | None = None,
        renew_every: Seconds | None = None,
        pattern: str | None = None,
        on_lost: Callable[[Lease], object] | None = None,
    ) -> Lock:
        """A lock on `name`. Nothing is asked of the backend yet.

        On advisory locks an integer is the server's own key, in any namespace: 42 is `pg_advisory_lock(42)`.
        `ttl` is how long the lease outlives a holder that died; a live one renews it (unless `renew=False`).
        `wait` is how long to wait for it: None for ever, 0 not at all. After release the name stays taken until
        `min_hold` seconds after the grant. Past an age of `max_hold` seconds the lease is not renewed any more, so a
        body that is stuck loses it, at most a ttl later. `renew_every` is the time between two renewals (None: a third
        of the ttl). `on_lost(lease)` is called, in another thread, if the lease is lost, with the ContextVars that
        `acquire` or the `with` was called with. `pattern` is what events and metrics call all
        names of this kind (None: the name with placeholders for numbers and ids).
        Raises ValueError for a bad name, time or metadata.
        """
        limits = (min_hold, max_hold, renew_every, pattern)
        return Lock(self._logic.lock(name, metadata, on_lost, ttl, wait, renew, reentrant, *limits))

    def semaphore(
        self,
        name: str,
        limit: int,
        *,
        ttl: Seconds = 30,
        wait: Seconds | None = None,
        renew: bool = True,
        metadata: Any = None,
        min_hold: Seconds = 0,
        max_hold: Seconds | None = None,
        renew_every: Seconds | None = None,
        pattern: str | None = None,
        on_lost: Callable[[Lease], object] | None = None,
    ) -> Lock:
        """As `lock`, but up to `limit` may hold it at once, each with a lease and a fence of its own.

        Raises LimitMismatch when acquired while others use the name with another limit.
        """
        options = {"ttl": ttl, "wait": wait, "renew": renew, "metadata": metadata}
        limits = {"min_hold": min_hold, "max_hold": max_hold, "renew_every": renew_every, "pattern": pattern}
        return Lock(self._logic.semaphore(name, limit, on_lost=on_lost, **options, **limits))

    def rwlock(
        self,
        name: LockName,
        *,
        ttl: Seconds = 30,
        wait: Seconds | None = None,
        renew: bool = True,
        metadata: Any = None,
        min_hold: Seconds = 0,
        max_hold: Seconds | None = None,
        renew_every: Seconds | None = None,
        pattern: str | None = None,
        on_lost: Callable[[Lease], object] | None = None,
    ) -> RWLock:
        """A read/write lock: `.read()` and `.write()` are locks on `name`, with these options."""
        from lockfast._facades.primitives import RWLock

        options = {"ttl": ttl, "wait": wait, "renew": renew, "metadata": metadata}
        limits = {"min_hold": min_hold, "max_hold": max_hold, "renew_every": renew_every, "pattern": pattern}
        return RWLock(self._logic.rwlock(name, on_lost=on_lost, **options, **limits))

    def all(
        self,
        *names: LockName,
        ttl: Seconds = 30,
        wait: Seconds | None = None,
        renew: bool = True,
        metadata: Any = None,
        max_hold: Seconds | None = None,
        renew_every: Seconds | None = None,
        pattern: str | None = None,
        on_lost: Callable[[MultiLease], object] | None = None,
    ) -> MultiLock:
        """All of the names as one lock. They are taken in one order, so two callers never wait for each other.

        `wait` is for all of them together; if one times out, none is kept. If one is lost, all are released.
        """
        from lockfast._facades.primitives import MultiLease, MultiLock

        options = {"ttl": ttl, "wait": wait, "renew": renew, "metadata": metadata}
        limits = {"max_hold": max_hold, "renew_every": renew_every, "pattern": pattern}
        return MultiLock(self._logic.all(names, MultiLease, on_lost, **options, **limits))

    def election(
        self,
        name: str,
        *,
        candidate: str | None = None,
        ttl: Seconds = 30,
        wait: Seconds | None = None,
        metadata: Any = None,
        max_hold: Seconds | None = None,
        renew_every: Seconds | None = None,
        pattern: str | None = None,
        on_lost: Callable[[Lease], object] | None = None,
    ) -> Election:
        """To be, or to watch, the one leader of `name`. The candidate is this instance's `holder` if not named.

        After a leader's death its place is vacant for up to `ttl` seconds.
        """
        from lockfast._facades.primitives import Election

        options = {"ttl": ttl, "wait": wait, "metadata": metadata, "on_lost": on_lost}
        limits = {"max_hold": max_hold, "renew_every": renew_every, "pattern": pattern}
        return Election(self._logic.election(name, candidate, **options, **limits))

    def limiter(self, name: str, *, rate: float, per: Seconds = 1.0, burst: int | None = None) -> Limiter:
        """At most `rate` permits in `per` seconds, evenly spaced; up to `burst` of them at once after a rest.

        In any stretch of `t` seconds at most `burst + t * rate / per` permits are given, `burst` being 1 by default.
        """
        from lockfast._facades.primitives import Limiter

        return Limiter(self._logic.limiter(name, rate, per, burst))

    def cell(self, name: str) -> Cell:
        """A JSON value with a version. Cells and locks do not share their names."""
        from lockfast._facades.primitives import Cell

        return Cell(self._logic.cell(name))

    @overload
    def locked(
        self, name: str, *, lease_as: None = None, **options: Unpack[LockedOptions[Lease]]
    ) -> Callable[[F], F]: ...
    @overload
    def locked(self, name: str, *, lease_as: str, **options: Unpack[LockedOptions[Lease]]) -> LockedWithLease: ...
    def locked(self, name: str, *, lease_as: str | None = None, **options: Unpack[LockedOptions[Lease]]) -> Any:
        """Decorate: the function runs under the lock `name`, which may have fields of its arguments: "job:{job_id}".

        `options` are those of `lock`. With `lease_as` the function is given the lease under that name; its callers do
        not pass it. Raises TypeError or ValueError, when decorating, for a coroutine function and for an unknown field.
        """
        from lockfast.primitives.decorators import locked

        return locked(self.lock, name, lease_as, options)

    @overload
    def singleton(
        self, name: str, *, lease_as: None = None, **options: Unpack[SingletonOptions[Lease]]
    ) -> Singleton: ...
    @overload
    def singleton(
        self, name: str, *, default: D, lease_as: None = None, **options: Unpack[SingletonOptions[Lease]]
    ) -> SingletonOr[D]: ...
    @overload
    def singleton(
        self, name: str, *, lease_as: str, **options: Unpack[SingletonOptions[Lease]]
    ) -> SingletonWithLease: ...
    @overload
    def singleton(
        self, name: str, *, default: D, lease_as: str, **options: Unpack[SingletonOptions[Lease]]
    ) -> SingletonWithLeaseOr[D]: ...
    def singleton(
        self, name: str, *, default: Any = None, lease_as: str | None = None, **options: Unpack[SingletonOptions[Lease]]
    ) -> Any:
        """As `locked`, but skips instead of waiting: while another call holds the lock, this one returns `default`.

        `min_hold` keeps the name taken for its time even after a fast run, so that a late second one is skipped too.
        """
        from lockfast.primitives.decorators import locked

        return locked(self.lock, name, lease_as, options, skip=True, default=default)

    def in_transaction(self, connection: UserConnection, *names: LockName, wait: Seconds | None = None) -> int:
        """Take locks inside a transaction of your own, on your connection: a commit or rollback ends them.

        `connection` is one of psycopg's or Django's, or a connection or session of SQLAlchemy, to the database where
        these locks are; raises ValueError if it leads elsewhere. Several names are taken in one order, all or none.
        Gives a fence for what the transaction does. Raises AcquireTimeout after `wait` seconds (None waits for ever,
        0 tries once). A wait that fails, however it does, leaves nothing held, and the transaction can go on. Only on
        postgresql+advisory://.
        """
        from lockfast.primitives.in_transaction import in_transaction

        logic = self._logic
        return drive(in_transaction(logic.engine, logic.namespace, connection, names, wait))

    def inspect(self, name: LockName) -> LockInfo:
        """Who holds `name` and how many wait for it."""
        return drive(self._logic.inspect(name))

    def list(self, prefix: str = "") -> builtins.list[LockInfo]:
        """Every lock of this namespace that is held or waited for, by name."""
        return drive(self._logic.list(prefix))

    def break_lock(self, name: LockName) -> LockInfo:
        """End every hold of `name`, and return what was there. The next grant has a higher fence.

        The former holder learns of it at its next renewal; until then only the fence stops it.
        What `list` has shown as damaged because its name is none can be broken by that very text.
        """
        return drive(self._logic.break_lock(name))

    def stats(self) -> Stats:
        """What this process did with these locks, as numbers: the metrics of docs/metrics.md without an exporter.

        `pending` and `leases` are always right. The rest is counted from the first call on, or from the beginning with
        `connect(observe=["stats"])`: without that call nothing is counted, and nothing is paid. Asks no backend.
        """
        return self._logic.stats()

    def doctor(self) -> Diagnosis:
        """How the servers are that these locks rest on: which answer, how fast, and what is wrong with the others.

        Raises nothing for a server that cannot be reached: the report says so.
        """
        return drive(self._logic.doctor())

    def close(self) -> None:
        """Release what is still held, and close the connections. A backend that does not answer has `patience` for it.

        A body that still runs under a lock loses it, and learns of that as of any other loss.
        """
        drive(self._logic.close(), self._logic.engine, nothing)

    def __enter__(self) -> Locks:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_logic"):  # else it is a copy that could not be made
            self._logic.warn_if_open(self)

    def __repr__(self) -> str:
        return f"<Locks {self._logic!r}>"


def connect(
    url_or_client: UrlOrClient | None = None,
    *,
    holder: str | None = None,
    namespace: str = DEFAULT_NAMESPACE,
    patience: Seconds = PATIENCE_S,
    retry: Backoff = DEFAULT_RETRY,
    replicas: int = 0,
    schema: str | None = None,
    advisory: bool = False,
    rejoin: Seconds | None = None,
    debug: bool | None = None,
    clock: Clock | None = None,
    observe: Observers = (),
) -> Locks:
    """Locks on the backend of that URL or client; without one on `$LOCKFAST_URL`, else on SQLite in the state folder.

    Nothing is opened until the first use. `holder` is what others see when they ask who holds a lock,
    `namespace` keeps the names of two applications apart, `patience` is how long to keep asking a backend that
    does not answer, where no `wait` says otherwise: for `inspect`, `list`, `break_lock` and `close` too. `retry` is
    how long the pauses are between two such requests; by default 0.02 to 1 second, growing, all of it by chance.
    With `replicas` a grant or a renewal counts only once that many replicas of a Redis have it.
    `schema` is where in a PostgreSQL the lock table is (`public`, or what the URL says with `?schema=`); `advisory`
    means its advisory locks instead of the table, as a URL that begins with `postgresql+advisory://` does.
    `rejoin` is how long a server of a quorum that has just started is excluded (the longest ttl; 0: not at all), as
    `redlock://…?rejoin=` says it.
    `debug` (or `LOCKFAST_DEBUG=1`) warns of locks that are taken in two orders. `clock` is for tests
    (`lockfast.testing.FakeClock`).
    `observe` is what to turn on: "prometheus", "otel", "stats", or functions that are called with the `Locks`.
    Raises ValueError for a URL or a name that makes no sense, and ImportError for what is not installed.
    """
    installs = installers(observe)
    at_backend = ConnectOptions(replicas, schema, advisory, rejoin)
    options = LocksOptions(holder, namespace, patience, retry, debug, clock)
    return observed(Locks(open_locks(url_or_client, at_backend, options)), installs)
