"""Everything that a backend of your own needs. `examples/own_backend` is a complete one.

A backend answers the verbs of `Backend`: each is one atomic step at the store, on the store's own clock. It says in
its `Capabilities` what it cannot do. `lockfast.connect` takes a `BackendFactory`, a function
`(world, clock) -> Backend`, in place of a URL; an installed package gets a URL scheme of its own with an entry point
in the group `lockfast.backends`, which has the name of the scheme and leads to a `UrlOpener`.
`lockfast.testing.contract` tests whether a backend keeps its promises.

**What is asked for.** `Claim` is one request for one name, and its id is its whole identity; `Terms` are what it asks
for; `Mode` is `EXCLUSIVE` or `SHARED`. `Renewal` asks for a longer lease.

**What is answered.** `Grant` or `Busy` to `acquire`, an `Observation` with its `Change`s to `observe`, a `LockInfo`
with its `HolderInfo`s to `inspect`, `list` and `break_`, and `Health` to `check_up`.

**Who is next.** `Occupancy` has the one rule of admission, `next_in_queue` picks the waiters to reserve for (each is
a `Waiting`), and `poll_after` says how long a waiter sleeps before it asks again by itself. A store that `hands_over`
asks `next_offers` instead, which says for each whether it is made the holder: its `Offer`, as `offer_to` decides it.
A freed name stays reserved for `GRACE_S` seconds; a waiter that has not asked for `PRESENCE_S` seconds loses its
place; the store keeps `MAX_KEPT_CHANGES` changes for an observer; no waiter sleeps longer than `MAX_POLL_S`.
`first_fence` is where a new store starts to count.

**Limiters and cells.** `Rate`, `Booked` and `Allowance` are the question and the answers of `throttle`, and
`book_permits` decides it. `Write`, `Written` and `Stored` are those of `write` and `read`: `check_write` decides
whether a write goes through, and `apply_write` makes the new cell. `NS_PER_S` is the nanoseconds of a second,
`EMPTY_CELL` a cell that does not exist. `WithoutValues` and `WithoutChanges` answer the verbs of what a backend does
not have.

**What some can do besides.** A backend has the methods of `ReportsLosses` (with its `LossListener`) if it notices by
itself that a hold ended, of `HasOneServer` or `HasSeveralServers` if `lockfast doctor` can learn more of its servers,
of `HasUrl` if a URL leads to its store, of `InspectsHolders` if it can name the holders of a lock without reading its
waiters, of `LocksInTransactions` if it locks inside a transaction of the caller, of `TakesIntegers` if its locks
have numbers of their own, and of `RenewsFromOutside` if only its own connections can renew what they hold.

**While an event loop is blocked**, what is held in it is renewed by a backend that the same `BackendFactory` makes for
threads. That needs nothing of the backend if `expires` is among its capabilities and both have one `store_id`.

**Where it runs.** `World` is what the backend waits and starts work with, in threads or in asyncio; `Signal` wakes one
waiter. `Clock` is a clock that a test moves: a store follows the one that it is given, and `boot_now` if that is None.
`with critical_section(Mutex()):` holds a mutex in either world, and no finalizer can deadlock on it.

**How it is opened.** `ConnectOptions` are the options of `connect()`, `split_url` reads a URL without showing its
password in an error.

**What it raises.** `BackendUnavailable` if the store cannot be asked or does not answer within `within` seconds, the
`LimitMismatch` that `limit_mismatch` makes from `acquire`, `Unsupported` when it is opened with an option that it does
not take.
"""

from __future__ import annotations

from lockfast._model import (
    EXCLUSIVE,
    GRACE_S,
    MAX_KEPT_CHANGES,
    MAX_POLL_S,
    PRESENCE_S,
    SHARED,
    Busy,
    Capabilities,
    Change,
    Claim,
    Grant,
    Health,
    HolderInfo,
    LockInfo,
    Mode,
    Observation,
    Occupancy,
    Offer,
    Renewal,
    Terms,
    Waiting,
    next_in_queue,
    next_offers,
    offer_to,
    poll_after,
)
from lockfast._reentry import Mutex, critical_section
from lockfast._refusals import limit_mismatch
from lockfast._time import boot_now, first_fence
from lockfast._values import (
    EMPTY_CELL,
    NS_PER_S,
    Allowance,
    Booked,
    Rate,
    Stored,
    Write,
    Written,
    apply_write,
    book_permits,
    check_write,
)
from lockfast._worlds import Clock, Guard, Signal, World
from lockfast.backends.base import Backend
from lockfast.backends.opening import BackendFactory, ConnectOptions, UrlOpener, split_url
from lockfast.backends.optional import (
    HasOneServer,
    HasSeveralServers,
    HasUrl,
    InspectsHolders,
    LocksInTransactions,
    LossListener,
    RenewsFromOutside,
    ReportsLosses,
    TakesIntegers,
    WithoutChanges,
    WithoutValues,
)
from lockfast.errors import BackendUnavailable, LimitMismatch, Unsupported

__all__ = [
    "EMPTY_CELL",
    "EXCLUSIVE",
    "GRACE_S",
    "MAX_KEPT_CHANGES",
    "MAX_POLL_S",
    "NS_PER_S",
    "PRESENCE_S",
    "SHARED",
    "Allowance",
    "Backend",
    "BackendFactory",
    "BackendUnavailable",
    "Booked",
    "Busy",
    "Capabilities",
    "Change",
    "Claim",
    "Clock",
    "ConnectOptions",
    "Grant",
    "Guard",
    "HasOneServer",
    "HasSeveralServers",
    "HasUrl",
    "Health",
    "HolderInfo",
    "InspectsHolders",
    "LimitMismatch",
    "LockInfo",
    "LocksInTransactions",
    "LossListener",
    "Mode",
    "Mutex",
    "Observation",
    "Occupancy",
    "Offer",
    "Rate",
    "Renewal",
    "RenewsFromOutside",
    "ReportsLosses",
    "Signal",
    "Stored",
    "TakesIntegers",
    "Terms",
    "Unsupported",
    "UrlOpener",
    "Waiting",
    "WithoutChanges",
    "WithoutValues",
    "World",
    "Write",
    "Written",
    "apply_write",
    "book_permits",
    "boot_now",
    "check_write",
    "critical_section",
    "first_fence",
    "limit_mismatch",
    "next_in_queue",
    "next_offers",
    "offer_to",
    "poll_after",
    "split_url",
]
