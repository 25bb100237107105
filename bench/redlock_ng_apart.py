"""Run as a program in redlock-ng's own environment, with the servers' ports: a number of cycles on each line of stdin,
seconds a cycle on each line of stdout. It imports nothing of ours, which is not installed there."""

from __future__ import annotations

import sys
import time
from importlib import import_module

LEASE_MS = 30_000


def main(ports: list[str]) -> None:
    manager = import_module("redlock").Redlock([f"redis://127.0.0.1:{port}/0" for port in ports])
    for line in sys.stdin:
        cycles = int(line)
        started = time.perf_counter()
        for _ in range(cycles):
            lock = manager.acquire("bench:redlock-ng", LEASE_MS)
            if not lock:
                raise RuntimeError("a free lock was not granted")
            manager.release(lock)
        print((time.perf_counter() - started) / cycles, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
