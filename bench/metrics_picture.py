"""docs/pictures/metrics.svg, from a run of its own: `python -m bench.metrics_picture`.

Three processes take locks on one Valkey for half a minute and count in Prometheus' multi-process mode. First the
server's answers are late, then it cannot be reached, and later one process is stopped for longer than its leases live.
What Prometheus would have seen is read four times a second and drawn.

Decides: the faults, and what is shown.
Leaves to `deploy/grafana`: the same as a dashboard.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from tests.servers.proxy import Proxy
from tests.servers.server import Server

from bench.peers import need

PICTURE: Final = Path(__file__).parent.parent / "docs" / "pictures" / "metrics.svg"
WORKERS: Final = 3
RUN_S: Final = 38.0
SCRAPE_EVERY_S: Final = 0.25
RATE_OVER_S: Final = 2.0
FAULTS: Final = (
    ("server slow", 5.0, 10.0),
    ("server unreachable", 15.0, 18.0),
    ("one process stopped", 26.0, 30.0),
)
SLOW_S: Final = 0.3
TTL_S: Final = 2.5
COLOURS: Final = ("#3b6fb5", "#c07a2c", "#5a9367", "#8a8a8a")
GREY: Final = "#555555"

Scrape = dict[tuple[str, str, str], float]  # by sample, by one label and by boundary: the sum over all others


# One worker


def work(url: str) -> None:
    import lockfast

    locks = lockfast.connect(url, observe=["prometheus"])

    def orders() -> None:
        while True:
            with_lock(f"order:{random.randrange(4)}", random.uniform(0.01, 0.05), ttl=10)

    def reports(number: int) -> None:
        while True:
            with_lock(f"report:{os.getpid()}:{number}", random.uniform(2.0, 4.0), ttl=TTL_S)

    def with_lock(name: str, hold: float, ttl: float) -> None:
        try:
            with locks.lock(name, ttl=ttl, wait=1.5):
                time.sleep(hold)
        except lockfast.LockError:
            time.sleep(0.1)

    threads = [threading.Thread(target=orders, daemon=True) for _ in range(3)]
    threads += [threading.Thread(target=reports, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    os._exit(0)


# The run


def run(folder: Path) -> list[tuple[float, Scrape]]:
    """What was scraped, and when."""
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    with Server() as server, Proxy(server) as proxy:
        words = [sys.executable, "-m", "bench.metrics_picture", proxy.url]
        processes = [subprocess.Popen(words, stdin=subprocess.PIPE) for _ in range(WORKERS)]
        try:
            return list(_scrapes(folder, proxy, processes[0]))
        finally:
            proxy.heal()
            for process in processes:
                process.send_signal(signal.SIGCONT)
                process.communicate()


def _scrapes(folder: Path, proxy: Proxy, victim: subprocess.Popen[bytes]) -> Iterator[tuple[float, Scrape]]:
    (_, slow_at, quick_at), (_, cut_at, healed_at), (_, stopped_at, continued_at) = FAULTS
    plan: list[tuple[float, Callable[[], object]]] = [
        (slow_at, lambda: setattr(proxy, "delay", SLOW_S)),
        (quick_at, proxy.heal),
        (cut_at, proxy.black_hole),
        (healed_at, proxy.heal),
        (stopped_at, lambda: victim.send_signal(signal.SIGSTOP)),
        (continued_at, lambda: victim.send_signal(signal.SIGCONT)),
    ]
    time.sleep(2.0)  # until all have begun
    started = time.monotonic()
    while (now := time.monotonic() - started) < RUN_S:
        while plan and now >= plan[0][0]:
            plan.pop(0)[1]()
        yield now, scrape(folder)
        time.sleep(SCRAPE_EVERY_S)


def scrape(folder: Path) -> Scrape:
    registry = need("prometheus_client").CollectorRegistry()
    need("prometheus_client.multiprocess").MultiProcessCollector(registry, path=str(folder))
    found: Scrape = {}
    for metric in registry.collect():
        for one in metric.samples:
            label = one.labels.get("outcome") or one.labels.get("reason") or one.labels["pattern"]
            key = (one.name, label, one.labels.get("le", ""))
            found[key] = found.get(key, 0.0) + one.value
    return found


# The picture


def growth(scrapes: list[tuple[float, Scrape]], key: tuple[str, str, str]) -> list[float]:
    """In the last `RATE_OVER_S` seconds, at each scrape."""
    back = round(RATE_OVER_S / SCRAPE_EVERY_S)
    values = [scrape.get(key, 0.0) for _, scrape in scrapes]
    return [value - values[max(0, at - back)] for at, value in enumerate(values)]


def quantiles(scrapes: list[tuple[float, Scrape]], metric: str, label: str, share: float) -> list[float]:
    """As `histogram_quantile` estimates it; not a number where nothing was observed."""
    keys = {key for _, scrape in scrapes for key in scrape if key[:2] == (f"{metric}_bucket", label)}
    boundaries = sorted((float(key[2]), growth(scrapes, key)) for key in keys)
    return [_quantile([(le, grown[at]) for le, grown in boundaries], share) for at in range(len(scrapes))]


def _quantile(buckets: list[tuple[float, float]], share: float) -> float:
    wanted = share * buckets[-1][1] if buckets else 0.0
    if not wanted:
        return float("nan")
    for (below, fewer), (boundary, count) in pairwise([(0.0, 0.0), *buckets]):
        if count >= wanted:
            return (
                below if boundary == float("inf") else below + (boundary - below) * (wanted - fewer) / (count - fewer)
            )
    return float("nan")


def draw(scrapes: list[tuple[float, Scrape]]) -> None:
    need("matplotlib").use("Agg")
    need("matplotlib").rcParams.update({"svg.hashsalt": "lockfast", "svg.fonttype": "none"})
    plots = need("matplotlib.pyplot")
    picture, axes = plots.subplots(4, 1, figsize=(9, 8), sharex=True)
    picture.subplots_adjust(left=0.09, right=0.97, top=0.95, bottom=0.06, hspace=0.38)
    times = [now for now, _ in scrapes]

    def show(row: int, label: str, values: list[float], colour: int) -> None:
        axes[row].plot(times, values, color=COLOURS[colour], linewidth=1.5, label=label)

    wait = "lockfast_acquire_wait_seconds"
    _name(axes[0], "Acquires per second, by outcome")
    for colour, outcome in enumerate(("granted", "timeout", "unavailable")):
        show(0, outcome, [grown / RATE_OVER_S for grown in growth(scrapes, (f"{wait}_count", outcome, ""))], colour)
    _name(axes[1], "Leases held, acquires pending")
    for colour, (name, metric, pattern) in enumerate(
        (
            ("report:{n}:{n}, held", "lockfast_leases", "report:{n}:{n}"),
            ("order:{n}, held", "lockfast_leases", "order:{n}"),
            ("order:{n}, pending", "lockfast_acquire_pending", "order:{n}"),
        )
    ):
        show(1, name, [scrape.get((metric, pattern, ""), 0.0) for _, scrape in scrapes], colour)
    _name(axes[2], f"Slack of renewals (ttl {TTL_S:g} s): the share that was left")
    for colour, (name, share) in enumerate((("median", 0.5), ("worst tenth", 0.1))):
        show(2, name, quantiles(scrapes, "lockfast_renewal_slack_ratio", "report:{n}:{n}", share), colour)
    axes[2].axhline(0.3, color=GREY, linewidth=0.8, linestyle=":")
    axes[2].set_ylim(0, 1)
    _name(axes[3], "Leases lost since the start, by reason")
    lost = sorted({key[1] for _, scrape in scrapes for key in scrape if key[0] == "lockfast_lease_lost_total"})
    for colour, reason in enumerate(
        reason for reason in lost if scrapes[-1][1]["lockfast_lease_lost_total", reason, ""]
    ):
        show(3, reason, [scrape.get(("lockfast_lease_lost_total", reason, ""), 0.0) for _, scrape in scrapes], colour)
    axes[3].set_xlabel("seconds", color=GREY)
    for row in axes:
        row.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.0, fontsize=8, frameon=False, ncols=3)
        row.set_xlim(0, RUN_S)
        for what, begins, ends in FAULTS:
            row.axvspan(begins, ends, color="#d9534f", alpha=0.12, linewidth=0)
            if row is axes[2]:
                where = {"transform": row.get_xaxis_transform(), "va": "top", "ha": "center"}
                row.text((begins + ends) / 2, 0.99, what, fontsize=8, color="#b03a36", **where)
    picture.savefig(PICTURE, metadata={"Date": None})


def _name(axes: Any, title: str) -> None:
    axes.set_title(title, fontsize=10, loc="left", color="#222222", pad=12)
    axes.tick_params(labelsize=8, colors=GREY)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


if __name__ == "__main__":
    if sys.argv[1:]:
        work(sys.argv[1])
    with tempfile.TemporaryDirectory() as name:
        draw(run(Path(name)))
