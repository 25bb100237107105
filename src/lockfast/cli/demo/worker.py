"""One of the demo's workers: acquires the lock, works a moment, releases it, again and again.

Decides: nothing. It reports each step with the boot clock's time on stdout, and does what stdin says: `stay` means to
keep the lock at the next turn until it is lost; the end of stdin means to finish. Started by `lockfast demo`.
"""

from __future__ import annotations

import fcntl
import json
import sys
import threading
import time
from pathlib import Path

from lockfast._time import boot_now
from lockfast.cli.options import keep_logs_quiet
from lockfast.errors import AcquireTimeout, LeaseLost
from lockfast.observe.events import Event
from lockfast.sync import Lease, Locks, connect

_WORK_S = 0.12  # seconds that a turn takes
_WAIT_S = 10.0
_MAX_STAY_S = 30.0


class Ledger:
    """What the lock protects: a file that remembers the highest fence, and refuses to be written with a lower one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, fence: int, who: str) -> bool:
        """False if a higher fence was here before: then nothing is written."""
        with self._path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            last = max((int(line.split()[0]) for line in file), default=0)
            if fence < last:
                return False
            file.write(f"{fence} {who}\n")
            return True


class DemoWorker:
    def __init__(self, who: str, locks: Locks, lock: str, ttl: float, ledger: Ledger) -> None:
        self._who = who
        self._locks = locks
        self._lock = lock
        self._ttl = ttl
        self._ledger = ledger
        self._stay = threading.Event()
        self._finish = threading.Event()

    def read_orders(self) -> None:
        for line in sys.stdin:
            if line.strip() == "stay":
                self._stay.set()
        self._finish.set()

    def work(self) -> None:
        while not self._finish.is_set():
            try:
                self._try_once(threading.Event())
            except AcquireTimeout:
                continue
            except LeaseLost as error:
                report("raised", detail=str(error))
        report("done")

    def _try_once(self, lost: threading.Event) -> None:
        lock = self._locks.lock(self._lock, ttl=self._ttl, wait=_WAIT_S, on_lost=lambda lease: lost.set())
        with lock as lease:
            self._turn(lease, lost)

    def _turn(self, lease: Lease, lost: threading.Event) -> None:
        report("granted", fence=lease.fence, until=boot_now() + lease.remaining)
        if self._stay.is_set():
            self._stay.clear()
            report("staying", fence=lease.fence)
            lost.wait(_MAX_STAY_S)
            report("learned", fence=lease.fence, late=lease.lost)
        else:
            time.sleep(_WORK_S)
        written = self._ledger.write(lease.fence, self._who)
        report("wrote" if written else "refused", fence=lease.fence)
        report("releasing", fence=lease.fence)


def report(kind: str, **facts: object) -> None:
    print(json.dumps({"kind": kind, "at": boot_now(), **facts}), flush=True)


def _report_renewal(event: Event, ttl: float) -> None:
    if event.kind == "renewed":
        report("renewed", fence=event.fence, until=boot_now() + ttl)


def main() -> None:
    who, url, lock, ttl, ledger = sys.argv[1:]
    keep_logs_quiet()
    with connect(url, holder=who) as locks:
        locks.events.listen(lambda event: _report_renewal(event, float(ttl)))
        worker = DemoWorker(who, locks, lock, float(ttl), Ledger(Path(ledger)))
        threading.Thread(target=worker.read_orders, daemon=True).start()
        worker.work()


if __name__ == "__main__":
    main()
