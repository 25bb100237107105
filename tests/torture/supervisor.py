"""One run: workers at work, faults by a seed, and at last the question whether everything is free again.

Decides: when which fault happens. Storms and calms take turns; one thread harms the workers and another the servers, so
that faults fall together. Each fault of a kind comes equally often, in an order that the seed decides.
Leaves to `verdict`: what it means.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import lockfast
from lockfast import LockError
from lockfast._model import PRESENCE_S
from lockfast._time import boot_now
from tests.servers.waiting import pause
from tests.torture.actors import LONG, LONGEST_TTL_S, MUTEXES
from tests.torture.faults import Fault, Heal
from tests.torture.journal import Journal
from tests.torture.slots import Slot
from tests.torture.stores import ROUTES, Store
from tests.torture.worker import Settings

WORLDS = ("threads", "asyncio", "threads", "uvloop", "threads", "asyncio")  # one worker each
SURVIVORS = 2  # of them are never killed, so that what they leak adds up
NAMES = (*MUTEXES, *LONG, "semaphore", "rwlock", "leader", "managed")
STORM_S, CALM_S = 25.0, 15.0
SAMPLE_EVERY_S = 1.0  # in a calm
SETTLE_S = 6.0  # after the last fault, until a wait counts as one in a calm


class Supervisor:
    def __init__(self, store: Store, folder: Path, seed: int, plant: str = "") -> None:
        self._store, self._folder, self._seed = store, folder, seed
        self._journal = Journal(folder / "supervisor.jsonl")
        self._over = threading.Event()
        self._busy = [threading.Event(), threading.Event()]  # a fault of the workers, of the servers
        self._errors: list[BaseException] = []
        self._began_at = boot_now()
        self._slots = [
            Slot(number, Settings(store.url(number // 2 % ROUTES), world, seed + number, "", plant, store.options),
                 folder, self._journal)
            for number, world in enumerate(WORLDS)
        ]  # fmt: skip

    def run(self, seconds: float) -> None:
        harms = [self._workers_faults(), self._store.faults()]
        hands = [
            threading.Thread(target=self._harm, args=(faults, busy, number), daemon=True)
            for number, (faults, busy) in enumerate(zip(harms, self._busy, strict=True))
        ]
        try:
            for slot in self._slots:
                slot.start()
            for hand in hands:
                hand.start()
            self._watch(seconds)
            self._over.set()
            for hand in hands:
                hand.join()
            for slot in self._slots:
                slot.ask_to_end()
            for slot in self._slots:
                slot.await_end()
            self._ask_for_everything()
        finally:
            self._over.set()
            for slot in self._slots:
                slot.close()
        if self._errors:
            raise self._errors[0]

    # Faults

    def _workers_faults(self) -> list[Fault]:
        killed = Fault("worker killed", self._kill, 0.0, 1.0)
        stopped = Fault("worker stopped", self._stop, 0.1, 5.0)
        both = Fault("worker stopped and killed", self._stop_and_kill, 0.5, 3.0)
        return [killed, stopped, stopped._replace(name="two workers stopped", begin=self._stop_two), both]

    def _kill(self, random: Random) -> Heal:
        slot = random.choice(self._slots[SURVIVORS:])
        slot.kill()
        return slot.start

    def _stop(self, random: Random) -> Heal:
        slot = random.choice(self._slots)
        slot.stop()
        return slot.go_on

    def _stop_two(self, random: Random) -> Heal:
        slots = random.sample(self._slots, 2)
        for slot in slots:
            slot.stop()

        def heal() -> None:
            for slot in slots:
                slot.go_on()

        return heal

    def _stop_and_kill(self, random: Random) -> Heal:
        slot = random.choice(self._slots[SURVIVORS:])
        slot.stop()

        def heal() -> None:
            slot.kill()
            slot.start()

        return heal

    def _harm(self, faults: list[Fault], busy: threading.Event, number: int) -> None:
        random = Random(f"{self._seed} {number}")
        try:
            for fault in _shuffled(faults, random):
                self._over.wait(2.0 * random.random() ** 2)
                while not self._stormy() and not self._over.is_set():
                    self._over.wait(0.2)
                if self._over.is_set():
                    return
                busy.set()
                self._let_happen(fault, random)
                busy.clear()
        except BaseException as error:
            self._errors.append(error)
            self._over.set()

    def _let_happen(self, fault: Fault, random: Random) -> None:
        began_at = boot_now()
        heal = fault.begin(random)
        begun_at = boot_now()
        try:
            self._over.wait(random.uniform(fault.least, fault.most))
        finally:
            heal()
            facts = {"name": fault.name, "ends_sessions": fault.ends_sessions, "began": began_at, "begun": begun_at}
            self._journal.write("fault", **facts)

    def _stormy(self) -> bool:
        return (boot_now() - self._began_at) % (STORM_S + CALM_S) < STORM_S

    # Beside the faults

    def _watch(self, seconds: float) -> None:
        """Note the calms, in which the servers can be asked, and replace workers that have ended by themselves."""
        calm_from: float | None = None
        until = self._began_at + seconds
        while boot_now() < until and not self._over.wait(0.1):
            calm = not self._stormy() and not any(busy.is_set() for busy in self._busy)
            if calm and calm_from is None:
                calm_from = boot_now()
            elif not calm and calm_from is not None:
                self._journal.write("calm", began=calm_from + SETTLE_S)
                calm_from = None
            if calm and calm_from is not None and boot_now() > calm_from + SETTLE_S:
                self._journal.write("connections", number=self._store.connections())
                self._store.forget_traffic()
                self._replace_ended()
                self._over.wait(SAMPLE_EVERY_S)

    def _replace_ended(self) -> None:
        for slot in self._slots:
            if slot.ended:
                slot.note_end()
                slot.start()

    def _ask_for_everything(self) -> None:
        """All workers have ended. Later nothing is held, and a waiter that was killed is in no queue."""
        pause(max(LONGEST_TTL_S, PRESENCE_S) + 1)
        with lockfast.connect(self._store.straight, **self._store.options) as locks:
            for name in NAMES:
                try:
                    info = locks.inspect(name)
                    if info.holders or info.waiters:
                        self._journal.write("left", name=name, info=info.as_dict())
                    lease = locks.lock(name, ttl=30, wait=0).acquire()
                    if lease is None:
                        self._journal.write("left", name=name, info="not free")
                    else:
                        lease.release()
                except LockError as error:
                    self._journal.write("left", name=name, info=repr(error))
        self._journal.write("connections", number=self._store.connections())


def _shuffled(faults: list[Fault], random: Random) -> Iterator[Fault]:
    while True:
        yield from random.sample(faults, len(faults))
