"""How a server of the tests is started, and ended whatever becomes of the tests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


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


def watch_over(process: subprocess.Popen[bytes], folder: Path, end: str) -> subprocess.Popen[bytes]:
    """Whatever becomes of us, the end of our pipe ends the server, with these words of a shell, and its folder."""
    script = f'read nothing; {end}; rm -rf "$2"'
    return subprocess.Popen(
        ["sh", "-c", script, "sh", str(process.pid), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
