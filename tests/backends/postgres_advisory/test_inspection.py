"""What operators see of advisory locks, and what they can end: in Python and by `lockfast ls`, `show`, `break`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from math import inf
from typing import Any

import psycopg
import pytest

import lockfast
from lockfast import LockError
from lockfast.backends.postgres_advisory.keys import key_of
from tests.servers.postgres import USER
from tests.servers.postgres_shared import HERE, own_name
from tests.servers.server import HOST
from tests.servers.waiting import join, until

pytestmark = pytest.mark.slow


def _fetch(connection: psycopg.Connection, sql: str, *values: Any) -> Any:
    """The first field of the first row."""
    row = connection.execute(sql.encode(), values or None).fetchone()
    return row[0] if row else None


# What operators see


def test_a_holder_elsewhere_is_shown_as_the_server_knows_it(url: str, psql: psycopg.Connection) -> None:
    key = key_of("order:42")
    _fetch(psql, "SELECT pg_advisory_lock(%s), pg_advisory_lock_shared(%s, 2000000000)", key.number, key.tag)
    _fetch(psql, "SELECT pg_advisory_lock_shared(%s, 2000000007)", key.tag ^ 1)  # of another lock, later
    with lockfast.connect(url) as locks:
        (holder,) = locks.inspect("order:42").holders
        assert (holder.holder, holder.acquired_at) == ("psql-user", 2000000000)
        assert holder.claim_id == f"pid:{psql.info.backend_pid}"
        assert (holder.fence, holder.expires_at, holder.metadata) == (None, inf, None)  # which the server does not know
        assert holder.session is not None
        assert holder.session["pid"] == psql.info.backend_pid
        assert holder.session["application_name"] == "psql-user"
        assert holder.session["client"] == HOST
        assert holder.session["state"] == "idle"
        assert 0 < holder.session["connected_at"] <= time.time() + 60
        assert [info.name for info in locks.list()] == ["order:42"]
        assert locks.list("nothing") == []


def test_no_hold_is_shown_as_older_than_its_connection(url: str, psql: psycopg.Connection) -> None:
    """The server keeps the second of the grant, without what follows the point."""
    key = key_of("order:42")
    began = "(SELECT floor(extract(epoch FROM backend_start))::int FROM pg_stat_activity WHERE pid = pg_backend_pid())"
    _fetch(psql, f"SELECT pg_advisory_lock(%s), pg_advisory_lock_shared(%s, {began})", key.number, key.tag)
    with lockfast.connect(url) as locks:
        (holder,) = locks.inspect("order:42").holders
        assert holder.session is not None
        assert holder.acquired_at == holder.session["connected_at"]


def test_what_this_process_holds_is_shown_with_its_session_too(url: str) -> None:
    with lockfast.connect(url) as locks, locks.lock("order:42", ttl=30) as lease:
        (holder,) = locks.inspect("order:42").holders
        assert holder.fence == lease.fence
        assert holder.expires_at == pytest.approx(lease.expires_at, abs=2)
        assert holder.session is not None
        assert holder.session["application_name"] == locks.holder


def test_a_lock_of_a_transaction_is_shown_with_its_state_and_one_without_a_tag_since_its_transaction_began(
    url: str, psql: psycopg.Connection
) -> None:
    with lockfast.connect(url) as locks, psql.transaction():
        began = _fetch(psql, "SELECT extract(epoch FROM now())::float8")
        _fetch(psql, "SELECT pg_advisory_xact_lock(%s)", key_of("order:42").number)
        (holder,) = locks.inspect("order:42").holders
        assert holder.session is not None
        assert holder.session["state"] == "idle in transaction"
        assert holder.acquired_at == pytest.approx(began, abs=0.01)


def test_what_a_role_may_not_see_of_others_is_none_and_not_a_guess(url: str, psql: psycopg.Connection) -> None:
    """Client, state and times of another role's connections are for members of pg_read_all_stats."""
    guest = _guest(psql)
    _fetch(psql, "SELECT pg_advisory_lock(%s)", key_of("order:42").number)
    with lockfast.connect(url.replace(f"//{USER}@", f"//{guest}@")) as locks:
        (holder,) = locks.inspect("order:42").holders
        assert holder.holder == "psql-user"
        shown = {"pid": psql.info.backend_pid, "application_name": "psql-user"}
        assert holder.session == {**shown, "client": None, "connected_at": None, "state": None}


def test_a_connection_that_first_inspected_and_then_locked_is_named_after_its_holder(
    url: str, psql: psycopg.Connection
) -> None:
    names = "SELECT array_agg(application_name) FROM pg_locks JOIN pg_stat_activity USING (pid)"
    names += f" WHERE objsubid = 1 AND {HERE}"
    with lockfast.connect(url, holder="worker-7") as locks:
        assert locks.list() == []
        with locks.lock("order:42"):
            assert _fetch(psql, names) == ["worker-7"]


def test_a_break_that_may_not_end_the_session_of_the_holder_says_so(url: str, psql: psycopg.Connection) -> None:
    guest = _guest(psql)
    _fetch(psql, "SELECT pg_advisory_lock(%s)", key_of("order:42").number)
    with lockfast.connect(url.replace(f"//{USER}@", f"//{guest}@")) as locks:
        with pytest.raises(LockError, match="'order:42' could not be broken"):
            locks.break_lock("order:42")
        assert locks.inspect("order:42").locked


