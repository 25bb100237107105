"""A finalizer that the garbage collector calls anywhere may read the fake clock."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.servers.waiting import LIMIT_S

# The collector runs at the n-th object that is made after it was enabled, for each n. What is freed is overwritten.
_READS_MEANWHILE = """
import gc, sys
from contextvars import ContextVar, copy_context
from lockfast.testing import FakeClock

clock = FakeClock()

class Reads:
    def __init__(self):
        self.circle = self

    def __del__(self):
        clock.now()
        made.append([{} for _ in range(3)])

made = []
copies = [copy_context() for _ in range(1000)]  # so that the interpreter keeps none to be used again
act = {"read": clock.now, "copy": copy_context}[sys.argv[1]]
clock.now()
for number in range(1200):
    gc.disable()
    Reads()
    gc.set_threshold(1 + number % 12, 10, 10)
    gc.enable()
    copies.append(act())
    made.clear()
print("alive")
"""


@pytest.mark.slow
@pytest.mark.parametrize("meanwhile", ["read", "copy"])
def test_a_finalizer_may_read_the_clock_while_the_context_is_read(meanwhile: str) -> None:
    env = {**os.environ, "PYTHONMALLOC": "debug"}
    words = [sys.executable, "-c", _READS_MEANWHILE, meanwhile]
    ended = subprocess.run(words, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (ended.returncode, ended.stdout) == (0, "alive\n"), ended.stderr
