"""redlock-ng, in a process and an environment of its own: it needs an older redis-py than the other peers.

`make bench` makes the environment, so it is always measured.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from bench.peers import Missing

NAME: Final = "redlock-ng"
_HERE = Path(__file__).parent
INTERPRETER = _HERE.parent / ".venvs" / NAME / "bin" / "python"


@contextmanager
def redlock_ng(ports: list[int], interpreter: Path = INTERPRETER) -> Iterator[Callable[[int], float]]:
    """Seconds a cycle, over so many of them. The process runs on the cores of the thread that starts it.

    Raises Missing if the environment is not there.
    """
    if not interpreter.exists():
        raise Missing(f"{NAME} has no environment of its own; `make bench` makes it")
    # -P: the program's own folder has a redlock.py too
    command = [str(interpreter), "-P", str(_HERE / "redlock_ng_apart.py"), *map(str, ports)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def per_cycle(cycles: int) -> float:
            print(cycles, file=stdin, flush=True)
            answer = stdout.readline()
            if not answer:
                raise RuntimeError(f"{NAME} failed; its traceback is on stderr")
            return float(answer)

        try:
            yield per_cycle
        finally:
            with suppress(BrokenPipeError):  # it has ended, and the reader of its answers has raised
                stdin.close()  # it ends then
