"""What docs/backends/postgres_table.md and postgres_advisory.md say to an operator is enough, and true."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import lockfast
from lockfast.cli import main
from tests.backends.redis.test_page import use_everything
from tests.servers.postgres import PostgresServer
from tests.servers.postgres_programs import VERSIONS
from tests.servers.postgres_tables import empty_table
from tests.servers.waiting import join, until

pytestmark = pytest.mark.slow

PAGES = Path(__file__).parents[3] / "docs" / "backends"
PAGE = "\n".join((PAGES / f"{name}.md").read_text() for name in ("postgres_table", "postgres_advisory"))


@pytest.fixture(params=VERSIONS)
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    with PostgresServer(version=request.param) as server:
        yield server


def statements(begins: str) -> list[str]:
    found = [line.strip() for line in PAGE.splitlines() if line.strip().startswith(begins)]
    assert found, f"the page shows no {begins}"
    return found


def test_the_rights_on_the_page_are_enough_for_everything_and_each_is_needed(server: PostgresServer) -> None:
    server.psql("ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC")  # as many an administrator does
    assert main(["migrate", "--schema", "locks", server.url]) == 0
    server.psql("CREATE ROLE worker LOGIN")
    url = server.url.replace("//lockfast@", "//worker@") + "?schema=locks"
    for grant in statements("GRANT"):
        with lockfast.connect(url) as locks, pytest.raises(lockfast.BackendUnavailable) as caught:
            locks.lock("x").acquire()
        assert not caught.value.transient
        server.psql(grant)
    use_everything(url)


def test_the_sequence_can_be_raised_as_the_page_says(server: PostgresServer) -> None:
    empty_table(server.url)
    [raises] = statements("SELECT setval")
    with lockfast.connect(server.url) as locks:
        with locks.lock("x"):
            pass  # from here on nothing looks whether anything was forgotten
        server.psql("ALTER SEQUENCE lockfast_fence RESTART 7 MINVALUE 1")  # as if a backup had been restored
        with locks.lock("x") as low:
            assert low.fence == 7
        before = int(server.psql("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"))
        server.psql(raises)
        with locks.lock("x") as high:
            assert high.fence > before


def test_the_number_of_an_advisory_lock_is_as_the_page_says(server: PostgresServer) -> None:
    [takes] = statements("SELECT pg_advisory_lock(")
    tries = takes.replace("pg_advisory_lock", "pg_try_advisory_lock")
    with lockfast.connect(server.url.replace("postgresql:", "postgresql+advisory:")) as locks:
        assert server.psql(tries) == "t"
        with locks.lock("order:42"):
            assert server.psql(tries) == "f"
            number = re.findall(r"shows `key (-?\d+)`", PAGE)[0]
            assert server.psql(tries.replace("pg_try_advisory_lock", "")) == number


def test_there_are_as_few_connections_as_the_page_says(server: PostgresServer) -> None:
    empty_table(server.url)
    [most] = re.findall(r"with 200 waiters, and never more than (\d+)", PAGE)
    asked = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lockfast'"
    with lockfast.connect(server.url) as locks:

        def take() -> None:
            with locks.lock("x"):
                pass

        waiters = [threading.Thread(target=take) for _ in range(200)]
        with locks.lock("x"):
            for waiter in waiters:
                waiter.start()
            until(lambda: locks.inspect("x").waiters == len(waiters), "all to wait")
            assert int(server.psql(asked)) <= int(most)
        join(*waiters)
