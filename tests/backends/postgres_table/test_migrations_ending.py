"""A migration that does not come to its end: the server does not go on with it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lockfast._connect import migration
from lockfast.backends.postgres_table.io.session import TableSession
from lockfast.backends.postgres_table.schema import CLASS
from tests.backends.postgres_table.adopted_table import TABLE, AdoptedDatabase
from tests.servers.waiting import LIMIT_S, until

pytestmark = pytest.mark.slow

WAITS = f"""SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database
    WHERE datname = current_database() AND locktype = 'advisory' AND classid = {CLASS} AND NOT granted"""


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[AdoptedDatabase]:
    """A database in which another migration does not end."""
    made = AdoptedDatabase(tmp_path)
    made.make(f"SELECT pg_advisory_lock({CLASS}, 0)")
    yield made
    made.close()


def _waits(database: AdoptedDatabase) -> bool:
    return bool(database.ask(WAITS))


def test_one_whose_process_was_killed_ends_on_the_server(busy: AdoptedDatabase) -> None:
    program = subprocess.Popen([sys.executable, "-m", "lockfast", "migrate", busy.url])
    until(lambda: _waits(busy), "the migration to wait")
    program.kill()
    program.wait(LIMIT_S)
    until(lambda: not _waits(busy), "the server to notice")


def test_one_that_was_interrupted_is_cancelled(busy: AdoptedDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TableSession, "_set_with_check", lambda *_: ())  # else the server would notice by itself
    ours = threading.main_thread().ident or 0

    def interrupt() -> None:
        until(lambda: _waits(busy), "the migration to wait")
        signal.pthread_kill(ours, signal.SIGINT)

    with ThreadPoolExecutor() as threads:
        interrupted = threads.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            migration(busy.url).run(print)
        interrupted.result(LIMIT_S)
    until(lambda: not _waits(busy), "the server to end it")


def test_one_whose_messages_cannot_be_reported_is_done_and_says_why(busy: AdoptedDatabase) -> None:
    def report(_: str) -> None:
        raise OSError("No space left on device")

    busy.make("SELECT pg_advisory_unlock_all()", TABLE)
    with pytest.raises(OSError, match="No space left"):
        migration(busy.url).run(report)
    assert busy.ask("SELECT acquire_lock('a', 'me')") is True
