"""The log in structlog: the records of the logger `lockfast` go through the same processors as your own.

Needs structlog (`pip install structlog`), which lockfast itself does not use. `ExtraAdder` takes over the fields of a
record: those of the event, each with `lock_` before its name.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

import lockfast

SHARED: list[Any] = [structlog.stdlib.add_log_level, structlog.stdlib.ExtraAdder()]


def main() -> None:
    lines: list[dict[str, Any]] = []

    def keep(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """For the check at the end."""
        lines.append(dict(event))
        return event

    structlog.configure(
        processors=[*SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=SHARED,  # for records that do not come from structlog, as lockfast's
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                keep,
                structlog.processors.JSONRenderer(serializer=json.dumps),
            ],
        )
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler])

    log = structlog.get_logger("shop")
    with lockfast.connect("memory://", holder="worker-7") as locks:
        with locks.lock("order:42") as lease:
            log.info("order is charged", fence=lease.fence)
            locks.lock("order:42", wait=0.1).acquire()  # None: it timed out
    ours, theirs = lines
    assert (ours["event"], ours["fence"]) == ("order is charged", lease.fence)
    assert theirs["event"].startswith("lock timed out: 'order:42' after ")
    assert (theirs["level"], theirs["lock_outcome"], theirs["lock_pattern"]) == ("info", "timeout", "order:{n}")
    print("one stream for both, with the fields of each event")


if __name__ == "__main__":
    main()
