"""Findings in the terminal: one line each, with its bound, and at the end what was missed and by how much.

Decides: how a figure is written. Leaves to `harness`: whether its bound was met. Leaves to `page`: the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bench.harness import Finding

Answers = Mapping[str, list[Finding]]  # by the question's name


def table(answers: Answers) -> str:
    """One line a finding, with its bound and whether it was met."""
    rows = [("", "measured", "middle half", "bound", "")]
    for findings in answers.values():
        rows += [(f.what, figure(f.value, f.unit), _spread(f), bound(f), _verdict(f)) for f in findings]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def misses(answers: Answers) -> str:
    """Each bound that was not met, by how much, and how many there are in all. Empty without any bound."""
    bounded = [f for findings in answers.values() for f in findings if f.within_bound is not None]
    missed = [f for f in bounded if f.miss]
    kept = f"{len(bounded) - len(missed)} of {len(bounded)} bounds met"
    return "\n".join([*map(_missed, missed), kept]) if bounded else ""


def _verdict(finding: Finding) -> str:
    return finding.miss or ("" if finding.within_bound is None else "met")


def _missed(finding: Finding) -> str:
    return f"{finding.miss}: {finding.what}, {figure(finding.value, finding.unit)}, bound {bound(finding)}"


def figure(value: float, unit: str) -> str:
    digits = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return f"{digits}{unit}" if unit in ("×", "", "/s") else f"{digits} {unit}"


def _spread(finding: Finding) -> str:
    return "" if finding.spread is None else " … ".join(figure(value, "") for value in finding.spread)


def bound(finding: Finding) -> str:
    sides: Iterable[tuple[str, float | None]] = (("≤", finding.at_most), ("≥", finding.at_least))
    return "".join(f"{sign} {figure(value, finding.unit)}" for sign, value in sides if value is not None)
