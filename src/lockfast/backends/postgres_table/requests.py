"""What is sent to PostgreSQL for each verb, and what its replies mean.

Decides: the statement behind each verb, how a key is stored, and that metadata survives a jsonb column.
Leaves to `backend`: when to send it.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from functools import lru_cache
from math import inf
from typing import Any, Final

from lockfast._model import MAX_POLL_S, Busy, Change, Grant, LockInfo, Observation, Terms, poll_after
from lockfast._records import NAMESPACE_SEPARATOR, StoredHold, cut_id, lock_info
from lockfast.backends.postgres_table.io.batching import Many, TableRequest
from lockfast.backends.postgres_table.io.session import PreparedStatement
from lockfast.backends.postgres_table.schema import WRAPPED

PATIENCE_MS: Final = 250  # that a step may wait for a transaction of another client that has locked the name
TRY_PATIENCE_MS: Final = 50  # for a single try: the usual step of another client takes less
OPERATOR_PATIENCE_MS: Final = 1000
POLL_WITHOUT_WAKEUPS_S: Final = 0.1  # after which the first in the queue polls, where no wake-up arrives
_BEGINS: Final = f'{{"{WRAPPED}": "'
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_EXPONENT: Final = re.compile(r"\de[+-]?\d", re.IGNORECASE)  # of a number, which jsonb would write out

# The types of each function's parameters: of two functions of one name the server takes the one with exactly these.
_PARAMETERS: Final = {
    "acquire": "text, text, text, text, float8, text, int, jsonb, text, int, float8",
    "release": "text, text, text, float8, text, text, int, float8",
    "abandon": "text, text, text, bool, int, float8",
    "renew": "text[], text[], text[], bigint[], float8[], int, float8",
    "observe": "text, text, text, bigint, text, int, float8",
    "inspect": "text, text, float8",
    "holders": "text, text, float8",
    "list": "text, text, float8",
    "break": "text, text, int, float8",
    "throttle": "text, numeric, numeric, numeric, numeric, numeric",
    "unthrottle": "text, numeric, numeric",
    "read": "text",
    "write": "text, text, text, bigint, bigint",
    "many": "text[], text[], text[], float8[], text[], text[], "
    "text[], text[], text[], text[], float8[], text[], int[], jsonb[], text[], int, float8",
}
_JOINED: Final = (("release", 6), ("acquire", 9))  # what `many` takes, and how many columns of each


class Catalogue:
    """The statements, for one schema."""

    def __init__(self, schema: str) -> None:
        self._statements = {name: _statement(schema, name, types) for name, types in _PARAMETERS.items()}
        self.many = Many(self._statements["many"], _JOINED)

    def request(self, name: str, *params: str | None) -> TableRequest:
        request = TableRequest(self._statements[name], params)
        request.is_cleanup = name == "abandon"
        return request

    def joined(self, name: str, columns: tuple[str | None, ...], patience: str, now: str | None) -> TableRequest:
        """One that can be batched with others."""
        return TableRequest(self._statements[name], columns, (patience, now), name)


def _statement(schema: str, name: str, types: str) -> PreparedStatement:
    params = ", ".join(f"${position}::{type}" for position, type in enumerate(types.split(", "), 1))
    return PreparedStatement(f"lockfast_{name}".encode(), f'SELECT "{schema}".lockfast_{name}({params})'.encode())


def patience(within: float, most: int | None = None) -> str:
    """The server answers before the caller gives up, even if another client has locked the name."""
    return str(min(PATIENCE_MS if most is None else most, max(1, int(within * 500))))


def split(key: str) -> tuple[str, str]:
    """The namespace, and the plain name, which has a column of its own."""
    namespace, _, name = key.rpartition(NAMESPACE_SEPARATOR)
    return namespace, name


def join(namespace: str, name: str) -> str:
    return f"{namespace}{NAMESPACE_SEPARATOR}{name}" if namespace else name


def columns_of(id: str, terms: Terms, address: str | None) -> tuple[str | None, ...]:
    before, after = _around(terms)
    return (*before, id, *after, address)


@lru_cache(maxsize=1024)
def _around(terms: Terms) -> tuple[tuple[str, str], tuple[str | None, ...]]:
    """The columns before and after the claim: the same for every claim on the same terms, so they are made once."""
    key, _, holder, ttl, mode, limit, metadata = terms
    number = None if limit is None else str(limit)
    return split(key), (holder, repr(ttl), mode, number, keepable(metadata))


def keepable(metadata: str | None) -> str | None:
    """JSON that a jsonb column gives back as it was."""
    return metadata if metadata is None or _survives(metadata) else json.dumps({WRAPPED: metadata})


def _survives(metadata: str) -> bool:
    """Whether jsonb keeps it as it is. To say no too often does no harm."""
    if WRAPPED in metadata or (_EXPONENT.search(metadata) and _EXPONENT.search(_STRING.sub("", metadata))):
        return False
    if "\\u" not in metadata:
        return True
    text = json.dumps(json.loads(metadata), ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a pair of surrogates
        return False
    return "\\u0000" not in text


def kept(text: Any) -> Any:
    """The JSON that was asked for, from what the column gives back."""
    if not isinstance(text, str) or not text.startswith(_BEGINS):
        return text
    with suppress(ValueError, RecursionError):  # another client's, with something else in it
        found = json.loads(text)
        if list(found) == [WRAPPED]:
            json.loads(inner := str(found[WRAPPED]))
            return inner
    return text


def granted(answer: Any) -> Grant:
    return Grant(answer["fence"], float(answer["acquired_at"]))


def busy(answer: Any, *, cannot_listen: bool) -> Busy:
    position, retry = answer["position"], answer["retry_after"]
    retry_after = poll_after(position, inf if retry is None else float(retry))
    if cannot_listen:
        retry_after = min(retry_after, POLL_WITHOUT_WAKEUPS_S * (1 + position))
    holder = answer["holder"]
    # A grant takes the claim out of its place. So a grant with a higher number than this place came after this answer.
    last_fence = answer.get("place")
    return Busy(position, retry_after, holder if holder is None else cut_id(holder), last_fence=last_fence)


def observation(answer: Any, *, cannot_listen: bool) -> Observation:
    retry = answer["retry_after"]
    retry_after = MAX_POLL_S if retry is None else max(0.0, min(MAX_POLL_S, float(retry)))
    changes = tuple(Change(number, fence, holder) for number, fence, holder in answer["changes"])
    return Observation(changes, min(retry_after, POLL_WITHOUT_WAKEUPS_S * 5) if cannot_listen else retry_after)


def info(namespace: str, answer: Any) -> LockInfo:
    wall = float(answer["now"])
    holds = (
        StoredHold(holder, claim, fence, mode, float(acquired), wall + float(left), kept(metadata))
        for holder, claim, fence, mode, acquired, left, metadata in answer["holders"]
    )
    return lock_info(join(namespace, answer["name"]), holds, answer["queue"])
