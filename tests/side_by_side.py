"""Run commands of a shell at the same time, and fail if one did. What each printed is shown when it has ended.

python -m tests.side_by_side "ruff check ." "python -m mypy"
python -m tests.side_by_side --show-last "python -m mypy" "pytest"    # the last one's output is shown as it comes
"""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import NamedTuple


class Ended(NamedTuple):
    command: str
    code: int
    output: str
    seconds: float

    def __str__(self) -> str:
        result = "ok" if self.code == 0 else f"FAILED with {self.code}"
        return f"$ {self.command}\n{self.output}{result} after {self.seconds:.1f} s\n"


def _run(command: str, shown: bool) -> Ended:
    started = time.monotonic()
    output = None if shown else subprocess.PIPE
    done = subprocess.run(command, shell=True, stdout=output, stderr=subprocess.STDOUT, text=True, check=False)
    return Ended(command, done.returncode, done.stdout or "", time.monotonic() - started)


def main(words: list[str]) -> int:
    commands = [word for word in words if word != "--show-last"]
    last = commands[-1] if commands != words else None
    with ThreadPoolExecutor(len(commands)) as pool:
        running = [pool.submit(_run, command, command is last) for command in commands]
        ended = []
        for one in as_completed(running):
            ended.append(one.result())
            if last is None:
                print(ended[-1], flush=True)
    if last is not None:  # not into the middle of what it shows
        print("", *ended, sep="\n", flush=True)
    return int(any(one.code != 0 for one in ended))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
