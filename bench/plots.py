"""Two pictures, made from the files of results: how fast the work is done, and how its cost grows.

Decides: what is shown. In the first each piece of work has an axis of its own, on which further to the right is faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.harness import Finding, Work, is_rate
from bench.page import SCALING
from bench.peers import need
from bench.report import figure
from bench.results import Result
from bench.scaling import MEASURES

OURS, PEER, FLOOR = "#3b6fb5", "#c07a2c", "#8a8a8a"
_SIGNS: Final = (("floor: the least that could do it", FLOOR, "|"), ("best peer", PEER, "s"), ("lockfast", OURS, "o"))


def draw(results: Sequence[Result], folder: Path) -> list[str]:
    """The names of the files that were written."""
    need("matplotlib").use("Agg")
    same_bytes = {"svg.hashsalt": "lockfast", "svg.fonttype": "none"}  # for the same picture; and letters stay letters
    need("matplotlib").rcParams.update(same_bytes)
    drawn = []
    for name, figure_of in (("overview.svg", _overview), ("scaling.svg", _scaling)):
        picture = figure_of(results)
        if picture is not None:
            picture.savefig(folder / name, metadata={"Date": None})
            need("matplotlib.pyplot").close(picture)
            drawn.append(name)
    return drawn


def works(results: Sequence[Result]) -> list[Work]:
    """Each once, if there is something to compare it with."""
    found: dict[str, Work] = {}
    for result in results:
        for finding in result.findings:
            if finding.work is not None and (finding.work.floor or finding.work.peer):
                found.setdefault(finding.work.name, finding.work)
    return list(found.values())


def _overview(results: Sequence[Result]) -> Any:
    rows = works(results)
    if not rows:
        return None
    plots = need("matplotlib.pyplot")
    picture, all_axes = plots.subplots(len(rows), figsize=(10, 0.62 * len(rows) + 1.1), squeeze=False)
    picture.subplots_adjust(left=0.47, right=0.97, top=1 - 0.75 / (0.62 * len(rows) + 1.1), bottom=0.02, hspace=0.9)
    for axes, work in zip(all_axes[:, 0], rows, strict=True):
        _draw_work(axes, work)
    handles = [
        plots.Line2D([], [], color=colour, marker=sign, linestyle="", markersize=9, markeredgewidth=2, label=label)
        for label, colour, sign in _SIGNS
    ]
    picture.legend(handles=handles, loc="upper left", ncols=3, frameon=False, fontsize=9)
    picture.text(0.97, 1 - 0.3 / (0.62 * len(rows) + 1.1), "further right is faster →", ha="right", fontsize=9)
    return picture


def _draw_work(axes: Any, work: Work) -> None:
    points = [
        (value, *sign[1:]) for value, sign in zip((work.floor, work.peer, work.ours), _SIGNS, strict=True) if value
    ]
    values = [value for value, _, _ in points]
    low, high = min(values) / 1.6, max(values) * 1.6
    axes.set_xscale("log")
    axes.set_xlim((low, high) if is_rate(work.unit) else (high, low))
    axes.axhline(0, color="#cccccc", linewidth=1, zorder=1)
    for value, colour, sign in points:
        axes.plot([value], [0], sign, color=colour, markersize=9, markeredgewidth=2, zorder=3)
        above = colour == OURS
        axes.annotate(
            figure(value, work.unit), (value, 0), (0, 7 if above else -15), textcoords="offset points", ha="center",
            fontsize=8, color=colour,
        )  # fmt: skip
    name = work.name + (f"\nbest peer: {work.best_peer}" if work.best_peer else "")
    axes.text(-0.02, 0.5, name, transform=axes.transAxes, ha="right", va="center", fontsize=8.5)
    axes.set_ylim(-1, 1)
    axes.set_axis_off()


def _scaling(results: Sequence[Result]) -> Any:
    """A column for what grows, a row for what is measured, a line for each store."""
    series = [f for result in results if result.question == SCALING for f in result.findings if f.detail["points"]]
    series = [finding for finding in series if finding.detail["measure"] in MEASURES]
    if not series:
        return None
    dimensions = list(dict.fromkeys(finding.detail["dimension"] for finding in series))
    plots = need("matplotlib.pyplot")
    picture, all_axes = plots.subplots(
        len(MEASURES), len(dimensions), figsize=(3.1 * len(dimensions), 2.5 * len(MEASURES)), squeeze=False,
        layout="constrained", sharex="col", sharey="row",
    )  # fmt: skip
    for row, measure in enumerate(MEASURES):
        for column, dimension in enumerate(dimensions):
            axes = all_axes[row, column]
            here = [f for f in series if (f.detail["measure"], f.detail["dimension"]) == (measure, dimension)]
            _draw_series(axes, here)
            if row == 0:
                axes.set_title(dimension, fontsize=10)
            if column == 0:
                axes.set_ylabel(f"{measure}, µs", fontsize=9)
    return picture


def _draw_series(axes: Any, series: Sequence[Finding]) -> None:
    if not series:
        axes.set_visible(False)
        return
    for finding in series:
        sizes, seconds = zip(*finding.detail["points"], strict=True)
        label = f"{finding.detail['store']}: n^{finding.value:.2f}"
        axes.plot(sizes, [value * 1e6 for value in seconds], "o-", markersize=3.5, linewidth=1.3, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.grid(color="#e2e2e2", linewidth=0.6)
    axes.legend(fontsize=7, frameon=False)
