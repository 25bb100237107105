"""The log as JSON, with the standard library: one object for each record, with the fields of its event.

A record of the logger `lockfast` has the fields of its event, each with `lock_` before its name.
"""

from __future__ import annotations

import json
import logging
import sys
from contextlib import suppress

import lockfast


class JsonFormatter(logging.Formatter):
    """One line of JSON for each record."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: value for name, value in vars(record).items() if name.startswith("lock_")}
        return json.dumps({"level": record.levelname, "message": record.getMessage(), **fields})


class Kept(logging.StreamHandler):  # type: ignore[type-arg]
    """Prints each line, and keeps it for the check at the end."""

    def __init__(self) -> None:
        super().__init__(sys.stdout)
        self.lines: list[dict[str, object]] = []

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        self.lines.append(json.loads(self.format(record)))


def main() -> None:
    handler = Kept()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])

    with lockfast.connect("memory://", holder="worker-7") as locks:
        locks.lock("order:42").acquire()
        locks.lock("order:42", wait=0.1).acquire()  # None: it timed out
        with suppress(lockfast.LeaseLost), locks.lock("order:43"):
            locks.break_lock("order:43")  # as an operator would: the body learns of it at its end
    timed_out, broken, lost = handler.lines
    assert (timed_out["level"], timed_out["lock_kind"]) == ("INFO", "not_granted")
    assert (timed_out["lock_outcome"], timed_out["lock_held_by"]) == ("timeout", "worker-7")
    assert (broken["level"], broken["lock_kind"], broken["lock_fence"]) == ("INFO", "broken", lost["lock_fence"])
    assert (lost["level"], lost["lock_kind"], lost["lock_outcome"]) == ("WARNING", "lost", "broken")
    assert timed_out["lock_pattern"] == lost["lock_pattern"] == "order:{n}"
    print("each record had the fields of its event")


if __name__ == "__main__":
    main()
