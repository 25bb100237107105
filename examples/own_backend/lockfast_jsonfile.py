"""A backend of your own, complete: exclusive locks in one JSON file, for the processes of one host.

    locks = lockfast.connect("jsonfile:///run/my-app/locks.json")

Start from this file for a store of your own, and replace `LockFile.step`: whatever is between its `with` and its end
must be one atomic step at your store. It imports nothing private, `pyproject.toml` gives it its URL scheme, and
`test_lockfast_jsonfile.py` holds it to the contract of all backends.

What it does not do, and says so in its capabilities: semaphores, readers, elections, limiters and cells. A waiter in
the same process is woken by a release; one in another process sees it when it next asks, within a second.
Moments in the file are on the boot clock, so keep it where a reboot removes it (/run, /tmp).
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from urllib.parse import SplitResult, unquote

from lockfast.backend import (
    EXCLUSIVE,
    GRACE_S,
    PRESENCE_S,
    Backend,
    BackendFactory,
    BackendUnavailable,
    Busy,
    Capabilities,
    Claim,
    Clock,
    ConnectOptions,
    Grant,
    HolderInfo,
    LockInfo,
    Mode,
    Mutex,
    Occupancy,
    Renewal,
    Signal,
    WithoutChanges,
    WithoutValues,
    World,
    boot_now,
    critical_section,
    first_fence,
    next_in_queue,
    poll_after,
)


def open_url(parts: SplitResult, options: ConnectOptions) -> BackendFactory:
    """Where the entry point leads: `connect("jsonfile:///…")` calls it. Nothing is opened yet."""
    options.refuse_all_but(where="jsonfile://")
    path = unquote(parts.path)
    if not path or parts.netloc:
        raise ValueError("write jsonfile:///folder/file.json, with three slashes")

    def factory(world: World, clock: Clock | None) -> Backend:
        return JsonFileBackend(path, world, clock)

    return factory


# What the file holds


@dataclass
class Hold:
    claim_id: str
    holder: str
    fence: int
    acquired_at: float  # wall clock, for people
    expires_at: float  # the store's clock, for deciding
    metadata: str | None
    released: bool = False  # it lingers: the name stays taken, but the hold can no longer be renewed


@dataclass
class Waiter:
    """What `lockfast.backend.next_in_queue` must know of a waiter, and its claim."""

    claim_id: str
    holder: str
    alive_until: float
    reserved_until: float = 0.0  # 0: nothing is reserved for it
    lapsed: bool = False  # it was woken and did not ask in time: passed over until it asks again

    @property
    def reserved(self) -> bool:
        return self.reserved_until > 0

    @property
    def mode(self) -> Mode:
        return EXCLUSIVE

    @property
    def limit(self) -> int | None:
        return None


@dataclass
class Record:
    """One name: who holds it, and who waits for it in order of arrival."""

    hold: Hold | None = None
    queue: list[Waiter] = field(default_factory=list)

    def waiter(self, claim_id: str) -> Waiter | None:
        return next((waiter for waiter in self.queue if waiter.claim_id == claim_id), None)

    def held_by(self, claim_id: str) -> Hold | None:
        return self.hold if self.hold and self.hold.claim_id == claim_id and not self.hold.released else None

    def expire(self, now: float) -> None:
        """Forget what time has ended."""
        if self.hold is not None and self.hold.expires_at <= now:
            self.hold = None
        self.queue = [waiter for waiter in self.queue if waiter.alive_until > now]
        for waiter in self.queue:
            if waiter.reserved and waiter.reserved_until <= now:
                waiter.reserved_until, waiter.lapsed = 0.0, True

    def fits(self, claim_id: str) -> bool:
        """No claim holds it, and neither an older waiter nor one that it is reserved for is in the way."""
        own = self.waiter(claim_id)
        if own is not None and own.reserved:
            return True
        if self.hold is not None or any(waiter.reserved for waiter in self.queue):
            return False
        return all(waiter.lapsed for waiter in self.ahead_of(claim_id))

    def ahead_of(self, claim_id: str) -> list[Waiter]:
        ids = [waiter.claim_id for waiter in self.queue]
        return self.queue[: ids.index(claim_id)] if claim_id in ids else self.queue

    def next(self, successor: str) -> list[Waiter]:
        taken = Occupancy()
        if self.hold is not None or any(waiter.reserved for waiter in self.queue):
            taken.add(EXCLUSIVE)
        return next_in_queue(self.queue, taken, successor)

    def room_at(self) -> float:
        """When time makes room, unless the holder renews."""
        ends = [waiter.reserved_until for waiter in self.queue if waiter.reserved]
        return max(ends + ([self.hold.expires_at] if self.hold else []), default=inf)


@dataclass
class State:
    """The whole store. `fence` only grows, also when every name is gone."""

    fence: int = field(default_factory=first_fence)
    records: dict[str, Record] = field(default_factory=dict)

    def record(self, key: str) -> Record:
        return self.records.setdefault(key, Record())

    def as_text(self) -> str:
        used = {key: record for key, record in self.records.items() if record.hold or record.queue}
        return json.dumps({"fence": self.fence, "records": used}, default=vars)

    @classmethod
    def from_text(cls, text: str) -> State:
        stored = json.loads(text)
        return cls(stored["fence"], {key: _record(record) for key, record in stored["records"].items()})


def _record(stored: dict[str, object]) -> Record:
    hold, queue = stored["hold"], stored["queue"]
    assert isinstance(queue, list)
    return Record(Hold(**hold) if isinstance(hold, dict) else None, [Waiter(**waiter) for waiter in queue])


class LockFile:
    """The file, and the waiters of this process. One for each path: see `lock_file`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.start()

    def start(self) -> None:
        """As in a process that has just begun."""
        self.mutex = Mutex()  # one thread of this process at a time
        self.signals: dict[str, tuple[World, Signal]] = {}  # by claim id; set under the mutex

    @contextmanager
    def step(self, now: float, within: float) -> Iterator[State]:
        """One atomic step: what is changed is in the file afterwards, or nothing is if an error is raised."""
        try:
            with critical_section(self.mutex), open(f"{self.path}.lock", "ab") as lock:
                _flock(lock.fileno(), boot_now() + within)
                text = self._read()
                state = self._parse(text)
                for record in state.records.values():
                    record.expire(now)
                    self.hand_over(record, now)
                yield state
                if (changed := state.as_text()) != text:
                    self._write(changed)
        except OSError as error:
            raise BackendUnavailable(f"{self.path} cannot be used: {error}") from error

    def _parse(self, text: str) -> State:
        try:
            return State.from_text(text) if text else State()
        except (ValueError, KeyError, TypeError) as error:
            raise BackendUnavailable(f"{self.path} is damaged: {error}", transient=False) from error

    def hand_over(self, record: Record, now: float, successor: str = "") -> None:
        """Reserve for the waiter that is next, and wake it alone."""
        for waiter in record.next(successor):
            waiter.reserved_until = now + GRACE_S
            if waiter.claim_id in self.signals:
                self.signals[waiter.claim_id][1].set()

    def _read(self) -> str:
        try:
            with open(self.path, encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def _write(self, text: str) -> None:
        with open(f"{self.path}.new", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(f"{self.path}.new", self.path)


_files: dict[str, LockFile] = {}


def lock_file(path: str) -> LockFile:
    return _files.setdefault(os.path.abspath(path), LockFile(path))


def _flock(fd: int, deadline: float) -> None:
    """One process of this host at a time. A step takes well under a millisecond, so an event loop may wait for it."""
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if boot_now() > deadline:
                raise
            time.sleep(0.001)


# The verbs


class JsonFileBackend(WithoutValues, WithoutChanges):
    capabilities = Capabilities(
        instant=True,  # no verb but `wait` ever suspends
        shared=False,
        limits=False,
        observe=False,
        limiter=False,
        cell=False,
    )

    def __init__(self, path: str, world: World, clock: Clock | None) -> None:
        self._file = lock_file(path)
        self._world = world
        self._now = clock.now if clock is not None else boot_now  # the store's clock, and not the client's

    @property
    def store_id(self) -> str:
        """Two backends of a process with one store_id are one store."""
        return f"jsonfile://{self._file.path}"

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant | Busy:
        now = self._now()
        with self._file.step(now, within) as state:
            record = state.record(claim.terms.key)
            hold = record.held_by(claim.id)
            if hold is not None:  # asked before, and the answer was lost
                hold.expires_at = max(hold.expires_at, now + claim.terms.ttl)
            elif record.fits(claim.id):
                hold = self._grant(state, record, claim, now)
            if hold is not None:
                return Grant(hold.fence, hold.acquired_at)
            if enqueue:
                self._enqueue(record, claim, now)
            return self._busy(record, claim, now)

    def _grant(self, state: State, record: Record, claim: Claim, now: float) -> Hold:
        terms = claim.terms
        self._leave_queue(record, claim)
        state.fence += 1
        record.hold = Hold(claim.id, terms.holder, state.fence, time.time(), now + terms.ttl, terms.metadata)
        return record.hold

    def _leave_queue(self, record: Record, claim: Claim) -> None:
        record.queue = [waiter for waiter in record.queue if waiter.claim_id != claim.id]
        if claim.id in self._file.signals:
            self._file.signals.pop(claim.id)[1].set()  # should it still wait, it asks again

    def _enqueue(self, record: Record, claim: Claim, now: float) -> None:
        waiter = record.waiter(claim.id)
        if waiter is None:
            waiter = Waiter(claim.id, claim.terms.holder, now)
            record.queue.append(waiter)
            self._file.signals[claim.id] = (self._world, self._world.signal())
        waiter.alive_until = now + PRESENCE_S
        waiter.lapsed = False

    def _busy(self, record: Record, claim: Claim, now: float) -> Busy:
        position = sum(not waiter.lapsed for waiter in record.ahead_of(claim.id))
        retry_after = poll_after(position, record.room_at() - now)
        if record.hold is None:
            return Busy(position, retry_after)
        return Busy(position, retry_after, record.hold.holder, claim_id=record.hold.claim_id)

    async def wait(self, claim: Claim, seconds: float) -> bool:
        with critical_section(self._file.mutex):
            found = self._file.signals.get(claim.id)
        return found is None or await found[1].wait(seconds)

    async def renew(self, batch: Sequence[Renewal], *, within: float) -> list[bool]:
        now = self._now()
        with self._file.step(now, within) as state:
            return [self._renew(state.record(renewal.claim.terms.key), renewal, now) for renewal in batch]

    def _renew(self, record: Record, renewal: Renewal, now: float) -> bool:
        hold = record.held_by(renewal.claim.id)
        if hold is None or hold.fence != renewal.fence:
            return False
        hold.expires_at = max(hold.expires_at, now + renewal.ttl)  # never shortens
        return True

    async def release(self, claim: Claim, *, linger: float, within: float, successor: str = "") -> bool:
        now = self._now()
        with self._file.step(now, within) as state:
            record = state.record(claim.terms.key)
            hold = record.held_by(claim.id)
            if hold is None:
                return False
            if linger:
                hold.released, hold.expires_at = True, now + linger
            else:
                record.hold = None
                self._file.hand_over(record, now, successor)
            return True

    async def abandon(self, claim: Claim, *, within: float) -> None:
        now = self._now()
        with self._file.step(now, within) as state:
            record = state.record(claim.terms.key)
            self._leave_queue(record, claim)
            if record.held_by(claim.id) is not None:
                record.hold = None
            self._file.hand_over(record, now)

    async def inspect(self, key: str, *, within: float) -> LockInfo:
        now = self._now()
        with self._file.step(now, within) as state:
            return _info(key, state.record(key), now)

    async def list(self, prefix: str, *, within: float) -> list[LockInfo]:
        now = self._now()
        with self._file.step(now, within) as state:
            infos = [_info(key, record, now) for key, record in sorted(state.records.items()) if key.startswith(prefix)]
            return [info for info in infos if info.holders or info.waiters]

    async def break_(self, key: str, *, within: float) -> LockInfo:
        now = self._now()
        with self._file.step(now, within) as state:
            record = state.record(key)
            before = _info(key, record, now)
            record.hold = None
            self._file.hand_over(record, now)
            return before

    async def close(self) -> None:
        """Holds stay in the file. A caller that waits through this backend is woken, and learns that it is closed."""
        with critical_section(self._file.mutex):
            for world, signal in self._file.signals.values():
                if world is self._world:
                    signal.set()

    def before_fork(self) -> None:
        """No fork in the middle of a step: the child would inherit the file's lock."""
        self._file.mutex.acquire()

    def after_fork(self, *, child: bool) -> None:
        if child:
            self._file.start()
        else:
            self._file.mutex.release()

    def __repr__(self) -> str:
        return self.store_id


def _info(key: str, record: Record, now: float) -> LockInfo:
    hold, waiting = record.hold, tuple(waiter.holder for waiter in record.queue)
    if hold is None:
        return LockInfo(key, (), len(waiting), waiting)
    holder = HolderInfo(
        holder=hold.holder,
        claim_id=hold.claim_id,
        fence=hold.fence,
        mode=EXCLUSIVE,
        acquired_at=hold.acquired_at,
        expires_at=time.time() + hold.expires_at - now,
        metadata=json.loads(hold.metadata) if hold.metadata else None,
    )
    return LockInfo(key, (holder,), len(waiting), waiting)
