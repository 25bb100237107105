"""Leader election: two candidates, one leads, it is killed, the other takes over; an observer sees each change.

The candidates are processes that use the callback style, `election.run`. The observer is asyncio code that sleeps
until there is news: nothing here polls.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import tempfile
from collections.abc import AsyncGenerator
from contextlib import aclosing
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from typing import cast

import lockfast
import lockfast.aio

START = multiprocessing.get_context("spawn")


def candidate(url: str, me: str, enough: Event) -> None:
    def lead(lease: lockfast.Lease) -> None:
        """Runs while this candidate leads. Real work would call `lease.check()` now and then."""
        enough.wait()

    with lockfast.connect(url) as locks:
        locks.election("scheduler", candidate=me, ttl=1).run(lead)  # after `lead` it resigns


async def watch(url: str, candidates: dict[str, tuple[BaseProcess, Event]]) -> None:
    async with asyncio.timeout(30), lockfast.aio.connect(url) as locks:
        async with aclosing(printed(locks)) as news:
            assert (await anext(news)).vacant
            for process, _ in candidates.values():
                process.start()

            first = await anext(news)
            candidates.pop(str(first.leader))[0].kill()
            assert (await anext(news)).vacant  # when its ttl has passed

            second = await anext(news)
            [(name, (_, enough))] = candidates.items()
            assert second.leader == name
            assert second.term > first.term, "terms only grow"
            enough.set()
            assert (await anext(news)).vacant  # at once: it resigned


async def printed(locks: lockfast.aio.AsyncLocks) -> AsyncGenerator[lockfast.Leadership, None]:
    async for change in locks.election("scheduler").observe():
        print("nobody leads" if change.vacant else f"{change.leader} leads")
        yield change


def main(url: str) -> None:
    candidates: dict[str, tuple[BaseProcess, Event]] = {}
    for name in ("alice", "bob"):
        enough = START.Event()
        candidates[name] = START.Process(target=candidate, args=(url, name, enough)), enough
    processes = [process for process, _ in candidates.values()]
    try:
        asyncio.run(watch(url, candidates))
        for process in processes:
            process.join()
        assert sorted(cast("int", process.exitcode) for process in processes) == [-9, 0]
    finally:
        for process in processes:
            process.kill()
    print("the second leader took over from the first, in a later term")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(os.environ.get("LOCKFAST_URL") or f"sqlite:///{folder}/locks.db")
