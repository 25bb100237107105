"""Locks that a prepared transaction holds (two-phase commit): it belongs to no session, and survives a restart."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from lockfast import AcquireTimeout, LockError
from lockfast.backends.postgres_advisory.keys import key_of
from tests.backends.postgres_advisory.transactions import WORLDS, Side, run_story, settled, side
from tests.servers.postgres import PostgresServer

pytestmark = pytest.mark.slow
_HOLDER = "prepared transaction order-7"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer({"max_prepared_transactions": "4"}) as server:
        yield server


@pytest.fixture
def plain(server: PostgresServer) -> Iterator[str]:
    yield server.url
    with psycopg.connect(server.url, autocommit=True) as connection:
        for (gid,) in connection.execute("SELECT gid FROM pg_prepared_xacts").fetchall():
            connection.execute(f"ROLLBACK PREPARED '{gid}'".encode())


async def _prepare(here: Side, gid: str, *names: str) -> None:
    connection = await here.connect()
    await here.take(connection, *names)
    await here.ask(connection, f"PREPARE TRANSACTION '{gid}'")


@pytest.mark.parametrize("world", WORLDS)
def test_what_a_prepared_transaction_holds_is_shown_and_excludes(plain: str, world: str) -> None:
    async def story() -> None:
        async with side(world, plain) as here:
            await _prepare(here, "order-7", "a")
            await _prepare(here, "order-8", "b")
            (holder,) = (await settled(here.locks.inspect("a"))).holders
            assert holder.holder == _HOLDER
            assert holder.claim_id.startswith("prepared:")
            assert holder.session == {
                "pid": None,
                "application_name": _HOLDER,
                "client": None,
                "connected_at": None,
                "state": "prepared",
            }
            infos = {info.name: info for info in await settled(here.locks.list())}
            assert {name: info.holders[0].holder[-7:] for name, info in infos.items()} == {
                "a": "order-7",
                "b": "order-8",
            }
            assert await settled(here.locks.lock("a", wait=0).acquire()) is None
            other = await here.connect()
            with pytest.raises(AcquireTimeout, match=f"held by '{_HOLDER}'"):
                await here.take(other, "a", wait=0)

    run_story(world, story())


@pytest.mark.parametrize("world", WORLDS)
def test_a_break_says_that_a_prepared_transaction_is_no_session_and_its_end_frees_the_lock(
    plain: str, world: str
) -> None:
    async def story() -> None:
        async with side(world, plain) as here:
            await _prepare(here, "order-7", "a")
            with pytest.raises(LockError, match=f"held by {_HOLDER}, .* ROLLBACK PREPARED"):
                await settled(here.locks.break_lock("a"))
            operator: Any = await here.connect(autocommit=True)
            await here.ask(operator, "ROLLBACK PREPARED 'order-7'")
            assert await here.is_free("a")

    run_story(world, story())


def test_ls_and_show_print_it(plain: str) -> None:
    async def story() -> None:
        async with side("blocking", plain) as here:
            await _prepare(here, "order-7", "a")

    run_story("blocking", story())
    listed = _run(plain, "ls").splitlines()[1]
    assert listed.startswith(f"key {key_of('a').number}  {_HOLDER}  ")
    assert "with its transaction" in listed
    shown = _run(plain, "show", "a")
    assert f"  holder    {_HOLDER}\n" in shown
    assert "until it is committed or rolled back" in shown
    assert "  session   none, prepared\n" in shown


def _run(plain: str, *words: str) -> str:
    env = {**os.environ, "LOCKFAST_URL": plain.replace("postgresql:", "postgresql+advisory:")}
    done = subprocess.run(
        [sys.executable, "-m", "lockfast", *words], env=env, capture_output=True, text=True, timeout=50, check=True
    )
    return done.stdout
