"""Stories of each primitive, to be interrupted anywhere, and a program that does so with thousands of real signals.

    python -m tests.engine.storm URL STORY INTERRUPTS

Each signal raises KeyboardInterrupt wherever Python handles it in code of ours, as Ctrl-C does. After each the program
looks whether anything is held, waited for or remembered that no caller will ever release.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import timeit
from collections.abc import Callable, Iterator
from types import FrameType

import lockfast
from tests.servers.waiting import join, until

TTL_S = 600.0  # so that nothing is cleared away by time
Story = Callable[["Scene"], Callable[[], object]]
ALONE: dict[str, Story] = {}
BESIDE_ANOTHER: dict[str, Story] = {}  # a thread that takes turns with it


class Scene:
    """What a story runs with, and what is left of it."""

    def __init__(self, url: str) -> None:
        self.locks = lockfast.connect(url)
        self.manager = lockfast.DistributedLock(url)
        self.over = threading.Event()
        self._others: list[threading.Thread] = []

    def beside(self, work: Callable[[], object]) -> None:
        """Another thread does this again and again until it is over."""

        def others() -> None:
            while not self.over.is_set():
                work()

        self._others.append(threading.Thread(target=others))
        self._others[-1].start()

    def left(self) -> list[object]:
        """What is held, waited for or remembered."""
        kept: list[object] = []
        for engine in (self.locks._logic.engine, self.manager._logic.locks.engine):
            kept += [*engine.keeper.leases.values(), *engine.waiting, *engine.entered]
        kept += self.manager._logic._turns._queues
        return [*kept, *(info for info in self.locks.list() if info.holders or info.waiters)]

    def must_leave_nothing(self, where: object) -> None:
        """Soon: what an interrupt has cut short may be done in the background."""
        try:
            until(lambda: not self.left(), f"nothing to be left, interrupted at {where}")
        except AssertionError as error:
            error.add_note(f"left is {self.left()}")
            raise

    def close(self) -> None:
        self.over.set()
        for thread in self._others:
            join(thread)
        self.manager.close()
        self.locks.close()


def story(make: Story) -> Story:
    """What is run again and again, made once. Its objects are shared by all runs, as in a long-lived program."""
    ALONE[make.__name__] = make
    return make


def ended(end: Callable[[], object]) -> None:
    """As a careful program does it: an interrupt before the first instruction of `end` has not called it."""
    try:
        end()
    except KeyboardInterrupt:
        end()
        raise


@story
def a_with(scene: Scene) -> Callable[[], object]:
    lock = scene.locks.lock("a", ttl=TTL_S)

    def run_story() -> None:
        with lock:
            pass

    return run_story


@story
def a_new_object_each_time(scene: Scene) -> Callable[[], object]:
    def run_story() -> None:
        with scene.locks.lock("a", ttl=TTL_S) as lease:
            lease.extend(TTL_S + 100)
            lease.check()

    return run_story


@story
def a_failing_body(scene: Scene) -> Callable[[], object]:
    lock = scene.locks.lock("a", ttl=TTL_S)

    def run_story() -> None:
        try:
            with lock:
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass

    return run_story


@story
def acquire_and_release(scene: Scene) -> Callable[[], object]:
    lock = scene.locks.lock("a", ttl=TTL_S)

    def run_story() -> None:
        lease = lock.acquire()
        assert lease is not None
        ended(lease.release)

    return run_story


@story
def release_through_the_lock(scene: Scene) -> Callable[[], object]:
    lock = scene.locks.lock("a", ttl=TTL_S)

    def run_story() -> None:
        lease = lock.acquire()
        assert lease is not None

        def end() -> None:
            if lease.held:
                lock.release()

        ended(end)

    return run_story


@story
def entered_twice(scene: Scene) -> Callable[[], object]:
    outer, inner = (scene.locks.lock("a", ttl=TTL_S, reentrant=True) for _ in range(2))

    def run_story() -> None:
        with outer:
            with inner:
                with inner:
                    pass

    return run_story


@story
def acquired_twice(scene: Scene) -> Callable[[], object]:
    lock = scene.locks.lock("a", ttl=TTL_S, reentrant=True)

    def run_story() -> None:
        with lock:
            again = lock.acquire()
            assert again is not None
            ended(again.release)

    return run_story


@story
def a_semaphore(scene: Scene) -> Callable[[], object]:
    permits = scene.locks.semaphore("a", 2, ttl=TTL_S)

    def run_story() -> None:
        with permits:
            with permits:
                pass

    return run_story


@story
def a_read_write_lock(scene: Scene) -> Callable[[], object]:
    lock = scene.locks.rwlock("a", ttl=TTL_S)

    def run_story() -> None:
        with lock.write() as lease:
            lease.downgrade()
            with lock.read():
                pass

    return run_story


@story
def several_names(scene: Scene) -> Callable[[], object]:
    several = scene.locks.all("a", "b", "c", ttl=TTL_S)

    def run_story() -> None:
        with several:
            pass

    return run_story


@story
def several_names_by_hand(scene: Scene) -> Callable[[], object]:
    several = scene.locks.all("a", "b", ttl=TTL_S)

    def run_story() -> None:
        lease = several.acquire()
        assert lease is not None
        ended(lease.release)

    return run_story


@story
def a_leader_for_a_block(scene: Scene) -> Callable[[], object]:
    election = scene.locks.election("a", ttl=TTL_S)

    def run_story() -> None:
        with election:
            pass

    return run_story


@story
def a_campaign(scene: Scene) -> Callable[[], object]:
    election = scene.locks.election("a", ttl=TTL_S)

    def run_story() -> None:
        election.campaign()
        ended(election.resign)

    return run_story


@story
def a_leader_that_runs(scene: Scene) -> Callable[[], object]:
    election = scene.locks.election("a", ttl=TTL_S)
    return lambda: election.run(lambda lease: None)


@story
def an_observer(scene: Scene) -> Callable[[], object]:
    election = scene.locks.election("a", ttl=TTL_S)

    def run_story() -> None:
        changes = election.observe()
        try:
            next(changes)
        finally:
            ended(changes.close)

    return run_story


@story
def a_limiter(scene: Scene) -> Callable[[], object]:
    limiter = scene.locks.limiter("a", rate=2000, per=1)

    def run_story() -> None:
        limiter.acquire()
        limiter.acquire()

    return run_story


@story
def a_cell(scene: Scene) -> Callable[[], object]:
    cell = scene.locks.cell("a")

    def run_story() -> None:
        cell.update(lambda value: (value or 0) + 1)
        cell.read()

    return run_story


@story
def a_decorated_function(scene: Scene) -> Callable[[], object]:
    @scene.locks.locked("a", ttl=TTL_S)
    def run_story() -> None: ...

    return run_story


@story
def a_singleton(scene: Scene) -> Callable[[], object]:
    @scene.locks.singleton("a", ttl=TTL_S)
    def run_story() -> None: ...

    return run_story


@story
def a_decorated_generator(scene: Scene) -> Callable[[], object]:
    @scene.locks.locked("a", ttl=TTL_S)
    def items() -> Iterator[int]:
        yield 1
        yield 2

    return lambda: list(items())


@story
def a_manager(scene: Scene) -> Callable[[], object]:
    manager = scene.manager

    def run_story() -> None:
        manager.acquire("a", timeout_seconds=TTL_S)
        try:
            manager.extend("a", TTL_S + 1)
        finally:
            ended(lambda: manager.release("a"))

    return run_story


@story
def a_managers_scope(scene: Scene) -> Callable[[], object]:
    manager = scene.manager

    def run_story() -> None:
        with manager.lock("a", timeout_seconds=TTL_S):
            pass
        manager.with_lock("a", int)

    return run_story


def beside_another(make: Story) -> Story:
    BESIDE_ANOTHER[make.__name__] = make
    return make


@beside_another
def a_wait(scene: Scene) -> Callable[[], object]:
    scene.beside(a_with(scene))
    return a_with(scene)


@beside_another
def a_manager_that_others_use(scene: Scene) -> Callable[[], object]:
    manager = scene.manager

    def run_story() -> None:
        manager.acquire("a", timeout_seconds=TTL_S, blocking=True, blocking_timeout_seconds=None)
        ended(lambda: manager.release("a"))

    scene.beside(run_story)
    return run_story


class Storm:
    """Raises KeyboardInterrupt at a random moment of a run, in code of ours and of its callers inside it."""

    def __init__(self) -> None:
        self._dice = random.Random(7)
        self._inside = False
        signal.signal(signal.SIGALRM, self._interrupt)

    def _interrupt(self, _: int, frame: FrameType | None) -> None:
        while frame is not None and self._inside:
            if "/src/lockfast/" in frame.f_code.co_filename:
                raise KeyboardInterrupt
            frame = frame.f_back
        if self._inside:
            signal.setitimer(signal.ITIMER_REAL, 0.00002)  # it is not there yet

    def strikes(self, run_story: Callable[[], object], usual: float) -> bool:
        self._inside = True
        try:
            signal.setitimer(signal.ITIMER_REAL, self._dice.uniform(0.000005, 1.2 * usual))
            run_story()
            self._inside = False
        except KeyboardInterrupt:
            self._inside = False
            return True
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return False


def main(url: str, name: str, number: int) -> None:
    scene = Scene(url)
    run_story = {**ALONE, **BESIDE_ANOTHER}[name](scene)
    usual = min(timeit.repeat(run_story, number=1, repeat=100))
    storm, interrupts = Storm(), 0
    while interrupts < number:
        if storm.strikes(run_story, usual):
            interrupts += 1
            if name in ALONE:
                scene.must_leave_nothing(interrupts)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)  # one that is still on its way must not fall into the end
    scene.over.set()
    scene.must_leave_nothing(interrupts)
    scene.close()
    print(interrupts)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
