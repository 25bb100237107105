"""What users need to test code that holds locks, and what a backend's author needs to test a backend.

`FakeClock` is for everybody. `FaultyBackend` and `Stage` are what the stories of the contract are told with; the
contract itself is in `holdfast.testing.contract`, which needs pytest. `judge` tells whether a history of `Hold`s can be
true. `Simulation` and `SimulatedWorld` run the engine in virtual time; `python -m holdfast.testing.simulation 0-999`
runs that many seeds with all their faults.
"""

from __future__ import annotations

from holdfast.testing.clock import FakeClock
from holdfast.testing.faults import ALWAYS, FaultyBackend
from holdfast.testing.history import Hold, judge
from holdfast.testing.simulated import SimulatedWorld, Simulation
from holdfast.testing.stage import Actor, Stage
from holdfast.testing.stage_asyncio import AsyncioStage
from holdfast.testing.stage_simulated import SimulatedStage
from holdfast.testing.stage_threads import ThreadStage

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
]
