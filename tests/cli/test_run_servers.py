"""`lockfast run` on a server that is killed, or that ends the session: the command does not outlive its lock."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from lockfast._time import boot_now
from tests.adversity.postgres_advisory.stage import advisory_url
from tests.cli.conftest import Heart, Shell, expiry
from tests.servers.postgres import PostgresServer
from tests.servers.postgres_tables import empty_table
from tests.servers.processes import has_ended
from tests.servers.server import HOST, Server
from tests.servers.waiting import LIMIT_S, until

pytestmark = pytest.mark.slow

TTL_S = 5.0
Kill = Callable[[], None]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def redis(stack: ExitStack) -> tuple[str, Kill]:
    server = stack.enter_context(Server())
    return server.url, server.kill


def redlock(stack: ExitStack) -> tuple[str, Kill]:
    servers = [stack.enter_context(Server()) for _ in range(3)]

    def kill_a_majority() -> None:
        for server in servers[:2]:
            server.kill()

    return f"redlock://{','.join(f'{HOST}:{server.port}' for server in servers)}?rejoin=0", kill_a_majority


def postgres(stack: ExitStack) -> tuple[str, Kill]:
    server = stack.enter_context(PostgresServer())
    empty_table(server.url)
    return server.url, server.kill


@pytest.mark.parametrize("store", [redis, redlock, postgres])
def test_when_the_server_is_killed_the_group_is_dead_before_the_deadline(
    shell: Shell, heart: Heart, stack: ExitStack, store: Callable[[ExitStack], tuple[str, Kill]]
) -> None:
    shell.url, kill = store(stack)
    shell.environment["LOCKFAST_URL"] = shell.url
    running = shell.start("run", "--ttl", f"{TTL_S:g}", "x", "--", *heart.command("ignore-term"))
    grandchild = heart.pid()
    with shell.locks() as locks:
        granted = expiry(locks, "x")
        until(lambda: expiry(locks, "x") > granted + 0.1, "a renewal")
    kill()
    deadline = boot_now() + TTL_S  # at the latest: nothing was renewed since
    _, err = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 74
    assert "the command was ended" in err.splitlines()[-1]
    assert has_ended(grandchild)
    assert heart.last_beat() < deadline


def test_when_the_session_that_holds_an_advisory_lock_ends_the_command_is_ended_long_before_the_deadline(
    shell: Shell, heart: Heart, stack: ExitStack
) -> None:
    server = stack.enter_context(PostgresServer())
    shell.url = shell.environment["LOCKFAST_URL"] = advisory_url(server)
    running = shell.start("run", "--ttl", "3600", "x", "--", *heart.command())
    grandchild = heart.pid()
    server.psql("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1")
    _, err = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 74
    assert re.search("was lost .*the session that held it has ended", err)
    assert has_ended(grandchild)
