"""What an actor may do, by its style. Each is written once for both worlds, over the awaited facade.

Decides: how each primitive is used. `jobs_for` says which of them a backend has, and how often each is chosen.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from inspect import isawaitable
from typing import Any

from lockfast._model import Capabilities
from lockfast._reentry import run_to_end
from lockfast.testing.awaited import AwaitedLock
from tests.torture.actors import LIMIT_OF_SEMAPHORE, LONG, LONGEST_TTL_S, MUTEXES, Actor
from tests.torture.journal import Belief

Run = Callable[[Actor], Awaitable[None]]
LONG_STYLES = ("renewed", "not_renewed", "extended")


async def hold(actor: Actor) -> None:
    """The plain `with`, which waits."""
    asked = actor.asked("with")
    async with actor.locks.lock(actor.mutex(), **actor.terms()) as lease:
        await actor.believe(lease, asked, actor.moment())


async def attempt(actor: Actor) -> None:
    """Once, without waiting; released by its lease."""
    asked = actor.asked("try")
    lease = await actor.locks.lock(actor.mutex(), **actor.terms(wait=0)).acquire()
    if lease is not None:
        try:
            await actor.believe(lease, asked, actor.moment())
        finally:
            await lease.release()


async def renewed(actor: Actor) -> None:
    """For several ttls."""
    asked, terms = actor.asked("renewed"), actor.terms()
    async with actor.locks.lock(actor.random.choice(LONG), **terms) as lease:
        await actor.believe(lease, asked, terms["ttl"] * (1 + 3 * actor.random.random()))


async def not_renewed(actor: Actor) -> None:
    """For about a ttl, which may be too long."""
    asked, terms = actor.asked("not renewed"), actor.terms(renew=False)
    async with actor.locks.lock(actor.random.choice(LONG), **terms) as lease:
        await actor.believe(lease, asked, terms["ttl"] * (0.4 + actor.random.random()))


async def extended(actor: Actor) -> None:
    async def extend(_: Sequence[Belief]) -> None:
        await lease.extend(LONGEST_TTL_S)

    asked = actor.asked("extended")
    async with actor.locks.lock(actor.random.choice(LONG), **actor.terms(renew=False)) as lease:
        await actor.believe(lease, asked, 3 * actor.random.random(), extend)


async def reentrant(actor: Actor) -> None:
    asked = actor.asked("reentrant")
    lock = actor.locks.lock(actor.mutex(), **actor.terms(reentrant=True))

    async def enter_again(_: Sequence[Belief]) -> None:
        async with lock as again:
            assert again.fence == lease.fence

    async with lock as lease:
        await actor.believe(lease, asked, actor.moment(), enter_again)


async def min_hold(actor: Actor) -> None:
    """The name stays taken after the release."""
    seconds = 0.3 * actor.random.random()
    asked = actor.asked("min_hold", min_hold=seconds)
    async with actor.locks.lock(actor.mutex(), **actor.terms(min_hold=seconds)) as lease:
        await actor.believe(lease, asked, actor.moment())


async def semaphore(actor: Actor) -> None:
    asked = actor.asked("semaphore", limit=LIMIT_OF_SEMAPHORE)
    async with actor.locks.semaphore("semaphore", LIMIT_OF_SEMAPHORE, **actor.terms()) as lease:
        await actor.believe(lease, asked, actor.moment())


async def read(actor: Actor) -> None:
    asked = actor.asked("read")
    async with actor.locks.rwlock("rwlock", **actor.terms()).read() as lease:
        await actor.believe(lease, asked, actor.moment())


async def write(actor: Actor) -> None:
    """To read on, every other time."""
    asked, shares = actor.asked("write"), actor.random.random() < 0.5

    async def downgrade(beliefs: Sequence[Belief]) -> None:
        if shares:
            beliefs[0].shares()
            await lease.downgrade()

    async with actor.locks.rwlock("rwlock", **actor.terms()).write() as lease:
        await actor.believe(lease, asked, actor.moment(), downgrade)


async def several(actor: Actor) -> None:
    asked, number = actor.asked("all"), actor.random.randint(2, len(MUTEXES))
    async with actor.locks.all(*actor.random.sample(MUTEXES, number), **actor.terms()) as lease:
        await actor.believe(lease, asked, actor.moment())


async def lead(actor: Actor) -> None:
    asked = actor.asked("election")
    async with actor.locks.election("leader", **actor.terms()) as lease:
        await actor.believe(lease, asked, actor.moment())


async def campaign(actor: Actor) -> None:
    asked, election = actor.asked("campaign"), actor.locks.election("leader", **actor.terms())
    lease = await election.campaign(timeout=5 * actor.random.random())
    if lease is not None:
        try:
            await actor.believe(lease, asked, actor.moment())
        finally:
            await election.resign()


async def decorated(actor: Actor) -> None:
    """`locked` waits, `singleton` skips."""
    waits, name = actor.random.random() < 0.5, actor.mutex()
    asked = actor.asked("locked" if waits else "singleton")
    terms = actor.terms()
    if not waits:
        terms.pop("wait")
    locks: Any = actor.locks.raw
    decorate = (locks.locked if waits else locks.singleton)("{name}", lease_as="lease", **terms)

    def work(lease: Any, name: str) -> None:
        run_to_end(actor.believe(lease, asked, actor.moment()))

    async def work_in_loop(lease: Any, name: str) -> None:
        await actor.believe(lease, asked, actor.moment())

    await _answer(decorate(work if actor.around.world == "threads" else work_in_loop)(name))


async def manager_block(actor: Actor) -> None:
    """The manager's `lock()`: a hold of its own, renewed."""
    asked = actor.asked("manager.lock")
    lock = AwaitedLock(actor.around.manager.lock("managed", *_seconds(actor)))
    async with lock as lease:
        await actor.believe(lease, asked, actor.moment())


