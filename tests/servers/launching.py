"""How a server of the tests is started, and ended whatever becomes of the tests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.servers import run


def launch(words: Sequence[str], where: Path, log: Path, env: Mapping[str, str] | None) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen(
            words,
            cwd=where,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,  # Ctrl-C is for the tests, and they end it
            env={**os.environ, **(env or {})},
        )


def watch_over(process: subprocess.Popen[bytes], folder: Path, end: str, *, shared: bool) -> subprocess.Popen[bytes]:
    """Whatever becomes of us, the server ends, by these words of a shell, and its folder is removed.

    It ends with this process, or, if all processes of the run share it, with the run.
    """
    script, words = f'{end}; rm -rf "$2"', (str(process.pid), str(folder))
    if shared:
        return run.at_the_end(script, *words)
    return subprocess.Popen(
        ["sh", "-c", f"read nothing; {script}", "sh", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def call_off(watchdog: subprocess.Popen[bytes]) -> None:
    """Before a server is ended by us: its watchdog must not meet the number again, as another's."""
    watchdog.kill()
    watchdog.wait()
    if watchdog.stdin is not None:
        watchdog.stdin.close()


def let_go(process: subprocess.Popen[bytes] | None) -> None:
    """It outlives this process, on purpose: nothing here waits for it, or warns that it still runs."""
    if process is not None:
        process.returncode = 0
