"""The dashboard and the alert rules of deploy/, and the tables of the pages, name what is exported, and nothing else.

Decides: how metrics and labels are found in a query: by their form, which needs no program of Prometheus.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import lockfast
from lockfast.observe import metrics, prometheus
from lockfast.observe.events import Outcome
from lockfast.observe.metrics import LABELS, MAX_PATTERNS, METRICS
from lockfast.observe.otel import _AT_THE_END, _ATTRIBUTES

ROOT = Path(__file__).parent.parent.parent
DASHBOARD = ROOT / "deploy" / "grafana" / "lockfast.json"
RULES = ROOT / "deploy" / "prometheus" / "lockfast.rules.yml"
PAGE = ROOT / "docs" / "metrics.md"

Samples = dict[str, dict[str, set[str]]]  # by name: the labels, and the values of each that were seen


def exported() -> Samples:
    """What the client library of Prometheus shows of one event of each kind."""
    registry = CollectorRegistry()
    with lockfast.connect("memory://for-the-dashboard") as locks:
        prometheus.install(locks, registry)
        locks.events.emit(lockfast.Event("renewed", "a", "me", **_WHERE, slack=0.5))
        with locks.lock("order:1"), locks.election("leader"):
            locks.limiter("api", rate=1).try_acquire()
    found: Samples = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for name, value in sample.labels.items():
                labels.setdefault(name, set()).add(value)
    return found


_WHERE: dict[str, Any] = {"primitive": "lock", "pattern": "a", "backend": "memory", "namespace": "lockfast"}


def flaws(query: str, samples: Samples) -> Iterator[str]:
    """Metrics and labels of a query that are not exported; boundaries and outcomes that do not exist."""
    names = re.findall(r"\blockfast_\w+", query)
    known = [name for name in names if name in samples]
    yield from (f"no metric {name}" for name in names if name not in samples)
    if not names:
        yield "no metric"
    for name, inside in re.findall(r"\b(lockfast_\w+)\{([^}]*)\}", query):
        for label, value in re.findall(r'(\w+)\s*(?:=~|!=|=)\s*"([^"]*)"', inside):
            if label not in samples.get(name, {}):
                yield f"no label {label}"
            elif label == "le" and value not in samples[name]["le"]:
                yield f"no boundary {value}"
            elif label == "outcome" and value not in get_args(Outcome):
                yield f"no outcome {value}"
    for grouped in re.findall(r"\bby \(([^)]*)\)", query):
        for label in re.split(r",\s*", grouped):
            if not all(label in samples[name] for name in known):
                yield f"no label {label}"


def queries_of_the_dashboard() -> list[tuple[str, str]]:
    """Each with the text of its legend, whose `{{label}}` must be there too."""
    dashboard = json.loads(DASHBOARD.read_text())
    return [(target["expr"], target["legendFormat"]) for panel in dashboard["panels"] for target in panel["targets"]]


def rules() -> dict[str, tuple[str, str]]:
    """The query and the annotations of each alert, by its name."""
    found = {}
    for text in RULES.read_text().split("- alert: ")[1:]:
        query = re.search(r"expr: (?:>-\n)?(.*?)\n\s+(?:for|labels):", text, re.DOTALL)
        assert query is not None
        found[text.split()[0]] = (" ".join(query[1].split()), text.partition("annotations:")[2])
    return found


SAMPLES = exported()


@pytest.mark.parametrize(("query", "legend"), queries_of_the_dashboard())
def test_each_query_of_the_dashboard_finds_what_is_exported(query: str, legend: str) -> None:
    assert list(flaws(query, SAMPLES)) == []
    [kept] = {tuple(re.split(r",\s*", grouped)) for grouped in re.findall(r"\bby \(([^)]*)\)", query)}
    assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= set(kept)


@pytest.mark.parametrize("alert", rules())
def test_each_rule_asks_for_what_is_exported_and_names_only_labels_that_it_keeps(alert: str) -> None:
    query, annotations = rules()[alert]
    assert list(flaws(query, SAMPLES)) == []
    kept = [set(re.split(r",\s*", grouped)) for grouped in re.findall(r"\bby \(([^)]*)\)", query)]
    assert kept
    assert set(re.findall(r"\$labels\.(\w+)", annotations)) <= set.intersection(*kept)


def test_candidates_that_wait_for_their_election_are_no_pile_up() -> None:
    waiting, _ = rules()["LockfastWaitersPileUp"]
    assert 'lockfast_acquire_pending{primitive!="election"}' in waiting
    assert "election" in SAMPLES["lockfast_acquire_pending"]["primitive"]


def test_the_dashboard_shows_every_metric() -> None:
    shown = " ".join(query for query, _ in queries_of_the_dashboard())
    assert [metric.name for metric in METRICS if metric.prometheus not in shown] == []


def test_a_counter_is_asked_for_its_growth_and_nothing_else_is() -> None:
    queries = [query for query, _ in queries_of_the_dashboard()] + [query for query, _ in rules().values()]
    for query in queries:
        for function, name in re.findall(r"(\w*)\(?(lockfast_\w+)", query):
            grows = name.endswith(("_total", "_count", "_bucket", "_sum"))
            assert (function in ("rate", "increase")) == grows, query


@pytest.mark.parametrize(
    ("query", "flaw"),
    [
        ("sum(lockfast_gone)", "no metric lockfast_gone"),
        ('rate(lockfast_lease_lost_total{cause="x"}[5m])', "no label cause"),
        ("sum by (end) (lockfast_leases)", "no label end"),
        ('lockfast_renewal_slack_ratio_bucket{le="0.25"}', "no boundary 0.25"),
        ('lockfast_acquire_wait_seconds_count{outcome="failed"}', "no outcome failed"),
        ("sum(up)", "no metric"),
    ],
)
def test_a_query_for_what_is_not_there_is_noticed(query: str, flaw: str) -> None:
    assert list(flaws(query, SAMPLES)) == [flaw]


# The pages


def rows(page: Path, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    part = page.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")][2:]
    return [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines]


def test_the_table_of_the_page_is_that_of_the_code() -> None:
    assert rows(PAGE, "The table") == [
        [
            metric.name,
            f"lockfast.{metric.name}",
            metric.prometheus,
            metric.kind,
            metric.unit,
            ", ".join(metric.more_labels),
            metric.help,
        ]
        for metric in METRICS
    ]
    text = PAGE.read_text()
    assert f"At most {MAX_PATTERNS} pairs" in text
    assert f"the labels {', '.join(f'`{label}`' for label in LABELS[:-1])} and `{LABELS[-1]}`" in text
    assert f"are `{metrics.OTHER}`" in text


def test_the_page_explains_every_alert() -> None:
    named = [cells[0] for cells in rows(PAGE, "A dashboard and alerts")]
    assert named == list(rules())


def test_the_page_of_traces_names_every_attribute() -> None:
    text = (ROOT / "docs" / "tracing.md").read_text()
    [line] = re.findall(r"^- \*\*Attributes\*\*.*?(?=^- )", text, re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`(\w+)`", line))
    assert named == {name.removeprefix("lockfast.") for name in (*_ATTRIBUTES, *_AT_THE_END)}
