"""What users need to test code that holds locks, and what a backend's author needs to test a backend."""

from __future__ import annotations

from holdfast.testing.clock import FakeClock

__all__ = ["FakeClock"]
