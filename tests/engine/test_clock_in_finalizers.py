"""A finalizer that the garbage collector calls anywhere may read the fake clock."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.servers.waiting import LIMIT

# The collector runs at the n-th object that is made after it was enabled, for each n. What is freed is overwritten.
_READS_WHILE_IT_READS = """
import gc
from lockfast.testing import FakeClock

clock = FakeClock()

class Reads:
    def __init__(self):
        self.circle = self

    def __del__(self):
        clock.now()
        made.append([{} for _ in range(3)])

made = []
for number in range(1200):
    gc.disable()
    Reads()
    gc.set_threshold(1 + number % 12, 10, 10)
    gc.enable()
    clock.now()
    made.clear()
print("reads")
"""


@pytest.mark.slow
def test_a_finalizer_may_read_the_clock_while_the_clock_is_read() -> None:
    env = {**os.environ, "PYTHONMALLOC": "debug"}
    ended = subprocess.run(
        [sys.executable, "-c", _READS_WHILE_IT_READS],
        env=env,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "reads\n"), ended.stderr
