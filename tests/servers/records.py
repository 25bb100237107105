"""What a story has left on a Redis server.

Decides: which keys count. A server of the tests knows nothing of a story's clock and lets keys expire in real time,
so a key is judged by how long it is bound to live: longer than what it is for, and it counts.
"""

from __future__ import annotations

from redis import Redis

from tests.servers.server import HOST, Reachable

_SECOND, _DAY = 1000, 86_400_000  # milliseconds

# How long a key may stay when no client uses it any more, by its kind.
_MAY_STAY = {
    "held": 3 * _DAY,  # the last fence of the name: two days after the longest ttl of a story
    "queue": 30 * _SECOND,
    "waiters": 30 * _SECOND,
    "lapsed": _DAY,
    "observers": 0,  # the last that leaves clears up, and so does the first that notices a dead one
    "changes": 0,
}


def count(server: Reachable, database: int) -> int:
    """How many records of names and limiters are left that have no use."""
    with Redis(HOST, server.port, database, protocol=2, decode_responses=True) as client:
        keys = list(client.scan_iter(match="lockfast:*", count=1000))
        left = {key: _milliseconds(client, key) for key in keys}
        limiters = [key for key in keys if _kind(key) == "limit"]
        names = [key for key in keys if _kind(key) in _MAY_STAY]
        assert len(names) + len(limiters) + sum(_kind(key) == "cell" for key in keys) == len(keys), keys
        return sum(left[key] > _MAY_STAY[_kind(key)] for key in names) + _limiters(client, limiters, left)


def _limiters(client: Redis, keys: list[str], left: dict[str, float]) -> int:
    """Those that would still be there when the youngest was used: each was used as long ago as its booking says."""
    booked = {key: _moment(client.get(key) or "0 0") for key in keys}
    youngest = max(booked.values(), default=0.0)
    return sum(youngest - booked[key] < left[key] / _SECOND for key in keys)


def _moment(text: object) -> float:
    seconds, nanos = str(text).split()
    return int(seconds) + int(nanos) / 1e9


def _kind(key: str) -> str:
    return key.rpartition(":")[2]


def _milliseconds(client: Redis, key: str) -> float:
    left = int(client.pttl(key))
    return float("inf") if left == -1 else max(0, left)
