"""What users need to test code that holds locks, and what a backend's author needs to test a backend.

`FakeClock` is for everybody. `FaultyBackend` and `Stage` are what the stories of the contract are told with; the
contract itself is in `holdfast.testing.contract`, which needs pytest.
"""

from __future__ import annotations

from holdfast.testing.clock import FakeClock
from holdfast.testing.faults import ALWAYS, FaultyBackend
from holdfast.testing.stage import Actor, AsyncioStage, Stage, ThreadStage

__all__ = ["ALWAYS", "Actor", "AsyncioStage", "FakeClock", "FaultyBackend", "Stage", "ThreadStage"]