async def manager(actor: Actor) -> None:
    """Acquired and released by name. The manager is the holder, so one actor of each worker does this."""
    asked, managers = actor.asked("manager"), actor.around.manager
    result = await _answer(managers.acquire("managed", *_seconds(actor)))
    if result:
        try:
            await actor.believe(managers._logic._held["managed"], asked, actor.moment())
        finally:
            await _answer(managers.release("managed"))


def _seconds(actor: Actor) -> tuple[float, bool, float]:
    """timeout_seconds, blocking, blocking_timeout_seconds"""
    terms = actor.terms()
    return terms["ttl"], actor.random.random() < 0.7, terms["wait"]


async def _answer(answer: Any) -> Any:
    return await answer if isawaitable(answer) else answer


# Cut short


async def cancelled(actor: Actor) -> None:
    """A task that is cancelled, most often while it waits."""
    task = asyncio.ensure_future(_hold_as(actor, "cancelled"))
    await asyncio.wait([task], timeout=0.1 * actor.random.random() ** 2)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _hold_as(actor: Actor, style: str) -> None:
    asked = actor.asked(style)
    async with actor.locks.lock(actor.mutex(), **actor.terms()) as lease:
        await actor.believe(lease, asked, actor.moment())


class Interrupt(BaseException):
    """What the handler of a signal raises in the main thread."""


class Alarm:
    """A timer that interrupts the main thread, unless it was called off before."""

    def __init__(self) -> None:
        self._armed = False
        signal.signal(signal.SIGALRM, self._ring)

    def arm(self, seconds: float) -> None:
        self._armed = True
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def call_off(self) -> None:
        self._armed = False

    def _ring(self, number: int, frame: object) -> None:
        if self._armed:
            self._armed = False
            raise Interrupt


async def interrupted(actor: Actor) -> None:
    """In the main thread, anywhere between the call and the body. The `with` is a real one: it is what is promised."""
    alarm, asked = Alarm(), actor.asked("interrupted")
    locks: Any = actor.locks.raw
    lock = locks.lock(actor.mutex(), **actor.terms())
    with suppress(Interrupt):
        try:
            alarm.arm(max(0.0001, 0.1 * actor.random.random() ** 2))
            with lock as lease:
                alarm.call_off()
                run_to_end(actor.believe(lease, asked, actor.moment()))
        finally:
            alarm.call_off()


def jobs_for(actor: Actor) -> list[tuple[str, Run]]:
    """Those that its world and backend have; some more than once, so that they are chosen more often."""
    can = actor.around.capabilities
    jobs: list[Run] = [hold, hold, hold, hold, attempt, renewed, not_renewed, extended, reentrant, several, decorated]
    jobs += [manager_block]
    jobs += [manager] if actor.first else []
    jobs += _of_backend(can)
    if actor.around.world == "asyncio":
        jobs += [cancelled, cancelled]
    elif actor.first:
        jobs += [interrupted] * 4
    return [(job.__name__, job) for job in jobs]


def _of_backend(can: Capabilities) -> list[Run]:
    jobs: list[Run] = [min_hold] if can.expires else []
    jobs += [semaphore, semaphore] if can.limits else []
    jobs += [read, read, write] if can.shared else []
    return jobs + ([lead, campaign] if can.observe else [])