def test_a_number_whose_name_is_unknown_is_listed_by_its_number(url: str, psql: psycopg.Connection) -> None:
    _fetch(psql, "SELECT pg_advisory_lock_shared(-12345)")
    with lockfast.connect(url) as locks:
        (info,) = locks.list()
        assert info.name == "key -12345"
        assert [one.name for one in locks.list("it may begin so")] == ["key -12345"]
        assert info.holders[0].mode == "shared"


def test_waiters_are_listed_in_order(url: str, plain: str) -> None:
    number = key_of("gate").number
    with lockfast.connect(url) as locks, ExitStack() as stack:
        assert locks.lock("gate").acquire() is not None
        threads = []
        for want, name in enumerate(("first", "second"), 1):
            connection = stack.enter_context(psycopg.connect(plain, application_name=name, autocommit=True))
            thread = threading.Thread(target=_fetch, args=(connection, "SELECT pg_advisory_lock(%s)", number))
            thread.start()
            threads.append(thread)
            until(lambda want=want: locks.inspect("gate").waiters == want)  # type: ignore[misc]
        assert locks.inspect("gate").queue == ("first", "second")
        locks.break_lock("gate")
        join(threads[0])
        locks.break_lock("gate")
        join(threads[1])


# On the command line


def _run(url: str, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "LOCKFAST_URL": url}
    return subprocess.run(
        [sys.executable, "-m", "lockfast", *words], env=env, capture_output=True, text=True, timeout=50, check=False
    )


def _pid_of(psql: psycopg.Connection, name: str) -> int:
    ours = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
    return int(_fetch(psql, f"{ours} AND application_name = %s", name))


def _guest(psql: psycopg.Connection) -> str:
    """A role that may log in, and nothing else."""
    role = own_name("advisory_guest")  # another test grants tables to a guest, and then that one cannot be dropped
    psql.execute(f"DROP ROLE IF EXISTS {role}".encode())
    psql.execute(f"CREATE ROLE {role} LOGIN".encode())
    return role


def test_ls_and_show_print_what_is_true_and_nothing_else(url: str, psql: psycopg.Connection) -> None:
    with lockfast.connect(url, holder="worker-7") as locks, lockfast.connect(url, holder="worker-8") as others:
        lease = locks.lock("order:42").acquire()
        assert lease is not None
        waiter = threading.Thread(target=lambda: others.lock("order:42", wait=50).acquire())
        waiter.start()
        until(lambda: locks.inspect("order:42").waiters == 1)
        connection = f"pid {_pid_of(psql, 'worker-7')} from {HOST}, idle"

        head, line = _run(url, "ls").stdout.splitlines()
        assert head.split() == ["NAME", "HOLDER", "FENCE", "HELD", "EXPIRES", "WAITERS", "METADATA", "CONNECTION"]
        assert line.startswith(f"key {key_of('order:42').number}  worker-7  -      ")
        assert line.index("with its connection  1") == head.index("EXPIRES")
        assert line[head.index("CONNECTION") :] == connection

        name, holder, held, *rest = _run(url, "show", "order:42").stdout.splitlines()
        assert (name, holder) == ("order:42: held", "  holder    worker-7")
        assert held.startswith("            held ")
        assert held.endswith("s, until its connection ends")
        assert rest.pop(3).startswith(f"  session   {connection}, connected ")
        assert rest == [
            "  fence     -",
            "  mode      exclusive",
            f"  claim     pid:{_pid_of(psql, 'worker-7')}",
            "  waiters   1",
            "            1. worker-8",
        ]
        lease.release()
        join(waiter)


def test_json_has_nothing_where_nothing_is_known(url: str, psql: psycopg.Connection) -> None:
    before = time.time()
    with lockfast.connect(url, holder="worker-7") as locks, locks.lock("order:42"):
        shown = json.loads(_run(url, "show", "--json", "order:42").stdout)
        (listed,) = json.loads(_run(url, "ls", "--json").stdout)
        (holder,) = shown["holders"]
        assert (holder["fence"], holder["expires_at"], holder["metadata"]) == (None, None, None)
        assert before - 60 < holder["acquired_at"] < time.time() + 60
        assert holder["session"].pop("connected_at") > 0
        session = {"pid": _pid_of(psql, "worker-7"), "application_name": "worker-7", "client": HOST, "state": "idle"}
        assert holder["session"] == session
        assert listed["holders"][0]["session"]["pid"] == session["pid"]
        assert (shown["locked"], shown["waiters"], shown["queue"]) == (True, 0, [])


def test_break_ends_the_connection_and_says_so(url: str) -> None:
    with lockfast.connect(url, holder="worker-7") as locks:
        lease, other = locks.lock("order:42", ttl=3600).acquire(), locks.lock("order:43", ttl=3600).acquire()
        assert lease is not None
        assert other is not None
        done = _run(url, "break", "order:42")
        what, meaning = done.stdout.splitlines()
        assert what.startswith("broke order:42, held by worker-7 for ")
        assert "fence" not in what
        assert meaning.startswith("its connection was ended, with everything else that it held")
        until(lambda: lease.lost and other.lost)
        broken = _run(url, "break", "--json", "order:42")
        assert (broken.returncode, json.loads(broken.stdout)["broken"]) == (1, False)
