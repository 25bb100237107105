"""Cron singleton: two hosts have the same crontab and clocks that differ a little; the report is made once.

`singleton` alone skips only while another run holds the lock. A fast job is over before the second cron begins, so
`min_hold` keeps the name taken for a minute after the grant, however fast the job was.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from pathlib import Path

import lockfast

START = multiprocessing.get_context("spawn")


def cron(url: str, today: str, log: Path, host: str) -> None:
    """What each host's crontab starts. `today` makes the names of one run of this example its own."""
    with lockfast.connect(url, holder=host) as locks:

        @locks.singleton("cron:report:{day}", min_hold=60, default="skipped")
        def report(day: str) -> str:
            return "made"

        @locks.singleton("cron:careless:{day}", default="skipped")
        def careless(day: str) -> str:
            return "made"

        with log.open("a") as lines:
            lines.write(f"{host}: report {report(today)}, careless report {careless(today)}\n")


def main(url: str, log: Path) -> None:
    today = f"run-{os.getpid()}"
    for host in ("first", "second"):  # one after the other: the first is long gone when the second begins
        process = START.Process(target=cron, args=(url, today, log, host))
        process.start()
        process.join()
        assert process.exitcode == 0

    print(log.read_text(), end="")
    first, second = log.read_text().splitlines()
    assert first == "first: report made, careless report made"
    assert second == "second: report skipped, careless report made"
    with lockfast.connect(url) as locks:
        [taken] = locks.inspect(f"cron:report:{today}").holders
    assert 0 < taken.expires_at - taken.acquired_at < 61
    print("the report was made once, the one without min_hold twice")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(os.environ.get("LOCKFAST_URL") or f"sqlite:///{folder}/locks.db", Path(folder) / "log.txt")
