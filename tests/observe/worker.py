"""A process that counts in Prometheus' multi-process mode: `python -m tests.observe.worker URL ROUNDS fork|plain`.

It acquires and releases `ROUNDS` times, leads an election of its own, holds one lock, says so, and ends when its input
does. With `fork` it installs the metrics, holds a lock, forks, and its child does that instead, as a worker of gunicorn
with `preload_app`.
"""

from __future__ import annotations

import os
import sys

import lockfast


def main(url: str, rounds: int, how: str) -> None:
    locks = lockfast.connect(url, observe=["prometheus"])
    if how == "fork":
        assert locks.lock(f"parent:{os.getpid()}").acquire()
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
            return
    for number in range(rounds):
        with locks.lock(f"order:{number}:{os.getpid()}"):
            pass
    assert locks.election(f"shard:{os.getpid()}").campaign()
    assert locks.lock(f"held:{os.getpid()}").acquire()
    print(os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)  # as if it was killed: nothing is released


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
