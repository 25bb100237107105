"""Bounded pool: a licence for three seats, and twelve threads of three processes that want one.

Each seat is a lease of its own: renewed while it is used, and free again after its ttl should its process die.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Barrier

import lockfast

SEATS, PROCESSES, THREADS = 3, 3, 4
START = multiprocessing.get_context("spawn")


class Room:
    """What the seats are in, shared by all processes: it counts who is inside."""

    def __init__(self) -> None:
        self.inside = START.Value("i", 0)
        self.most = START.Value("i", 0)
        self.full: Barrier = START.Barrier(SEATS)

    def sit(self) -> None:
        with self.inside.get_lock():
            self.inside.value += 1
            self.most.value = max(self.most.value, self.inside.value)
        self.full.wait(30)  # none is released before all are taken, so they are held at the same time
        with self.inside.get_lock():
            self.inside.value -= 1


def one_process(url: str, room: Room) -> None:
    with lockfast.connect(url) as locks, ThreadPoolExecutor(THREADS) as pool:
        waiter = locks.semaphore("licence:solver", SEATS, wait=30)

        def solve(_: int) -> None:
            with waiter:
                room.sit()

        list(pool.map(solve, range(THREADS)))


def main(url: str) -> None:
    room = Room()
    processes = [START.Process(target=one_process, args=(url, room)) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    print(f"{PROCESSES * THREADS} threads had a seat, {room.most.value} at once at most")
    assert room.most.value == SEATS
    print("never more than there are seats, and none was left empty")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(os.environ.get("LOCKFAST_URL") or f"sqlite:///{folder}/locks.db")
