"""Worker queue: several processes work off one list of jobs, and each job is done once.

The lock alone does not make a job unique: a later worker finds it free again. So each worker checks, under the
lock, whether the job is done already. One worker is killed in the middle of its first job; another does it instead.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

import lockfast

JOBS = [f"invoice-{number}" for number in range(1, 13)]
START = multiprocessing.get_context("spawn")


def work(url: str, outbox: Path, me: str, together: Barrier) -> None:
    with lockfast.connect(url, holder=me) as locks:
        deliver = locks.locked("job:mail:{job}")(send)
        try_to_deliver = locks.singleton("job:mail:{job}")(send)
        together.wait(30)  # no worker has finished before all have begun
        for job in JOBS:  # first the jobs that no other worker holds
            try_to_deliver(job, outbox, me)
        for job in JOBS:  # then wait for the rest: their worker may die
            deliver(job, outbox, me)


def send(job: str, outbox: Path, me: str) -> None:
    letter = outbox / job
    if letter.exists():
        return
    time.sleep(0.02)  # writing it takes a while
    with letter.open("x") as file:  # fails if another worker has sent it meanwhile
        file.write(me)


def die_at_work(url: str, taken: Event) -> None:
    with lockfast.connect(url, holder="unlucky") as locks, locks.lock(f"job:mail:{JOBS[0]}", ttl=1):
        taken.set()
        os.kill(os.getpid(), signal.SIGKILL)


def main(url: str, outbox: Path) -> None:
    taken = START.Event()
    unlucky = START.Process(target=die_at_work, args=(url, taken))
    unlucky.start()
    assert taken.wait(30), "the first worker never had its job"

    together = START.Barrier(3)
    workers = [START.Process(target=work, args=(url, outbox, f"worker-{number}", together)) for number in range(3)]
    for worker in workers:
        worker.start()
    for process in [unlucky, *workers]:
        process.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0], "a worker failed: a job was done twice"

    done_by = {letter.name: letter.read_text() for letter in outbox.iterdir()}
    assert sorted(done_by) == sorted(JOBS), "a job was left undone"
    for name in sorted(set(done_by.values())):
        print(name, "did", *(job for job in JOBS if done_by[job] == name))
    print(f"{len(JOBS)} jobs, each done once, the dead worker's too")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "outbox").mkdir()
        main(os.environ.get("LOCKFAST_URL") or f"sqlite:///{folder}/locks.db", Path(folder) / "outbox")
