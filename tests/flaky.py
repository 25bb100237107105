"""Run all tests many times, and show in one table which of them failed when.

Decides: what a run is like. Every second one has as many busy loops beside it as there are cores, and each has an order
of its own, by a seed that is printed.

    python -m tests.flaky --runs 10
    python -m tests.flaky --runs 4 tests/engine        # what follows is for pytest
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent


class Run(NamedTuple):
    number: int
    loaded: bool
    seed: int
    seconds: float
    tests: int
    failed: list[str]
    code: int  # of pytest

    @property
    def green(self) -> bool:
        return self.code == 0 and not self.failed


@contextmanager
def busy_loops(number: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run(number: int, jobs: int, words: list[str], folder: Path) -> Run:
    loaded, seed = number % 2 == 1, random.SystemRandom().randrange(1_000_000)
    report, log = folder / f"{number}.xml", folder / f"{number}.log"
    command = [sys.executable, "-m", "pytest", "-n", str(jobs), "--dist", "worksteal", f"--junitxml={report}"]
    command += [f"--in-order-of={seed}", *words]
    started = time.monotonic()
    with busy_loops((os.cpu_count() or 1) if loaded else 0), log.open("w") as output:
        code = subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
    tests, failed = read(report) if report.exists() else (0, [])
    return Run(number, loaded, seed, time.monotonic() - started, tests, failed, code)


def read(report: Path) -> tuple[int, list[str]]:
    """How many tests there were, and which of them failed or could not be set up."""
    cases = list(ElementTree.parse(report).iter("testcase"))
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return len(cases), [f"{case.get('classname')}::{case.get('name')}" for case in bad]


def table(runs: list[Run]) -> str:
    lines = ["| run | beside it | order | time | tests | result |", "|---|---|---|---|---|---|"]
    for each in runs:
        beside = "busy loops" if each.loaded else "nothing"
        result = "green" if each.green else f"{len(each.failed)} failed (exit {each.code})"
        minutes = f"{each.seconds // 60:.0f}:{each.seconds % 60:02.0f}"
        lines.append(f"| {each.number} | {beside} | {each.seed} | {minutes} | {each.tests} | {result} |")
    failures: dict[str, list[int]] = defaultdict(list)
    for each in runs:
        for test in each.failed:
            failures[test].append(each.number)
    lines += ["", f"{sum(each.green for each in runs)} of {len(runs)} green"]
    lines += [f"- {test}: red in run {', '.join(map(str, numbers))}" for test, numbers in sorted(failures.items())]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.flaky")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=(os.cpu_count() or 1) + 1)
    asked, words = parser.parse_known_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what was started is ended
    folder = Path(tempfile.mkdtemp(prefix="lockfast-flaky-"))
    print(f"what each run printed is in {folder}", flush=True)
    runs: list[Run] = []
    for number in range(asked.runs):
        runs.append(run(number, asked.jobs, words, folder))
        print(table(runs) + "\n", flush=True)
    return 0 if all(each.green for each in runs) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
