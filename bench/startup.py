"""What does a program pay before it holds its first lock, and a command for being run under one?

`import lockfast` is measured against a bare interpreter, `lockfast run NAME -- true` against `true`. The bytecode is
compiled beforehand, as pip does when it installs a package.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from shutil import which
from statistics import median

from bench.harness import Finding, Samples, Setting, quartiles, take_turns


def run(setting: Setting) -> list[Finding]:
    """Findings for `python -m bench --only startup`."""
    rounds = setting.scaled(31, 15)
    python = sys.executable
    os.environ["PYTHONPYCACHEPREFIX"] = str(setting.folder / "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    _takes([python, "-c", "import lockfast, lockfast.aio"])
    _takes([python, "-m", "lockfast", "run", "--url", f"sqlite:///{setting.folder / 'first.db'}", "x", "--", "true"])
    samples = take_turns(
        {
            "bare": lambda: _takes([python, "-c", "pass"]),
            "import": lambda: _takes([python, "-c", "import lockfast"]),
            "import aio": lambda: _takes([python, "-c", "import lockfast.aio"]),
        },
        rounds,
    )
    return [
        _added("import lockfast adds", samples, "import", "bare", at_most=60, modules=_slowest_imports()),
        _added("import lockfast.aio adds", samples, "import aio", "bare"),
        _run_adds(setting.folder / "startup.db", rounds),
    ]


def _run_adds(file: Path, rounds: int) -> Finding:
    child = [which("true") or "true"]
    command = [sys.executable, "-m", "lockfast", "run", "--url", f"sqlite:///{file}", "bench", "--", *child]
    samples = take_turns({"bare": lambda: _takes(child), "run": lambda: _takes(command)}, rounds)
    return _added("lockfast run adds to its child", samples, "run", "bare", at_most=150)


def _takes(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def _added(
    what: str, samples: Samples, of: str, to: str, *, at_most: float | None = None, modules: list[str] | None = None
) -> Finding:
    added = [(ours - bare) * 1e3 for ours, bare in zip(samples[of], samples[to], strict=True)]
    detail = {"median_ms": {name: round(median(values) * 1e3, 2) for name, values in samples.items()}}
    if modules is not None:
        detail["slowest_imports_us"] = modules  # type: ignore[assignment]
    return Finding(what, median(added), "ms", at_most=at_most, spread=quartiles(added), detail=detail)


def _slowest_imports() -> list[str]:
    """The ten modules that take longest by themselves, as `-X importtime` sees them."""
    timings = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import lockfast"], capture_output=True, text=True, check=True
    ).stderr
    rows = re.findall(r"import time:\s+(\d+) \|\s+\d+ \| +(\S+)", timings)
    return [f"{module}: {own}" for own, module in sorted(((int(own), module) for own, module in rows), reverse=True)][
        :10
    ]
