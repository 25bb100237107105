"""The questions, in the order in which they are asked and in which the page shows their answers."""

from __future__ import annotations

from typing import Final

QUESTIONS: Final = (
    *("redis_contended", "redis_asyncio", "redis_uncontended", "redis_server_cpu", "redis_keeper"),
    *("memory", "redlock_contended", "redlock"),
    *("postgres_contended", "postgres_table", "postgres_snapshot", "postgres_advisory"),
    *("contended", "uncontended", "keeper", "waiting", "startup", "promptness"),
    "scaling",
)
