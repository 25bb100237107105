"""Payment with a fence: a clerk is paused in the middle of its work, and its late write is refused.

No lock can stop a process that is paused between `lease.check()` and the write. The fence can: whatever is written
to remembers the highest fence it has seen and refuses lower ones. Here that is a cell, and a table of one's own.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import tempfile
from contextlib import closing
from multiprocessing.process import BaseProcess

import lockfast
from lockfast.fencing import guarded_update

START = multiprocessing.get_context("spawn")


def paused_clerk(url: str, books: str) -> None:
    with lockfast.connect(url, holder="paused clerk") as locks:
        lease = locks.lock("order:42:pay", ttl=1, renew=False).acquire()  # paused before it could renew
        assert lease is not None
        lease.check()  # all is well, and then comes a pause of any length
        os.kill(os.getpid(), signal.SIGSTOP)
        for write in (write_table, write_cell):
            try:
                write(locks, books, "paused clerk", lease.fence)
            except lockfast.StaleFence as refusal:
                print("refused:", refusal)
            else:
                raise AssertionError("a late write went through")


def write_table(_: lockfast.Locks, books: str, clerk: str, fence: int) -> None:
    with closing(sqlite3.connect(books)) as table, table:
        guarded_update(table, "payments", {"clerk": clerk}, key={"id": 42}, fence=fence)


def write_cell(locks: lockfast.Locks, _: str, clerk: str, fence: int) -> None:
    locks.cell("order:42").write({"paid by": clerk}, fence=fence)


def wait_until_paused(process: BaseProcess) -> None:
    process.start()
    assert process.pid is not None
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), "it ended instead"


def main(url: str, books: str) -> None:
    with closing(sqlite3.connect(books)) as table, table:
        table.execute("CREATE TABLE payments (id INTEGER PRIMARY KEY, clerk TEXT, fence INTEGER NOT NULL DEFAULT 0)")
        table.execute("INSERT INTO payments (id) VALUES (42)")
    late = START.Process(target=paused_clerk, args=(url, books))
    try:
        wait_until_paused(late)
        with lockfast.connect(url, holder="second clerk") as locks:
            with locks.lock("order:42:pay", wait=30) as lease:  # after the ttl of the paused one
                write_table(locks, books, "second clerk", lease.fence)
                write_cell(locks, books, "second clerk", lease.fence)
            os.kill(late.pid or 0, signal.SIGCONT)
            late.join()
            assert late.exitcode == 0, "a late write was not refused"
            assert locks.cell("order:42").read().value == {"paid by": "second clerk"}
    finally:
        late.kill()
    print("paid once; the late writes were refused by the fence")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(os.environ.get("LOCKFAST_URL") or f"sqlite:///{folder}/locks.db", f"{folder}/books.db")
