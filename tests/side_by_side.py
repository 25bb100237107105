"""Run commands of a shell at the same time, show what each printed when it has ended, and fail if one did.

python -m tests.side_by_side "ruff check ." "python -m mypy"
"""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed


def _run(command: str) -> tuple[str, int, str, float]:
    started = time.monotonic()
    done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return command, done.returncode, done.stdout, time.monotonic() - started


def main(commands: list[str]) -> int:
    failed = False
    with ThreadPoolExecutor(len(commands)) as pool:
        for ended in as_completed([pool.submit(_run, command) for command in commands]):
            command, code, output, took = ended.result()
            failed = failed or code != 0
            print(
                f"$ {command}\n{output}{'ok' if code == 0 else f'FAILED with {code}'} after {took:.1f} s\n", flush=True
            )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
