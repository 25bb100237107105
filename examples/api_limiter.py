"""API limiter: many workers in several processes share one rate, because the other side counts them as one customer.

`acquire` waits its turn; `try_acquire` answers at once, for callers that can be refused.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import tempfile
import time
from multiprocessing.pool import Pool

import lockfast
import lockfast.aio

RATE, BURST = 20, 5  # calls in a second, and calls at once after a rest
PROCESSES, WORKERS, CALLS = 3, 4, 3  # each worker makes so many calls


def one_process(url: str, name: str) -> list[float]:
    """The moments at which this process was allowed to call."""
    return asyncio.run(many_workers(url, name))


async def many_workers(url: str, name: str) -> list[float]:
    async with lockfast.aio.connect(url) as locks:
        limiter = locks.limiter(name, rate=RATE, burst=BURST)

        async def worker() -> list[float]:
            moments = []
            for _ in range(CALLS):
                allowance = await limiter.acquire(timeout=30)
                assert allowance.allowed, "not within 30 seconds"
                moments.append(time.monotonic())  # here the call would be made
            return moments

        each = await asyncio.gather(*(worker() for _ in range(WORKERS)))
        return [moment for moments in each for moment in moments]


def all_processes(pool: Pool, url: str, name: str) -> list[float]:
    each = pool.starmap(one_process, [(url, name)] * PROCESSES, chunksize=1)
    return sorted(moment for moments in each for moment in moments)


def main(url: str) -> None:
    name = f"api:{os.getpid()}"  # fresh, so that it begins well rested
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        began = time.monotonic()
        moments = all_processes(pool, url, name)
        pool.close()
        pool.join()

    assert len(moments) == PROCESSES * WORKERS * CALLS
    for number, moment in enumerate(moments, 1):
        assert moment - began >= (number - BURST) / RATE, f"call {number} came too early"
    print(f"{len(moments)} calls at {RATE} a second took {moments[-1] - began:.1f} s")

    with lockfast.connect(url) as locks:
        sign_up = locks.limiter(f"sign-up:{os.getpid()}", rate=1, per=3600)
        assert sign_up.try_acquire()
        refused = sign_up.try_acquire()
        assert not refused
        assert 3500 < refused.retry_after <= 3600
        print(f"429 Too Many Requests, Retry-After: {refused.retry_after:.0f}")
    print("no call came before its time")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(os.environ.get("LOCKFAST_URL") or f"sqlite:///{folder}/locks.db")
