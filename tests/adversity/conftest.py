"""Real processes on a real file, ended or stopped in a known state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lockfast
from tests.adversity.actor import Actor
from tests.servers.waiting import until


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'locks.db'}"


@pytest.fixture
def start(url: str) -> Iterator[Callable[..., Actor]]:
    """Start a process on the test's store; all are ended with the test."""
    actors: list[Actor] = []

    def start(*how: str, on: str = url) -> Actor:
        actors.append(Actor(on, *how))
        return actors[-1]

    yield start
    for actor in actors:
        actor.close()


@pytest.fixture
def locks(url: str) -> Iterator[lockfast.Locks]:
    with lockfast.connect(url) as locks:
        yield locks


@pytest.fixture
def queued(locks: lockfast.Locks) -> Callable[[str, int], None]:
    """Return once one waits for the name behind the hold of that fence, which lasts for a short while only."""

    def queued(name: str, fence: int) -> None:
        def waits() -> bool:
            info = locks.inspect(name)
            return info.waiters == 1 or any(holder.fence != fence for holder in info.holders)

        until(waits, f"one to wait for {name!r}, or to have it")

    return queued


@pytest.fixture
def waiting(locks: lockfast.Locks) -> Callable[[str, int], None]:
    """Return once that many wait for the name."""

    def waiting(name: str, number: int) -> None:
        until(lambda: locks.inspect(name).waiters == number, f"{number} to wait for {name!r}")

    return waiting
