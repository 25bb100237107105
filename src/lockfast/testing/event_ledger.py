"""Whether the events of one `Locks` add up.

Decides: which events of a claim, in which order, are one story of it.
Leaves to its user: when everything is over, so that every story must have its end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

from lockfast.observe.events import Event

ENDS_OF_ASKS: Final = {
    "granted": {"granted"},
    "not_granted": {"timeout", "busy", "cancelled", "unavailable", "deadlock", "closed", "error"},
}
ENDS_OF_GRANTS: Final = {"released": {"released", "expired"}, "lost": {"lost", "broken", "expired"}}
_ENDS: Final = ENDS_OF_ASKS | ENDS_OF_GRANTS


class EventLedger:
    """A listener that keeps what begins a claim or a grant, and what ends it."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()  # of what is over, as "not_granted timeout"
        self._stories: dict[str, list[Event]] = defaultdict(list)  # by claim id

    def __call__(self, event: Event) -> None:
        if event.kind == "asked":
            self._stories[event.claim_id].append(event)
        elif event.kind in _ENDS:
            self.outcomes[f"{event.kind} {event.outcome}"] += 1
            self._stories[event.claim_id].append(event)

    @property
    def asked(self) -> int:
        """How many claims there were."""
        return len(self._stories)

    @property
    def open(self) -> list[str]:
        """Ids of claims that wait, or whose lease is held."""
        return [id for id, story in list(self._stories.items()) if story[-1].kind in ("asked", "granted")]

    def wrong(self) -> Iterator[str]:
        """What does not add up, once everything is over."""
        for id, story in self._stories.items():
            kinds = [event.kind for event in story]
            if kinds not in (["asked", "not_granted"], ["asked", "granted", "released"], ["asked", "granted", "lost"]):
                yield f"claim {id} of {story[0].name!r} is reported as {kinds}"
            for event in story:
                if event.kind != "asked" and event.outcome not in _ENDS[event.kind]:
                    yield f"{event} has an outcome of another kind"
                if event.kind in ENDS_OF_GRANTS and (event.held_for is None or not event.reason):
                    yield f"{event} does not say how long it was held, or why it ended"
                if not (event.primitive and event.mode and event.pattern and event.backend):
                    yield f"{event} does not say what it is about"
