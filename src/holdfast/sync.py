"""The blocking world's face: flat, one line a method. All logic is in `primitives` and `engine`."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from types import TracebackType
from typing import Any

from holdfast._connect import open_backend
from holdfast._model import LockInfo
from holdfast._time import Seconds, length
from holdfast._worlds import Clock, drive
from holdfast._worlds.threads import ThreadWorld
from holdfast.engine import lease
from holdfast.engine.core import PATIENCE, Engine
from holdfast.engine.process import adopt
from holdfast.observe.events import Events
from holdfast.primitives.lock import LockLogic
from holdfast.primitives.locks import LocksLogic
from holdfast.primitives.names import DEFAULT_NAMESPACE


class Lease(lease.Lease):
    """One granted lock, held until released, lost or expired. See `holdfast.engine.lease`."""

    __slots__ = ()

    def extend(self, ttl: Seconds | None = None) -> bool:
        """Hold it for at least `ttl` seconds from now, and use that ttl from now on. Never shortens.

        Raises LeaseLost if it is no longer ours; nothing is taken again behind your back. Raises
        BackendUnavailable if the backend does not answer; the lease is then what it was before.
        """
        return drive(self._extend(ttl))

    def release(self) -> bool:
        """True if it was held until now. False if it had ended before; the next holder is not touched.

        Raises BackendUnavailable if the backend does not answer; call again, or its ttl ends it.
        """
        return drive(self._release())


class Lock:
    """A named lock: a context manager, and a drop-in for `threading.Lock`."""

    __slots__ = ("_logic",)

    def __init__(self, logic: LockLogic) -> None:
        self._logic = logic

    def acquire(self, blocking: bool = True, timeout: Seconds | None = None) -> Lease | None:
        """The lease, or None if it was not to be had: `timeout` seconds, by default the lock's own `wait`.

        Raises BackendUnavailable if the backend cannot be asked. However it fails, nothing is left behind.
        """
        return drive(self._logic.acquire(blocking, timeout))  # type: ignore[return-value]

    def release(self) -> None:
        """Let go of what was last acquired through this object. Raises NotHeld if there is nothing."""
        drive(self._logic.release())

    def locked(self) -> bool:
        """Whether anybody holds it, in this process or another."""
        return drive(self._logic.locked())

    def __enter__(self) -> Lease:
        return drive(self._logic.enter())  # type: ignore[return-value]

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        drive(self._logic.leave(exc))

    def __repr__(self) -> str:
        return f"<Lock {self._logic!r}>"


class Locks:
    """All locks of one backend. Make one for a process and share it between threads."""

    def __init__(self, logic: LocksLogic) -> None:
        self._logic = logic

    @property
    def holder(self) -> str:
        """What this instance calls itself when others ask who holds a lock."""
        return self._logic.engine.holder

    @property
    def events(self) -> Events:
        """The stream of what happens to the leases of this instance."""
        return self._logic.engine.events

    def lock(
        self,
        name: str,
        *,
        ttl: Seconds = 30,
        wait: Seconds | None = None,
        renew: bool = True,
        reentrant: bool = False,
        metadata: Any = None,
        min_hold: Seconds = 0,
        on_lost: Callable[[Lease], object] | None = None,
    ) -> Lock:
        """A lock on `name`. Nothing is asked of the backend yet.

        `ttl` is how long the lease outlives a holder that died; a live one renews it (unless `renew=False`).
        `wait` is how long to wait for it: None for ever, 0 not at all. After release the name stays taken until
        `min_hold` seconds after the grant. `on_lost(lease)` is called, in another thread, if it is lost.
        Raises ValueError for a bad name, time or metadata.
        """
        return Lock(self._logic.lock(name, ttl, wait, renew, reentrant, metadata, min_hold, on_lost))

    def inspect(self, name: str) -> LockInfo:
        """Who holds `name` and how many wait for it."""
        return drive(self._logic.inspect(name))

    def list(self, prefix: str = "") -> builtins.list[LockInfo]:
        """Every lock of this namespace that is held or waited for, by name."""
        return drive(self._logic.list(prefix))

    def break_lock(self, name: str) -> LockInfo:
        """End every hold of `name`, whoever's it is, and tell what was there. The next grant has a higher fence.

        The former holder learns of it at its next renewal; until then only the fence stops it.
        """
        return drive(self._logic.break_lock(name))

    def close(self) -> None:
        """Release what is still held, best effort, and let go of connections."""
        drive(self._logic.close())

    def __enter__(self) -> Locks:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._logic.warn_if_open(self)

    def __repr__(self) -> str:
        return f"<Locks {self._logic!r}>"


def connect(
    url_or_client: object = None,
    *,
    holder: str | None = None,
    namespace: str = DEFAULT_NAMESPACE,
    patience: Seconds = PATIENCE,
    clock: Clock | None = None,
) -> Locks:
    """Locks on the backend of that URL; without one on `$HOLDFAST_URL`, else on SQLite in the user's state folder.

    Nothing is opened until the first use. `holder` is what others are told when they ask who holds a lock,
    `namespace` keeps the names of two applications apart, `patience` is how long to keep asking a backend that
    does not answer, and `clock` is for tests (`holdfast.testing.FakeClock`).
    Raises ValueError for a URL or a name that makes no sense.
    """
    world = ThreadWorld(clock)
    engine = Engine(
        open_backend(url_or_client, world, clock),
        world,
        lease_type=Lease,
        holder=holder,
        patience=length(patience, "patience"),
    )
    locks = LocksLogic(engine, namespace)
    adopt(engine, _close)
    return Locks(locks)


def _close(engine: Engine) -> None:
    drive(engine.close(within=1.0))
