"""Read/write lock: readers of a price list are in together, and never while it is rewritten.

The writer turns its write lease into a read lease when it is done, without a gap: it reads, beside the others,
exactly what it wrote, because no other writer can have been in between.
"""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import lockfast

READERS = 3


def main(url: str) -> None:
    prices = {"apple": 1, "pear": 1}  # must always be the same for both
    together = Barrier(READERS + 1)

    def read(locks: lockfast.Locks) -> dict[str, int]:
        with locks.rwlock("prices", wait=30).read():
            seen = dict(prices)
            together.wait(30)  # passes only if all readers, and the former writer, are inside at once
            return seen

    with lockfast.connect(url) as locks, ThreadPoolExecutor(READERS) as pool:
        with locks.rwlock("prices", wait=30).write() as lease:
            readers = [pool.submit(read, locks) for _ in range(READERS)]
            prices["apple"] = 2
            prices["pear"] = 2
            fence = lease.fence
            lease.downgrade()  # now the readers may enter
            assert lease.fence == fence, "it is the same lease"
            assert locks.rwlock("prices").write().acquire(blocking=False) is None, "no other writer gets between"
            together.wait(30)
            print(f"{READERS} readers and the former writer are in together")
        seen = [reader.result() for reader in readers]
        assert seen == [{"apple": 2, "pear": 2}] * READERS, "a reader saw a write that was not finished"
        with locks.rwlock("prices", wait=30).write():
            print("all have left, and the next writer is in")
    print("every reader saw the whole list")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(os.environ.get("LOCKFAST_URL") or f"sqlite:///{folder}/locks.db")
