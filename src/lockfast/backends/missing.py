"""Verbs that some backends do not have.

Decides: how a missing verb is refused. Nobody calls one through lockfast: a primitive that needs it is refused by the
backend's `capabilities` when it is made.
"""

from __future__ import annotations

from lockfast._model import Claim, Observation
from lockfast._values import Booked, Rate, Stored, Write, Written
from lockfast.errors import Unsupported


class WithoutValues:
    """A backend without limiters and cells."""

    async def throttle(self, key: str, rate: Rate, *, cost: int, patience: float, within: float) -> Booked:
        raise refusal(self, "limiters")

    async def unthrottle(self, key: str, rate: Rate, *, cost: int, until: int, within: float) -> None:
        raise refusal(self, "limiters")

    async def read(self, key: str, *, within: float) -> Stored:
        raise refusal(self, "cells")

    async def write(self, key: str, write: Write, *, within: float) -> Written:
        raise refusal(self, "cells")


class WithoutChanges:
    """A backend that reports no changes of holder."""

    async def observe(self, claim: Claim, *, after: int, within: float) -> Observation:
        raise refusal(self, "changes to observe")


def refusal(backend: object, what: str) -> Unsupported:
    return Unsupported(f"{backend!r} has no {what}; nothing was sent")
