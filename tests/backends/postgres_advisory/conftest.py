"""A database for each test: its URL as any program knows it, as advisory locks, and a plain connection to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.servers.postgres_shared import advisory


@pytest.fixture
def plain(tmp_path: Path) -> str:
    return advisory().url(tmp_path)


@pytest.fixture
def url(plain: str) -> str:
    return plain.replace("postgresql:", "postgresql+advisory:")


@pytest.fixture
def psql(plain: str) -> Iterator[psycopg.Connection]:
    """A plain connection, as any program has."""
    with psycopg.connect(plain, autocommit=True, application_name="psql-user") as connection:
        yield connection
