"""One stream of what happens to leases. Logs, metrics and traces are fed from it and from nowhere else.

Decides: what an event tells.
Leaves to the listeners: where it goes. When nobody listens, no event is even made.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal, NamedTuple

Kind = Literal[
    "asked", "waited", "granted", "renewed", "renewal_failed", "lost", "released", "release_failed", "broken"
]

logger = logging.getLogger("holdfast")


class Event(NamedTuple):
    kind: Kind
    name: str
    holder: str
    claim_id: str = ""
    fence: int | None = None
    waited: float | None = None  # seconds from asking to being granted or giving up
    held: float | None = None  # seconds from being granted to now
    detail: str = ""  # a reason or an error, for people


Listener = Callable[[Event], None]


class Events:
    """The stream of one `Locks`."""

    __slots__ = ("_listeners",)

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = ()

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with each event, in the thread or loop where it happens; the answer ends that."""
        self._listeners += (listener,)

        def stop() -> None:
            self._listeners = tuple(other for other in self._listeners if other is not listener)

        return stop

    def wanted(self) -> bool:
        """Whether anybody would hear of an everyday event. Ask before making one."""
        return bool(self._listeners) or logger.isEnabledFor(logging.DEBUG)

    def tell(self, event: Event) -> None:
        log(event)
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                logger.exception("a listener failed on %s", event)


_LEVELS = {"lost": logging.WARNING, "release_failed": logging.WARNING}


def log(event: Event) -> None:
    """The first listener: debug for each event, warning where an operator would act."""
    level = _LEVELS.get(event.kind, logging.DEBUG)
    if logger.isEnabledFor(level):
        facts = {key: value for key, value in event._asdict().items() if value not in (None, "")}
        text = " ".join(f"{key}={_plain(value)}" for key, value in facts.items() if key != "kind")
        fields = {f"lock_{key}": value for key, value in facts.items()}
        logger.log(level, "lock %s: %s", event.kind.replace("_", " "), text, extra=fields)


def _plain(value: object) -> str:
    return f"{value:.3f}s" if isinstance(value, float) else repr(value) if isinstance(value, str) else str(value)
