"""What one process believed, one JSON line per event, written as it happens: what a killed process did is there too.

Decides: which moments count. A hold is believed from when `acquire` returned until the first of: the release is called,
the deadline that the lease reports, a loss that is noticed, the process is killed.
Leaves to `lockfast.testing.history`: whether the holds exclude each other.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lockfast._model import SHARED
from lockfast._time import FOREVER, boot_now
from lockfast.testing.history import Hold

Entry = dict[str, Any]


class Journal:
    """A file of one process. All threads may write to it."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, event: str, **facts: Any) -> None:
        os.write(self._file, (json.dumps({"event": event, "at": boot_now(), **facts}) + "\n").encode())

    def close(self) -> None:
        os.close(self._file)


def read(path: Path) -> Iterator[Entry]:
    """Its entries; the last one may have been cut short by a kill."""
    with path.open() as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


class Asked(NamedTuple):
    """What an actor asks for."""

    style: str  # what the table of the run calls it
    at: float
    limit: int | None = None
    min_hold: float = 0.0


class Belief:
    """One hold as its holder sees it."""

    def __init__(self, journal: Journal, lease: Any, asked: Asked) -> None:
        self._journal, self._lease, self._id = journal, lease, lease.claim_id
        start, self._until = boot_now(), lease._deadline
        facts = {"name": lease.name, "holder": lease.holder, "fence": lease.fence, "mode": lease.mode}
        kept = lease._granted_at + asked.min_hold if asked.min_hold else 0.0
        journal.write(
            "held", at=start, id=self._id, until=self._until, asked=asked.at, kept=kept,
            style=asked.style, limit=asked.limit, **facts,
        )  # fmt: skip

    def refresh(self) -> bool:
        """Write down how long it is believed in now; False if it is lost."""
        if self._lease._deadline != self._until:
            self._until = self._lease._deadline
            self._journal.write("renewed", id=self._id, until=self._until)
        return bool(self._lease.held)

    def shares(self) -> None:
        """From the call of `downgrade` on: the server does it at some moment after that."""
        self._journal.write("shares", id=self._id)

    def over(self) -> None:
        """Before the release is called."""
        at = boot_now()
        self.refresh()
        self._journal.write("over", at=at, id=self._id)


class Believed(NamedTuple):
    """A hold, and what the verdict asks about it beside the judge."""

    hold: Hold
    style: str
    asked_at: float
    worker: str

    @property
    def waited(self) -> float:
        return self.hold.start - self.asked_at


class _Open:
    """A hold that is not over yet, as far as the entries say."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.until: float = entry["until"]
        self.end = FOREVER
        self.shares_from = FOREVER
        self.lost = False

    def note(self, entry: Entry) -> None:
        if entry["event"] == "renewed":
            self.until = max(self.until, entry["until"])
        elif entry["event"] == "shares":
            self.shares_from = entry["at"]
        else:
            self.end = min(self.end, entry["at"])
            self.lost = self.lost or entry["event"] == "lost"

    def pieces(self, worker: str, until: float) -> Iterator[Believed]:
        """Until then at most; two, if it was downgraded."""
        entry = self.entry
        end = min(self.end, until)
        if end == self.end and not self.lost:
            end = max(end, entry["kept"])  # released, and the name stays taken
        name, holder, fence, start = (entry[what] for what in ("name", "holder", "fence", "at"))
        hold = Hold(name, holder, fence, start, end, entry["mode"], entry["limit"], entry["id"])
        yield Believed(hold._replace(end=min(end, self.shares_from)), entry["style"], entry["asked"], worker)
        if self.shares_from < end:
            shared = hold._replace(start=self.shares_from, mode=SHARED)
            yield Believed(shared, "shares", self.shares_from, worker)


def believed(entries: Iterable[Entry], worker: str, died_at: float = FOREVER) -> Iterator[Believed]:
    """The holds of one process, which was killed at that moment or not at all.

    Those of several names that were asked for together end with the first deadline among them: when one is lost, the
    library releases the others.
    """
    holds: dict[str, _Open] = {}
    together: defaultdict[float, list[_Open]] = defaultdict(list)  # by when they were asked for
    for entry in entries:
        if entry["event"] == "held":
            holds[entry["id"]] = hold = _Open(entry)
            together[entry["asked"]].append(hold)
        elif entry["event"] in ("renewed", "shares", "lost", "over") and entry["id"] in holds:
            holds[entry["id"]].note(entry)
    for group in together.values():
        until = min(died_at, *(hold.until for hold in group))
        for hold in group:
            yield from hold.pieces(worker, until)
