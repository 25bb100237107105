"""The log: the first listener of every stream of events.

Decides: which event is logged at which level, and in which words.
Leaves to `logging`: where records go.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from lockfast._time import format_duration

if TYPE_CHECKING:
    from lockfast.observe.events import Event

DEBUG: Final = logging.DEBUG
INFO: Final = logging.INFO
_LEVELS: Final = {
    "lost": logging.WARNING,
    "release_failed": logging.WARNING,
    "unreachable": logging.WARNING,
    "reachable": INFO,
    "waiting": INFO,
    "renewal_failed": INFO,
    "broken": INFO,
}
_NOT_KNOWN: Final = (None, "")

logger = logging.getLogger("lockfast")


def level_of(event: Event) -> int:
    """Warning for what may have done harm, info for what an operator would act on, debug for the rest."""
    if event.outcome == "timeout":
        return INFO
    return _LEVELS.get(event.kind, DEBUG)


def log(event: Event) -> None:
    """One record, with what is known as its fields: each has the name of the event's with `lock_` before it."""
    level = level_of(event)
    if logger.isEnabledFor(level):
        facts = {key: value for key, value in event._asdict().items() if value not in _NOT_KNOWN}
        fields = {f"lock_{key}": value for key, value in facts.items()}
        logger.log(level, "%s", in_words(event) or _all_of(facts), extra=fields)


def in_words(event: Event) -> str:
    """What an operator reads; empty for an everyday event, which is logged with all that is known."""
    if not event.name:
        return event.detail
    name, fence = repr(event.name), f"with fence {event.fence}"
    waited, held_for = (format_duration(seconds or 0.0) for seconds in (event.waited, event.held_for))
    before = f", {event.position} waiting before it" if event.position else ""
    if event.kind == "waiting":
        return f"lock still waiting: {name} for {waited}, {event.detail}{before}"
    if event.outcome == "timeout":
        return f"lock timed out: {name} after {waited}, {event.detail}{before}"
    if event.kind == "renewal_failed":
        return f"lock renewal failed: {name}, held for {format_duration(event.remaining or 0.0)} more: {event.detail}"
    if event.kind == "broken":
        return f"lock broken: {name}, held by {event.holder!r} {fence}, was {event.detail}"
    if event.kind == "lost":
        return f"lock lost: {name} {fence}, after {held_for}: {event.detail}"
    if event.kind == "release_failed":
        return f"lock release failed: {name} {fence}, after {held_for}: {event.detail}"
    return ""


def _all_of(facts: dict[str, object]) -> str:
    text = " ".join(f"{key}={_plain(value)}" for key, value in facts.items() if key != "kind")
    return f"lock {str(facts['kind']).replace('_', ' ')}: {text}"


def _plain(value: object) -> str:
    return f"{value:.3f}s" if isinstance(value, float) else repr(value) if isinstance(value, str) else str(value)
