"""What is asked of PostgreSQL, and how many requests of one process become one statement.

Decides: which requests may travel together, and what becomes of each when that goes wrong.
Leaves to the drivers of either world: when there is something to take along, and the connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from holdfast.drivers.postgres_wire import Refused, Statement

MOST: Final = 500  # requests in one statement: the server does nothing else on that connection meanwhile
LANES: Final = 2  # connections for requests: while the server works on one batch, the next is gathered
SPLIT: Final = 32  # requests that are worth to be divided between them
SPARE: Final = 4  # more of them, for when all of those have been at one statement for
STUCK: Final = 0.05  # so many seconds: somebody's transaction is at one of their names
TRIES: Final = 20  # for what the server has rolled back because of others


class Job:
    """One request. `columns` are what differs between requests of a kind, `tail` is what does not."""

    __slots__ = ("alone", "columns", "kind", "statement", "tail")

    def __init__(
        self, statement: Statement, columns: Sequence[str | None], tail: Sequence[str | None] = (), kind: str = ""
    ) -> None:
        self.statement = statement
        self.columns = columns
        self.tail = tail
        self.kind = kind  # of requests that can travel together; empty for one that cannot
        self.alone = not kind


class Many(NamedTuple):
    """How requests become one statement: for each kind that many arrays, and then what the tails end with."""

    statement: Statement
    kinds: tuple[tuple[str, int], ...]
    tail: int


class Again(NamedTuple):
    """In place of an answer: ask for this one by itself."""


AGAIN: Final = Again()


def as_statement(jobs: Sequence[Job], many: Many) -> tuple[Statement, list[bytes | None]]:
    """What to send for these."""
    if len(jobs) == 1:
        job = jobs[0]
        return job.statement, [None if one is None else one.encode() for one in (*job.columns, *job.tail)]
    params: list[bytes | None] = []
    for kind, columns in many.kinds:
        chosen = [job.columns for job in jobs if job.kind == kind]
        params += [array(column).encode() for column in zip(*chosen, strict=True)] if chosen else [b"{}"] * columns
    params += [None if one is None else one.encode() for one in jobs[0].tail[-many.tail :]]
    return many.statement, params


def as_answers(jobs: Sequence[Job], answer: Any, many: Many) -> list[Any]:
    """What was said to each, in their order."""
    if len(jobs) == 1:
        return [answer]
    rows = {kind: iter(answers) for (kind, _), answers in zip(many.kinds, answer, strict=True)}
    said = (next(rows[job.kind]) for job in jobs)
    return [AGAIN if one is None else one for one in said]


def as_failures(jobs: Sequence[Job], error: Exception) -> list[Any]:
    """What becomes of each. If the server refused, and nothing happened, that may be the fault of one of them."""
    return [AGAIN if len(jobs) > 1 and isinstance(error, Refused) else error] * len(jobs)


def array(values: Sequence[str | None]) -> str:
    """As PostgreSQL reads one. Mostly all are there and none needs care, or none is there."""
    if None not in values:
        text = '","'.join(values)  # type: ignore[arg-type]
        if "\\" not in text and text.count('"') == 2 * (len(values) - 1):
            return f'{{"{text}"}}' if values else "{}"
    elif values.count(None) == len(values):
        return f"{{{'NULL,' * (len(values) - 1)}NULL}}"
    return f"{{{','.join(map(_element, values))}}}"


def _element(value: str | None) -> str:
    if value is None:
        return "NULL"
    if "\\" in value or '"' in value:
        value = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{value}"'
