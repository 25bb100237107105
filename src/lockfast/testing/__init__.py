"""What users need to test code that holds locks, and what a backend's author needs to test a backend.

`FakeClock` is for everybody. `FaultyBackend` stands before a backend and loses or delays what is sent to it;
`open_backend` opens the one behind it by its URL. `Stage` and its three kinds are what a story of the contract is
given; the contract itself is in `lockfast.testing.contract`, which needs pytest. `judge` says whether a history of
`Hold`s can be true. `Simulation` and `SimulatedWorld` run the engine in virtual time;
`python -m lockfast.testing.simulation 0-999` runs that many seeds with all their faults.
"""

from __future__ import annotations

from lockfast._connect import open_backend
from lockfast.testing.clock import FakeClock
from lockfast.testing.faults import ALWAYS, FaultyBackend
from lockfast.testing.history import Hold, judge
from lockfast.testing.simulated import SimulatedWorld, Simulation
from lockfast.testing.stage import Actor, Stage
from lockfast.testing.stage_asyncio import AsyncioStage
from lockfast.testing.stage_simulated import SimulatedStage
from lockfast.testing.stage_threads import ThreadStage

__all__ = [
    "ALWAYS",
    "Actor",
    "AsyncioStage",
    "FakeClock",
    "FaultyBackend",
    "Hold",
    "SimulatedStage",
    "SimulatedWorld",
    "Simulation",
    "Stage",
    "ThreadStage",
    "judge",
    "open_backend",
]
