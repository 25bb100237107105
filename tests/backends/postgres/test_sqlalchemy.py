"""URLs and engines of SQLAlchemy, and what asyncpg calls by other names, in place of a URL of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

import lockfast
from lockfast._connect import migration
from lockfast.backends.opening import split_url
from lockfast.backends.postgres.io.endpoint import endpoint_of_client, endpoint_of_url
from tests.servers.postgres_tables import table

DRIVERS = ("psycopg", "psycopg2", "asyncpg")
NAMED = "postgresql+{}://bob:s3%20%2Bcr%40t@db:5433/app?application_name=me"


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_url_of_sqlalchemy_leads_to_the_same_server(driver: str) -> None:
    ours = endpoint_of_url(split_url(NAMED.format(driver).replace(f"+{driver}", "")))
    assert endpoint_of_url(split_url(NAMED.format(driver))).params == ours.params
    given = endpoint_of_client(sqlalchemy.make_url(NAMED.format(driver)))
    assert given is not None
    assert given.params == ours.params
    assert given.params["password"] == "s3 +cr@t"
    assert migration(NAMED.format(driver)).url == ours.url


@pytest.mark.parametrize("advisory", [False, True])
def test_an_engine_and_its_url_are_taken_in_place_of_a_url(advisory: bool) -> None:
    url = NAMED.format("psycopg")
    for given in (url, sqlalchemy.make_url(url), sqlalchemy.create_engine(url), create_async_engine(url)):
        scheme = "postgresql+advisory" if advisory else "postgresql"
        with lockfast.connect(given, advisory=advisory) as locks:
            assert f"{scheme}://db:5433/app" in repr(locks)
            assert "s3" not in repr(locks)


@pytest.mark.parametrize(
    ("options", "params"),
    [
        ("host=a:1&host=b:2", {"host": "a,b", "port": "1,2"}),
        ("host=a&host=b", {"host": "a,b"}),
        ("host=a:1&host=b", {"host": "a,b", "port": "1,5432"}),
        ("host=a:1", {"host": "a", "port": "1"}),
        ("host=::1", {"host": "::1"}),
        ("host=::1&host=a:1", {"host": "::1,a", "port": "5432,1"}),
        ("host=/run/postgresql:1", {"host": "/run/postgresql:1"}),
        ("host=/run/postgresql", {"host": "/run/postgresql"}),
        ("host=a&database=app", {"host": "a", "dbname": "app"}),
        ("host=a&ssl=verify-full", {"host": "a", "sslmode": "verify-full"}),
        ("host=a&ssl=true", {"host": "a", "sslmode": "require"}),
        ("host=a&ssl=false", {"host": "a", "sslmode": "disable"}),
        ("host=a&prepared_statement_cache_size=0", {"host": "a"}),
    ],
)
def test_options_that_mean_the_same_are_understood(options: str, params: dict[str, str]) -> None:
    assert dict(endpoint_of_url(split_url(f"postgresql+asyncpg://?{options}")).params) == params
    given = endpoint_of_client(sqlalchemy.make_url(f"postgresql+asyncpg://?{options}"))
    assert given is not None
    assert dict(given.params) == params


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite:///a.db", "only PostgreSQL can keep locks, not 'sqlite'"),
        ("postgresql+psycopg://", "names no server"),
        ("postgresql+psycopg://db/app?no_such_option=1", "does not understand these parameters"),
    ],
)
def test_an_engine_that_leads_to_no_postgresql_is_refused(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        lockfast.connect(sqlalchemy.create_engine(url))


@pytest.mark.slow
def test_an_engine_leads_to_its_locks(tmp_path: Path) -> None:
    url = table().url(tmp_path)
    engine: Any = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with lockfast.connect(engine) as locks, locks.lock("a"), lockfast.connect(url) as others:
        assert others.lock("a").acquire(blocking=False) is None
