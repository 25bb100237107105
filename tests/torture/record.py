"""What runs of `make torture` found, kept as files, and the table of docs/reliability.md that is made of them.

Decides: which figures of a run are kept: one file for each kind, of its last recorded run. No row is written by hand.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tests.torture.table import verdict
from tests.torture.verdict import Findings

ROOT: Final = Path(__file__).parent.parent.parent
FOLDER: Final = Path(__file__).parent / "results"
PAGE: Final = ROOT / "docs" / "reliability.md"
HEADER: Final = ("store", "run", "holds", "faults", "two holders", "errors, left", "longest wait", "Jain", "verdict")

_MARKED: Final = re.compile(r"(<!-- torture: made by `make torture` -->\n).*?(<!-- end of torture -->)", re.DOTALL)


def record(kind: str, minutes: float, seed: int, findings: Findings) -> None:
    """Keep the run, and write the page anew."""
    FOLDER.mkdir(exist_ok=True)
    content = {
        "kind": kind,
        "minutes": minutes,
        "seed": seed,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": _commit(),
        "python": platform.python_version(),
        "verdict": verdict(findings),
        "holds": findings.holds.total(),
        "faults": dict(sorted(findings.faults.items())),
        "violations": len(findings.violations),
        "documented": findings.documented,
        "unexpected": len(findings.unexpected),
        "left": len(findings.left),
        "losses": findings.losses,
        "longest_wait_s": round(findings.longest_wait, 1),
        "jain": round(findings.fairness, 3),
    }
    (FOLDER / f"{kind}.json").write_text(json.dumps(content, indent=1) + "\n")
    PAGE.write_text(updated(PAGE.read_text(), recorded()))


def recorded() -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]


def updated(page: str, runs: list[dict[str, Any]]) -> str:
    """The page with its table replaced. Raises ValueError if it has no place for it."""
    rows = [HEADER, ("---",) * len(HEADER), *map(_row, runs)]
    text = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    page, found = _MARKED.subn(lambda match: f"{match[1]}\n{text}\n\n{match[2]}", page)
    if found != 1:
        raise ValueError(f"the page has {found} places for the table")
    return page


def _row(run: dict[str, Any]) -> tuple[str, ...]:
    overlaps = str(run["violations"]) + (f", and {run['documented']} as documented" if run["documented"] else "")
    return (
        f"`{run['kind']}`",
        f"{run['minutes']:g} min, seed {run['seed']}, {run['date']} at {run['commit']}, Python {run['python']}",
        f"{run['holds']:,}",
        f"{sum(run['faults'].values())}",
        overlaps,
        f"{run['unexpected']}, {run['left']}",
        f"{run['longest_wait_s']:g} s",
        f"{run['jain']:.3f}",
        str(run["verdict"]),
    )


def _commit() -> str:
    asked = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
