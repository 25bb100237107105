"""`locks.doctor()` at real servers: one that answers is never reported as unreachable, and has a version and a role."""

from __future__ import annotations

import asyncio
import re
import shlex
import sqlite3
from pathlib import Path

import pytest

import lockfast
import lockfast.aio
from lockfast import Diagnosis, Health
from lockfast.backends.redis.io.resp import facts_in, version_and_role
from lockfast.cli import main
from tests.servers import shared
from tests.servers.postgres_shared import advisory
from tests.servers.postgres_tables import table
from tests.servers.server import HOST, Server

pytestmark = pytest.mark.slow


@pytest.fixture(params=["threads", "asyncio"])
def world(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def examine(url: str, world: str) -> Diagnosis:
    async def ask() -> Diagnosis:
        async with lockfast.aio.connect(url) as locks:
            return await locks.doctor()

    if world == "asyncio":
        return asyncio.run(ask())
    with lockfast.connect(url) as locks:
        return locks.doctor()


def the_one(diagnosis: Diagnosis) -> Health:
    (server,) = diagnosis.servers
    return server


def test_a_redis_server_reports_its_version_and_that_it_is_the_primary(tmp_path: Path, world: str) -> None:
    url = shared.valkey().url(tmp_path)
    server = the_one(examine(url, world))
    assert (server.where, server.role, server.counts) == (url, "primary", True)
    assert re.fullmatch(r"\d+\.\d+\.\d+", server.version)


def test_a_redis_server_in_a_folder_whose_name_is_not_utf_8_reports_its_version_too() -> None:
    facts = facts_in([b"redis_version:7.2.4\r\nexecutable:/srv/caf\xe9/redis-server\r\n", b"role:master\r\n"])
    assert version_and_role(facts) == ("7.2.4", "primary")


def test_a_replica_of_redis_answers_and_is_called_one(world: str) -> None:
    with Server() as primary, Server("--replicaof", HOST, str(primary.port)) as replica:
        diagnosis = examine(replica.url, world)
    server = the_one(diagnosis)
    assert (server.reachable, server.role, diagnosis.works) == (True, "replica", False)
    assert "is a read-only replica" in server.error


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+advisory"])
def test_a_postgresql_server_reports_its_version_and_that_it_is_the_primary(
    scheme: str, tmp_path: Path, world: str
) -> None:
    server = the_one(examine(table().url(tmp_path).replace("postgresql", scheme, 1), world))
    assert server.where.startswith(f"{scheme}://lockfast@")
    assert (server.role, server.counts) == ("primary", True)
    assert re.fullmatch(r"\d+\.\d+", server.version)


def test_a_postgresql_without_a_table_answers_and_what_it_says_can_be_pasted(tmp_path: Path, world: str) -> None:
    url = f"{advisory().url(tmp_path)}?schema=doctor_{world}"
    diagnosis = examine(url, world)
    server = the_one(diagnosis)
    assert (server.reachable, server.role, diagnosis.works) == (True, "primary", False)
    assert server.version
    command = re.search(r"has no lock table; run: lockfast (.*) \(as ", server.error)
    assert command
    assert main(shlex.split(command[1])) == 0
    assert examine(url, world).works


def test_a_server_that_refuses_the_login_answers_and_is_not_called_gone(tmp_path: Path, world: str) -> None:
    for url in (
        shared.valkey().url(tmp_path).replace("//", "//nobody:wrong@"),
        table().url(tmp_path).replace("//lockfast@", "//nobody:wrong@"),
    ):
        diagnosis = examine(url, world)
        server = the_one(diagnosis)
        assert (server.reachable, diagnosis.works) == (True, False)
        assert f"{server.where} cannot be used: " in server.error
        assert "wrong" not in server.error


def test_a_sqlite_store_reports_the_version_of_the_library(tmp_path: Path, world: str) -> None:
    server = the_one(examine(f"sqlite:///{tmp_path}/a%20file.db", world))
    assert server.where == f"sqlite:///{tmp_path}/a%20file.db"
    assert (server.version, server.role, server.counts) == (sqlite3.sqlite_version, "", True)


def test_the_table_for_people_shows_version_and_role(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", shared.valkey().url(tmp_path)]) == 0
    _, row = capsys.readouterr().out.splitlines()
    where, state, _, version, role = row.split()
    assert (where, state, role) == (shared.valkey().url(tmp_path), "ok", "primary")
    assert version[0].isdigit()
    assert main(["doctor", f"{advisory().url(tmp_path)}?schema=doctor_nothing"]) == 69
    _, row = capsys.readouterr().out.splitlines()
    assert " refused " in row
    assert " unreachable " not in row
