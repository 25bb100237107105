"""How does the cost of a step grow with what else is in the store: waiters, names, leases, permits of one semaphore?

Each series is one of these on one store, with a new server and a process of its own, which sends a point for each size
and is ended when its time is over, so the whole question takes a bounded time and a series that grows too fast just
ends early. The exponent is fitted to the upper two decades of sizes: 0 is a constant cost, 1 is one in proportion.
`scaling_steps` has what is measured at each size, `scaling_stores` the stores.
"""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from bench.harness import Finding, Setting
from bench.scaling_steps import Point, measure
from bench.scaling_stores import STORES, Store

# A cost that grows like log n from 100 to 10,000 has an exponent of 0.15 there.
MAX_EXPONENT: Final = 0.2
MEASURES: Final = {"acquire": "acquire_s", "hand-over": "hand_over_s", "list": "list_s"}  # the bounded ones


class Dimension(NamedTuple):
    name: str
    sizes: Sequence[int]
    quick_sizes: Sequence[int]
    seconds: float  # of one series, at most
    quick_seconds: float


DIMENSIONS: Final = {  # with all stores at most ten minutes, and quickly forty seconds
    "waiters": Dimension("waiters of one name", (1, 10, 100, 1000, 10_000), (1, 10, 100, 1000), 30, 4),
    "names": Dimension("names", (1, 100, 1000, 10_000, 100_000, 300_000, 1_000_000), (1, 100, 1000, 5000), 120, 4),
    "leases": Dimension("leases held", (10, 100, 1000, 10_000, 100_000), (10, 100, 1000), 30, 3),
    "permits": Dimension("permits of one semaphore", (1, 10, 100, 1000, 10_000), (1, 10, 100), 20, 3),
}


def run(setting: Setting) -> list[Finding]:
    """Findings for `python -m bench --only scaling`."""
    found = []
    for key, dimension in DIMENSIONS.items():
        for store in STORES:
            if not setting.asks_for(f"{dimension.name}, {store.name}"):
                continue
            points = _series(setting, store, key, dimension)
            found += findings(
                dimension.name, store.name, points, complete=len(points) == len(_sizes(setting, dimension))
            )
    return found


def _sizes(setting: Setting, dimension: Dimension) -> Sequence[int]:
    return dimension.quick_sizes if setting.quick else dimension.sizes


def _series(setting: Setting, store: Store, key: str, dimension: Dimension) -> list[Point]:
    """Those points that were measured in time."""
    context = multiprocessing.get_context("spawn")
    seconds = dimension.quick_seconds if setting.quick else dimension.seconds
    with store.opened(setting.folder / key) as opened:
        pipe, there = context.Pipe(duplex=False)
        probes_s = 0.1 if setting.quick else 0.5
        worker = context.Process(target=measure, args=(opened, key, _sizes(setting, dimension), probes_s, there))
        worker.start()
        there.close()
        points: list[Point] = []
        until = time.monotonic() + seconds
        try:
            while pipe.poll(max(0.0, until - time.monotonic())):
                points.append(pipe.recv())
        except EOFError:
            worker.join(10)
            if worker.exitcode:
                raise RuntimeError(f"scaling of {dimension.name} on {store.name} failed") from None
        finally:
            worker.kill()
            worker.join()
    return points


def findings(dimension: str, store: str, points: Sequence[Point], *, complete: bool) -> list[Finding]:
    """The exponent of each measure, with the points themselves for the plot and the table of the page."""
    found = []
    for name, field in MEASURES.items():
        pairs = [(point.n, seconds) for point in points if (seconds := getattr(point, field)) is not None]
        if pairs or name != "list":  # which only some series have
            what = f"{dimension}, {store}: exponent of {name}"
            detail = {"dimension": dimension, "store": store, "measure": name, "complete": complete, "points": pairs}
            found.append(Finding(what, exponent(pairs), "", MAX_EXPONENT, detail=detail))
    shown: Mapping[str, list[tuple[int, float]]] = {
        "bytes each": [(point.n, point.bytes_each) for point in points],
        "server CPU of an acquire": [(point.n, cpu) for point in points if (cpu := point.cpu_s) is not None],
        "first list": [(point.n, first) for point in points if (first := point.first_list_s) is not None],
        "adding one more": [(point.n, filled) for point in points if (filled := point.fill_s) is not None],
    }
    for name, pairs in shown.items():
        if pairs:
            detail = {"dimension": dimension, "store": store, "measure": name, "complete": complete, "points": pairs}
            unit, value = ("bytes", pairs[-1][1]) if name == "bytes each" else ("µs", pairs[-1][1] * 1e6)
            found.append(Finding(f"{dimension}, {store}: {name} at {pairs[-1][0]:,}", value, unit, detail=detail))
    return found


def exponent(pairs: Sequence[tuple[int, float]]) -> float:
    """The slope of a straight line through the upper two decades on logarithmic axes; 0 for a single point."""
    upper = [(math.log(n), math.log(value)) for n, value in pairs if n * 100 >= pairs[-1][0] and value > 0]
    if len(upper) < 2:
        return 0.0
    mean_x, mean_y = (sum(each) / len(upper) for each in zip(*upper, strict=True))
    rise: float = sum((x - mean_x) * (y - mean_y) for x, y in upper)
    run: float = sum((x - mean_x) ** 2 for x, _ in upper)
    return rise / run
