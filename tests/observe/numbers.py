"""Events that tests make, and the values that Prometheus' client has."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry

from lockfast.observe.events import Event


def event(kind: Any, claim_id: str = "c1", **facts: Any) -> Event:
    """Of a lock "order:42", if nothing else is said."""
    where = {"primitive": "lock", "pattern": "order:{n}", "backend": "memory", "namespace": "ns"}
    return Event(kind, "order:42", "me", claim_id, **{**where, **facts})


def granted(claim_id: str = "c1", **facts: Any) -> Event:
    return event("granted", claim_id, **{"outcome": "granted", "waited": 0.5, **facts})


def released(claim_id: str = "c1", **facts: Any) -> Event:
    return event("released", claim_id, **{"outcome": "released", "reason": "by_holder", "held_for": 2.0, **facts})


def lost(claim_id: str = "c1", **facts: Any) -> Event:
    return event("lost", claim_id, **{"outcome": "lost", "reason": "gone", "held_for": 3.0, **facts})


def value(registry: CollectorRegistry, sample: str, **labels: str) -> float:
    """Of all samples of that name with these labels together."""
    found = [one for metric in registry.collect() for one in metric.samples if one.name == sample]
    return sum(one.value for one in found if labels.items() <= one.labels.items())
