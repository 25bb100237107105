"""What the clients of a simulated run are asked to do.

Decides: which names a run has, what each of them is, and what one job wants of which. Drawn from the run's own seed.
Leaves to `simulation_jobs`: doing it.
"""

from __future__ import annotations

from random import Random
from typing import Final, Literal, NamedTuple

from lockfast._model import EXCLUSIVE, SHARED, Mode
from lockfast._values import NS_PER_S, Rate

LONGEST_TTL_S: Final = 5.0
MOST: Final = 3  # names at once, holders of a semaphore, permits at once

Kind = Literal["lock", "several", "election", "limiter"]


class Subject(NamedTuple):
    """Something to contend for. One name is one thing for a whole run."""

    name: str
    kind: Kind = "lock"
    mode: Mode | None = None  # None: some want it for themselves and some share it
    limit: int | None = None  # of the claims that share it
    names: tuple[str, ...] = ()  # of "several"


class JobPlan(NamedTuple):
    """One job: what it asks for, and what it does with it."""

    kind: Kind
    names: tuple[str, ...]
    mode: Mode
    limit: int | None
    ttl: float
    wait: float | None
    renew: bool
    min_hold: float
    body: float  # seconds of work under the lock
    style: str
    cancel_after: int | None  # at which suspension it is cancelled
    cancel_in: float | None  # or after how many seconds
    cost: int = 1  # permits of a limiter

    @property
    def name(self) -> str:
        return self.names[0]


STYLES: Final[dict[Kind, tuple[str, ...]]] = {
    "lock": ("with",) * 6 + ("acquire", "acquire", "extend", "break"),
    "several": ("with",) * 3 + ("acquire",) * 5 + ("extend", "break", "break"),
    "election": ("with", "run") + ("campaign",) * 3 + ("hand_over",) * 4 + ("break",),
    "limiter": ("try", "wait", "wait", "wait"),
}


def subjects(random: Random, about: str = "") -> list[Subject]:
    """What a run is about: a mutex and something else, or only what `about` names."""
    others = [
        Subject("semaphore", mode=SHARED, limit=random.randint(2, MOST)),
        Subject("rwlock"),
        Subject("mixed", limit=2),
        Subject("several", "several", EXCLUSIVE, names=("several:a", "several:b", "several:c")),
        Subject("election", "election", EXCLUSIVE),
        Subject("limiter", "limiter", EXCLUSIVE),
    ]
    mutex = Subject("mutex", mode=EXCLUSIVE)
    return [each for each in (mutex, *others) if each.name == about] or [
        mutex,
        *random.sample(others, random.randint(1, 3)),
    ]


ABOUT: Final = ("mutex", "semaphore", "rwlock", "mixed", "several", "election", "limiter")


def some_rate(random: Random) -> Rate:
    """Of the run's limiter: slow enough that clients have to wait for it."""
    return Rate(random.randint(NS_PER_S // 5, 2 * NS_PER_S), random.randint(1, MOST))


def some_plan(random: Random, subject: Subject, heat: float, rate: Rate) -> JobPlan:
    pick = random.choice
    mode: Mode = subject.mode or (SHARED if random.random() < 0.6 else EXCLUSIVE)
    style = pick(STYLES[subject.kind])
    if subject.name == "rwlock" and mode == EXCLUSIVE and random.random() < 0.5:
        style = "downgrade"
    ttl = pick((1.0, 2.0, 3.0, LONGEST_TTL_S))
    cancelled = 0.3 if subject.kind == "limiter" else 0.03  # only there does it matter how far the waiting has come
    return JobPlan(
        subject.kind,
        _some_names(random, subject),
        mode,
        _some_limit(random, subject) if mode == SHARED else None,
        ttl,
        wait=pick((None, None, 0.0, 0.2, 2.0, 20.0)),
        renew=random.random() < 0.8,
        min_hold=pick((0.0, 0.0, 0.0, 0.5)) if subject.kind == "lock" else 0.0,
        body=pick((0.0, 0.01, 0.2, ttl / 2, ttl * 2) if subject.kind == "lock" else (0.2, ttl, ttl * 2))
        * random.random(),
        style=style,
        cancel_after=random.randint(1, 20 if subject.names else 10) if random.random() < 0.15 * heat else None,
        cancel_in=2.0 * random.random() if random.random() < cancelled * heat else None,
        cost=random.randint(1, rate.burst),
    )


def _some_names(random: Random, subject: Subject) -> tuple[str, ...]:
    """In any order: `lock_all` has to sort them."""
    if not subject.names:
        return (subject.name,)
    return tuple(random.sample(subject.names, random.randint(1, len(subject.names))))


def _some_limit(random: Random, subject: Subject) -> int | None:
    """Now and then another than that of the other clients: the second of two limits is to be refused."""
    return MOST + 1 if random.random() < 0.05 else subject.limit
