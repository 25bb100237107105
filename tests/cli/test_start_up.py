"""Ctrl-C while the program is still being imported: quiet, and exit code 130."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import PROGRAM, Shell
from tests.servers.waiting import LIMIT_S

# Python imports this by itself, before us. The interrupt then falls where the module is asked for.
INTERRUPTER = """
import os, signal, sys

class Interrupter:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPT_AT"]:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests' parent process ignores it
sys.meta_path.insert(0, Interrupter())
"""

BY_NAME = [str(Path(sys.executable).with_name("lockfast"))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "words", "module"),
    [
        (PROGRAM, ["ls"], "lockfast.cli"),
        (PROGRAM, ["ls"], "lockfast.cli.exits"),
        (BY_NAME, ["ls"], "lockfast.cli.exits"),
        (BY_NAME, ["ls"], "lockfast.cli.inspection"),
        (BY_NAME, ["run", "x", "--", "true"], "argparse"),
        (BY_NAME, ["run", "x", "--", "true"], "lockfast.cli.supervisor"),
        (BY_NAME, ["run", "x", "--", "true"], "lockfast.backends.sqlite.backend"),
        (BY_NAME, ["frobnicate"], "lockfast.cli.options"),  # in the middle of an explanation
        (BY_NAME, ["--help"], "lockfast.cli.options"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[-1:]),
)
def test_an_interrupt_during_imports_is_a_quiet_130(
    shell: Shell, tmp_path: Path, program: list[str], words: list[str], module: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTER)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    environment = {**shell.environment, "PYTHONPATH": path, "INTERRUPT_AT": module}
    environment.pop("LOCKFAST_DEBUG", None)
    done = subprocess.run(
        [*program, *words], capture_output=True, text=True, timeout=LIMIT_S, env=environment, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
