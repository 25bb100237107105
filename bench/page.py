"""The tables of docs/benchmarks.md, made from the files of results between markers, and by hand nowhere.

Decides: what a row is: one piece of work, with the floor, the best peer, ours, and each bound that is stated for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from bench.harness import Finding, is_rate
from bench.report import bound, figure
from bench.results import Result

PAGE: Final = Path(__file__).parent.parent / "docs" / "benchmarks.md"
SCALING: Final = "scaling"
_HEADER: Final = ("work", "floor", "best peer", "ours", "ratio", "bar", "met")
_SCALING_HEADER: Final = (
    *("store", "what grows", "up to", "acquire", "exponent", "hand-over", "exponent"),
    *("`list()` of one", "exponent", "server CPU of an acquire", "bytes each", "met"),
)
_NONE: Final = "–"


def updated(page: str, results: Sequence[Result]) -> str:
    """The page with its tables replaced. Raises ValueError if a marker is missing."""
    texts = {"results": _results(results), SCALING: _scaling(results)}
    for name, text in texts.items():
        pattern = re.compile(rf"(<!-- {name}: made by `make bench` -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        page, found = pattern.subn(lambda match, text=text: f"{match[1]}\n{text}\n\n{match[2]}", page)  # type: ignore[misc]
        if found != 1:
            raise ValueError(f"the page has {found} places for the table {name!r}")
    return page


def _results(results: Sequence[Result]) -> str:
    answered = [result for result in results if result.question != SCALING]
    rows = [row for result in answered for row in _rows(result.findings)]
    return f"{_runs(answered)}\n\n{_markdown(_HEADER, rows)}"


def _runs(results: Sequence[Result]) -> str:
    """Which runs the figures are from: one sentence if all are from one."""
    runs: dict[str, list[str]] = {}
    for result in results:
        runs.setdefault(result.run_described, []).append(f"`{result.question}`")
    if len(runs) == 1:
        return f"From the {next(iter(runs))}."
    return "\n".join(
        ["From several runs:", "", *[f"- {', '.join(questions)}: {run}" for run, questions in runs.items()]]
    )


def _rows(findings: Sequence[Finding]) -> Iterator[tuple[str, ...]]:
    """Findings about the same work, one after the other, share a row."""
    bounded = [finding for finding in findings if finding.within_bound is not None]
    for _, group in groupby(bounded, lambda finding: finding.work or finding.what):
        yield _row(list(group))


def _row(findings: list[Finding]) -> tuple[str, ...]:
    work = findings[0].work
    if work is None:
        [finding] = findings
        return (
            finding.what,
            _NONE,
            _NONE,
            figure(finding.value, finding.unit),
            _NONE,
            bound(finding),
            _verdicts(findings),
        )
    peer = _NONE if work.peer is None else f"{figure(work.peer, work.unit)} ({work.best_peer})"
    floor = _NONE if work.floor is None else figure(work.floor, work.unit)
    bars = "<br>".join(_against(bound(finding), finding) for finding in findings)
    ratios = "<br>".join(_ratio(finding) for finding in findings)
    return work.name, floor, peer, figure(work.ours, work.unit), ratios, bars, _verdicts(findings)


def _against(text: str, finding: Finding) -> str:
    if finding.unit != "×":
        return text
    return f"{text} {'as fast as ' if finding.at_least is not None else ''}{finding.against}"


def _ratio(finding: Finding) -> str:
    """Of a bound that is no ratio: to the best peer or the floor, if there is one."""
    work = finding.work
    assert work is not None
    if finding.unit == "×":
        return _against(figure(finding.value, finding.unit), finding)
    other = work.peer if work.peer is not None else work.floor
    if not other:
        return _NONE
    name = work.best_peer if work.peer is not None else "floor"
    fast = "as fast as " if is_rate(work.unit) else ""
    return f"{figure(work.ours / other, '×')} {fast}{name}"


def _verdicts(findings: Iterable[Finding]) -> str:
    return "<br>".join(f"**no**, {finding.miss}" if finding.miss else "yes" for finding in findings)


def _scaling(results: Sequence[Result]) -> str:
    asked = [result for result in results if result.question == SCALING]
    if not asked:
        return "Not measured yet."
    series: dict[tuple[str, str], dict[str, Finding]] = {}
    for finding in asked[0].findings:
        key = (finding.detail["store"], finding.detail["dimension"])
        series.setdefault(key, {})[finding.detail["measure"]] = finding
    rows = [_scaling_row(*key, measures) for key, measures in series.items()]
    return f"{_runs(asked)}\n\n{_markdown(_SCALING_HEADER, rows)}"


def _scaling_row(store: str, dimension: str, measures: dict[str, Finding]) -> tuple[str, ...]:
    def last(measure: str) -> str:
        points = measures[measure].detail["points"] if measure in measures else []
        return figure(points[-1][1] * 1e6, "µs") if points else _NONE

    def slope(measure: str) -> str:
        finding = measures.get(measure)
        return (
            _NONE if finding is None else f"{'**' * bool(finding.miss)}{finding.value:.2f}{'**' * bool(finding.miss)}"
        )

    acquire = measures["acquire"]
    points, complete = acquire.detail["points"], acquire.detail["complete"]
    reached = f"{points[-1][0]:,}{'' if complete else ', then its time was over'}" if points else "nothing in its time"
    size = measures.get("bytes each")
    missed = [measure for measure, finding in measures.items() if finding.miss]
    return (
        *(store, dimension, reached),
        *[cell for measure in ("acquire", "hand-over", "list") for cell in (last(measure), slope(measure))],
        last("server CPU of an acquire"),
        _NONE if size is None else figure(size.value, ""),
        f"**no**: {', '.join(missed)}" if missed else "yes",
    )


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *rows])
