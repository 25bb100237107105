"""The findings of a run as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import median

from tests.torture.verdict import Findings

SHOWN = 20  # lines of each kind of finding


def table(kind: str, minutes: float, seed: int, findings: Findings) -> str:
    """All of them."""
    return "\n".join(
        [f"## {kind}, {minutes:g} minutes, seed {seed}: {verdict(findings)}", "", *_rows(findings), *_texts(findings)]
    )


def verdict(findings: Findings) -> str:
    if findings.violations or findings.unexpected or findings.left:
        return "RED"
    return "VACUOUS" if findings.vacuous else "green"


def _rows(findings: Findings) -> Iterator[str]:
    yield "| what | figure |"
    yield "|---|---|"
    yield f"| holds | {findings.holds.total()}: {_listed(findings.holds)} |"
    yield f"| faults | {findings.faults.total()}: {_listed(findings.faults)} |"
    yield f"| violations | {len(findings.violations)} |"
    yield f"| overlaps and fences as documented | {findings.documented} |"
    yield f"| unexpected errors | {len(findings.unexpected)} |"
    yield f"| left at the end | {len(findings.left)} |"
    yield f"| refused | {_listed(findings.refused)} |"
    yield f"| leases lost | {findings.losses} |"
    yield f"| longest wait | {findings.longest_wait:.2f} s; in a calm {findings.longest_calm_wait:.2f} s |"
    yield f"| Jain index of the workers | {findings.fairness:.3f} |"
    yield f"| fences ahead of the clock | at most {max(0.0, findings.ahead):.3f} s |"
    yield f"| connections at the servers, in calms | {_course(findings.connections)} |"
    yield f"| threads of a worker | at first {findings.threads[0]}, at most {findings.threads[1]} |"
    yield f"| open files of a worker | at first {findings.files[0]}, at most {findings.files[1]} |"


def _texts(findings: Findings) -> Iterator[str]:
    for title, lines in (
        ("Violations", findings.violations),
        ("Unexpected", findings.unexpected),
        ("Left at the end", findings.left),
        ("Too little for a verdict", findings.vacuous),
    ):
        if lines:
            yield f"\n### {title}"
            yield from (f"- {line}" for line in lines[:SHOWN])
            if len(lines) > SHOWN:
                yield f"- … and {len(lines) - SHOWN} more"


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in sorted(counts.items())) or "none"


def _course(numbers: list[int]) -> str:
    """How it went: the middle of each quarter of the run, and the last."""
    if len(numbers) < 4:
        return ", ".join(map(str, numbers))
    size = len(numbers) // 4
    quarters = [f"{median(numbers[start : start + size]):g}" for start in range(0, 4 * size, size)]
    return f"{', '.join(quarters)} (middle of each quarter), at most {max(numbers)}, at last {numbers[-1]}"
