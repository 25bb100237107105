"""How the stories of the contract become tests of pytest.

Decides: which worlds and which backends a story runs on, and what a backend's author has to say about the backend.

A story is an `async def test_…(self, stage)`. It is run with `drive` in the world of threads, where nothing
suspends, in an event loop in the world of asyncio, and on a simulated scheduler once for each seed. A world or a
backend that lacks what a story needs never collects it, so nothing is ever skipped.

A story is about the *store* if a backend or its driver could break it, about the *engine* if the answer is decided
after a backend has answered, and about *input* if it is decided before any backend is asked. A backend may leave the
last two kinds to other backends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, get_args

import pytest

from lockfast._connect import open_backend
from lockfast._model import Capabilities
from lockfast._worlds import Clock, World
from lockfast.backends.base import Backend
from lockfast.testing.stage import Stage
from lockfast.testing.stage_asyncio import AsyncioStage
from lockfast.testing.stage_simulated import SimulatedStage
from lockfast.testing.stage_threads import ThreadStage

F = TypeVar("F", bound=Callable[..., Any])
WORLDS: dict[str, type[Stage]] = {stage.world: stage for stage in (ThreadStage, AsyncioStage, SimulatedStage)}
Subject = Literal["store", "engine", "input"]
SUBJECTS: frozenset[str] = frozenset(get_args(Subject))

OF_BOTH = frozenset({"fork", "processes"})  # what both the world and the backend must be able to do
OF_BACKEND = frozenset(name for name, usual in Capabilities()._asdict().items() if isinstance(usual, bool))
OF_WORLD = frozenset({"cancellation", "blocking", "asyncio", "real clock"})


def needs(*capabilities: str) -> Callable[[F], F]:
    """This story is for worlds and backends that have them.

    Of a world: "cancellation", "blocking", "asyncio" (its own means, as timeouts and task groups), "real clock". Of
    world and backend: "processes" (its url means the same store in every process), "fork" (it can be used on both
    sides of a fork). Of a backend: whatever `Capabilities` says yes or no to, as "expires", "shared" or "cell".
    """
    _refuse_unknown(capabilities)

    def mark(story: F) -> F:
        story.__dict__["needs"] = needed_by(story) | frozenset(capabilities)
        return story

    return mark


def _refuse_unknown(capabilities: Iterable[str]) -> None:
    unknown = set(capabilities) - OF_BOTH - OF_BACKEND - OF_WORLD
    if unknown:
        raise ValueError(f"no world and no backend has {sorted(unknown)}: a story that needs it would never run")


def needed_by(story: object) -> frozenset[str]:
    """Everything that was said to be needed."""
    needed: frozenset[str] = getattr(story, "needs", frozenset())
    return needed


def about(subject: Subject) -> Callable[[F], F]:
    """This story is about the store, the engine or input, whatever its chapter is about."""

    def mark(story: F) -> F:
        story.__dict__["about"] = subject
        return story

    return mark


def subject_of(story: object) -> str:
    subject: str = getattr(story, "about", "store")
    return subject


def on_the_real_clock(story: F) -> F:
    """This story is about the machine's own clock; it waits for conditions and takes a moment."""
    return needs("real clock")(story)


class _Ways(NamedTuple):
    argument: str
    values: Mapping[str, Any]  # by the id of the test
    needs: Mapping[str, str]  # by the id too


def in_ways(argument: str, values: Mapping[str, Any], needs: Mapping[str, str]) -> Callable[[F], F]:
    """Run this story once with each value, but for those that need a capability which the backend lacks."""
    assert needs.keys() <= values.keys()
    _refuse_unknown(needs.values())

    def mark(story: F) -> F:
        story.__dict__["ways"] = _Ways(argument, values, needs)
        return story

    return mark


def abilities(capabilities: Capabilities) -> frozenset[str]:
    """What such a backend can do, in the words of `needs`."""
    return frozenset(name for name in OF_BACKEND if getattr(capabilities, name))


def lacking(story: object, world: type[Stage], backend_can: frozenset[str]) -> frozenset[str]:
    """Why the story does not run in that world on a backend with these abilities; empty if it is."""
    needed = needed_by(story)
    of_backend = OF_BOTH | OF_BACKEND
    return (needed - world.can - OF_BACKEND) | ((world.asks | (needed & of_backend)) - backend_can)


class Promise:
    """The base of every chapter. A subclass of a chapter says where its backend is.

    A chapter says what its stories are about and what all of them need: `class Cells(Promise, about="store",
    needs=("cell",))`. A story may say otherwise for itself.
    """

    capabilities: ClassVar[Capabilities] = Capabilities()  # of the backend; what it cannot do is not collected
    # What the backend can beyond the verbs: see `needs`, and "simulated": it waits by nothing but its `World`.
    can: ClassVar[frozenset[str]] = frozenset({"fork"})
    subjects: ClassVar[frozenset[str]] = SUBJECTS  # which stories run, by what they are about
    seeds: ClassVar[Iterable[int]] = range(3)  # each story of the simulated world runs once with each

    def url(self, tmp_path: Path) -> str:
        """Where the store of one story is; `tmp_path` is empty and the story's own."""
        raise NotImplementedError("say where the store is: override url(), or make_backend()")

    def make_backend(self, tmp_path: Path, world: World, clock: Clock | None) -> Backend:
        """Open the store. It must follow `clock` if there is one; called once for each client of a story."""
        return open_backend(self.url(tmp_path), world, clock)

    def records(self, tmp_path: Path) -> int:
        """How many records of names the store keeps, used or not; 0 if that is not known."""
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
        if subject_of(story) not in cls.subjects:
            return []
        return [name for name, world in WORLDS.items() if not lacking(story, world, cls._able())]

    @classmethod
    def _able(cls) -> frozenset[str]:
        return cls.can | abilities(cls.capabilities)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "stage" in metafunc.fixturenames:
            runs: dict[str, tuple[str, dict[str, int]]] = {}  # by the test's id: a failing seed can be run again
            for world in self.worlds_for(metafunc.function):
                if WORLDS[world].seeded:
                    runs |= {f"{world}-{seed}": (world, {"seed": seed}) for seed in self.seeds}
                else:
                    runs[world] = (world, {})
            metafunc.parametrize("stage", runs.values(), ids=runs.keys(), indirect=True)
        ways: _Ways | None = getattr(metafunc.function, "ways", None)
        if ways is not None:
            fitting = {id: value for id, value in ways.values.items() if {ways.needs.get(id)} - {None} <= self._able()}
            metafunc.parametrize(ways.argument, fitting.values(), ids=fitting.keys())

    def __init_subclass__(cls, *, about: Subject | None = None, needs: Iterable[str] = ()) -> None:
        for name, story in vars(cls).items():
            if about is not None and name.startswith("test_"):
                story.__dict__.setdefault("about", about)
                story.__dict__["needs"] = needed_by(story) | frozenset(needs)
        for name in [name for name in dir(cls) if name.startswith("test_")]:
            story = getattr(cls, name)
            if iscoroutinefunction(story):
                story = _as_test(story)
                setattr(cls, name, story)
            says_where = "url" in vars(cls) or "make_backend" in vars(cls)
            if says_where and story is not None and not cls.worlds_for(story):
                setattr(cls, name, None)  # not for this backend: pytest must not even see it


def _as_test(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(story)
    def test(self: Any, stage: Stage, **given: Any) -> None:
        stage.run(story(self, stage, **given))

    return test
