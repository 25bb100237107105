"""What the memory backend keeps: resources, limiters and cells, by key.

Decides: how a step is made atomic, and that nothing unused is kept.
Leaves to `backend`, `inspection` and `values`: the verbs. Leaves to `resource`: what happens to one name.
"""

from __future__ import annotations

from collections.abc import Callable

from lockfast._reentry import Mutex, critical_section
from lockfast._time import boot_now, first_fence
from lockfast._values import NS_PER_S, Stored
from lockfast._worlds import Clock, World
from lockfast.backends.memory.resource import MemoryResource


class MemoryStore:
    """All resources, limiters and cells, by key. One mutex makes each verb one step."""

    def __init__(self, clock: Callable[[], float] = boot_now, name: str = "") -> None:
        self.name = name
        self.clock = clock
        self.fence = first_fence()
        self.clear()

    def clear(self) -> None:
        self._mutex = Mutex()
        self.resources: dict[str, MemoryResource] = {}  # only those with a holder, a waiter or an observer
        self._spare: MemoryResource | None = None  # the last that was removed, for the next name
        self.limiters: dict[str, int] = {}  # booked up to this moment, in nanoseconds of the clock
        self.limiters_before = 64  # how many the last sweep left, and a few more
        self.cells: dict[str, Stored] = {}
        self.last_deleted = 0  # the highest version of a cell that was deleted
        self.sweep_at = self.fence + 64  # the fence at which expired names are swept out

    def step(self) -> Mutex:
        """The mutex, held for one verb of an operation that is driven."""
        return self._mutex

    def step_in_a_loop(self) -> Mutex:
        """The same in an event loop, where the thread must be marked as inside an operation."""
        return critical_section(self._mutex)

    def count(self) -> int:
        """A number that was never used before: a fence, or the number of a change."""
        self.fence += 1
        return self.fence

    def refresh(self, key: str, now: float, asking: str = "") -> MemoryResource | None:
        """The resource as it is now: what has expired is ended and handed over. The claim `asking` asks now."""
        resource = self.resources.get(key)
        if resource is not None:
            if resource.expire(now):
                resource.hand_over(now, asking=asking)
            if resource.is_unused():
                self.remove(key)
                return None
        return resource

    def add(self, key: str) -> MemoryResource:
        """The resource of a name that has none."""
        resource, self._spare = self._spare or MemoryResource(self.count), None
        self.resources[key] = resource
        return resource

    def remove(self, key: str) -> None:
        """It is unused."""
        self._spare = self.resources.pop(key)

    def refresh_or_make(self, key: str, now: float) -> MemoryResource:
        resource = self.refresh(key, now)
        if resource is None:
            resource = self.add(key)
        return resource

    def sweep(self, now: float) -> None:
        """Names that are never used again cost nothing after a while. Each grant pays for a small part of it."""
        for key in list(self.resources):
            self.refresh(key, now)
        self._forget_limiters_at_rest(now)
        self.sweep_at = self.fence + 2 * (len(self.resources) + len(self.limiters)) + 64

    def sweep_limiters(self, now: float) -> None:
        if len(self.limiters) > 2 * self.limiters_before:
            self._forget_limiters_at_rest(now)

    def _forget_limiters_at_rest(self, now: float) -> None:
        """A limiter whose bookings are all in the past equals a new one."""
        self.limiters = {key: until for key, until in self.limiters.items() if until > now * NS_PER_S}
        self.limiters_before = len(self.limiters) + 64


class StoreUser:
    """What all verbs of the backend need."""

    def __init__(self, store: MemoryStore, world: World) -> None:
        self._store = store
        self._world = world
        self._step = store.step if world.blocking else store.step_in_a_loop

    @property
    def store_id(self) -> str:
        return f"{self.url} at {id(self._store):#x}"  # a test may have several stores of one name

    @property
    def url(self) -> str:
        return f"memory://{self._store.name}"

    def __repr__(self) -> str:
        return self.url


_stores: dict[str, MemoryStore] = {}


def shared_store(name: str, clock: Clock | None = None) -> MemoryStore:
    """The one store of that name in this process. A test's clock, once given, is the store's own."""
    store = _stores.setdefault(name, MemoryStore(name=name))
    if clock is not None:
        store.clock = clock.now
    return store
