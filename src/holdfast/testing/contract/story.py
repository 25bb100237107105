"""How the stories of the contract are told to pytest.

Decides: which worlds a story runs in, and what a backend's author has to say about the backend.

A story is an `async def test_…(self, stage)`. It is run with `drive` in the world of threads, where nothing
suspends, in an event loop in the world of asyncio, and on a simulated scheduler once for each seed. A world or a
backend that lacks what a story needs never collects it, so nothing is ever skipped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest

from holdfast._connect import open_backend
from holdfast._worlds import Clock, World
from holdfast.backends.base import Backend
from holdfast.testing.stage import Stage
from holdfast.testing.stage_asyncio import AsyncioStage
from holdfast.testing.stage_simulated import SimulatedStage
from holdfast.testing.stage_threads import ThreadStage

F = TypeVar("F", bound=Callable[..., Any])
WORLDS: dict[str, type[Stage]] = {stage.world: stage for stage in (ThreadStage, AsyncioStage, SimulatedStage)}
OF_BOTH = frozenset({"fork", "processes"})  # what the backend must be able to do too; the rest is the world's alone


def needs(*capabilities: str) -> Callable[[F], F]:
    """This story is for worlds and backends that have them.

    Of a world: "cancellation", "blocking", "asyncio" (its own means, as timeouts and task groups), "real clock". Of
    world and backend: "processes" (its url means the same store in every process), "fork" (it can be used on both
    sides of a fork).
    """

    def mark(story: F) -> F:
        story.__dict__["needs"] = needed_by(story) | frozenset(capabilities)
        return story

    return mark


def needed_by(story: object) -> frozenset[str]:
    """Everything that was said to be needed."""
    needed: frozenset[str] = getattr(story, "needs", frozenset())
    return needed


def on_the_real_clock(story: F) -> F:
    """This story is about the machine's own clock; it waits for conditions and takes a moment."""
    return needs("real clock")(story)


def lacking(story: object, world: type[Stage], backend_can: frozenset[str]) -> frozenset[str]:
    """Why the story is not told in that world on a backend that can so much; empty if it is."""
    needed = needed_by(story)
    return (needed - world.can) | ((world.asks | (needed & OF_BOTH)) - backend_can)


class Promise:
    """The base of every chapter. A subclass of a chapter says where its backend is."""

    # What the backend can beyond the verbs: see `needs`, and "simulated": it waits by nothing but its `World`.
    can: ClassVar[frozenset[str]] = frozenset({"fork"})
    seeds: ClassVar[Iterable[int]] = range(3)  # each story of the simulated world is told once with each

    def url(self, tmp_path: Path) -> str:
        """Where the store of one story is; `tmp_path` is empty and the story's own."""
        raise NotImplementedError("say where the store is: override url(), or make_backend()")

    def make_backend(self, tmp_path: Path, world: World, clock: Clock | None) -> Backend:
        """Open the store. It must follow `clock` if there is one; called once for each client of a story."""
        return open_backend(self.url(tmp_path), world, clock)

    def records(self, tmp_path: Path) -> int:
        """How many records of names the store keeps, used or not; 0 if that cannot be told."""
        return 0

    @pytest.fixture
    def stage(self, request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
        url = self.url(tmp_path) if "processes" in self.can else ""
        opener = functools.partial(self.make_backend, tmp_path)
        world, options = request.param
        stage: Stage = WORLDS[world](opener, url, real_time="real clock" in needed_by(request.function), **options)
        stage.records = functools.partial(self.records, tmp_path)
        return stage

    @classmethod
    def worlds_for(cls, story: object) -> list[str]:
        """The worlds that the story runs in on this backend."""
        return [name for name, world in WORLDS.items() if not lacking(story, world, cls.can)]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "stage" in metafunc.fixturenames:
            told: dict[str, tuple[str, dict[str, int]]] = {}  # by the test's id: a failing seed can be run again
            for world in self.worlds_for(metafunc.function):
                if WORLDS[world].seeded:
                    told |= {f"{world}-{seed}": (world, {"seed": seed}) for seed in self.seeds}
                else:
                    told[world] = (world, {})
            metafunc.parametrize("stage", told.values(), ids=told.keys(), indirect=True)

    def __init_subclass__(cls) -> None:
        for name in [name for name in dir(cls) if name.startswith("test_")]:
            story = getattr(cls, name)
            if iscoroutinefunction(story):
                story = _told(story)
                setattr(cls, name, story)
            says_where = "url" in vars(cls) or "make_backend" in vars(cls)
            if says_where and story is not None and not cls.worlds_for(story):
                setattr(cls, name, None)  # not for this backend: pytest must not even see it


def _told(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(story)
    def test(self: Any, stage: Stage, **given: Any) -> None:
        stage.run(story(self, stage, **given))

    return test
