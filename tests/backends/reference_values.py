"""A second version of limiters and cells, as small as it can be, that backends are compared with.

A limiter is a bucket that leaks: each permit fills it by one interval, time empties it, and it holds `burst` of them. A
cell is a value with a version, the highest fence of its writes, and its last writer. Written from the design.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lockfast._values import NS_PER_S, Rate, Write


class Answer(NamedTuple):
    allowed: bool
    remaining: int
    wait: int  # nanoseconds


@dataclass
class Bucket:
    level: int = 0  # nanoseconds until it is empty
    at: int = 0  # when that was so

    def _leak(self, now: float) -> None:
        at = round(now * NS_PER_S)
        self.level, self.at = max(0, self.level - (at - self.at)), at

    def take(self, now: float, rate: Rate, cost: int, patience: float) -> Answer:
        self._leak(now)
        size = rate.interval * rate.burst
        wait = max(0, self.level + rate.interval * cost - size)
        allowed = wait <= patience * NS_PER_S
        if allowed:
            self.level += rate.interval * cost
        return Answer(allowed, max(0, size - self.level) // rate.interval, wait)

    def booked_until(self) -> int:
        return self.at + self.level

    def give_back(self, now: float, rate: Rate, cost: int, until: int) -> None:
        """Only what was booked last, and only while it is."""
        if self.booked_until() == until:
            self.level -= rate.interval * cost
        self._leak(now)


@dataclass
class Cell:
    value: str | None = None
    version: int = 0
    fence: int = 0
    writer: str = ""
    highest: int = 0  # of all versions that it ever had

    def outcome(self, write: Write) -> str:
        if write.id == self.writer:
            return "again"
        if write.fence is not None and write.fence < self.fence:
            return "stale"
        if write.if_version not in (None, self.version):
            return "conflict"
        return "written"

    def written(self, write: Write, version: int) -> None:
        if write.value is None:
            self.value, self.version, self.fence, self.writer = None, 0, 0, ""
        else:
            self.value, self.version, self.writer = write.value, version, write.id
            self.fence = max(self.fence, write.fence or 0)
            self.highest = max(self.highest, version)
