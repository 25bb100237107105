"""`lockfast ls`, `show` and `break`: what people read and what scripts may rely on."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from contextlib import closing

import pytest

import lockfast
from tests.cli.conftest import Shell
from tests.servers.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("store")]

LOCK_FIELDS = {"name", "locked", "waiters", "queue", "holders", "damage"}
HOLDER_FIELDS = {"holder", "claim_id", "fence", "mode", "acquired_at", "expires_at", "metadata", "session"}


def test_ls_shows_each_holder_in_aligned_columns(shell: Shell) -> None:
    with shell.locks() as locks, locks.lock("order:42", ttl=100, metadata={"job": 7}) as lease, locks.lock("mail"):
        done = shell("ls")
        head, mail, order = done.stdout.splitlines()
        assert head.split() == ["NAME", "HOLDER", "FENCE", "HELD", "EXPIRES", "WAITERS", "METADATA"]
        assert mail.split()[:2] == ["mail", locks.holder]
        assert order.split()[:3] == ["order:42", locks.holder, str(lease.fence)]
        assert order.endswith('0        {"job": 7}')
        assert {line.index(locks.holder) for line in (mail, order)} == {head.index("HOLDER")}
        assert [line.split()[0] for line in shell("ls", "ord").stdout.splitlines()] == ["NAME", "order:42"]


def test_ls_cuts_what_would_make_all_rows_wide_and_show_does_not(shell: Shell) -> None:
    with lockfast.connect(shell.url, holder="h" * 255) as locks, locks.lock("x", metadata="m" * 1000):
        head, row = shell("ls").stdout.splitlines()
        assert row.split()[1] == "h" * 119 + "…"
        assert row.endswith("  " + '"' + "m" * 118 + "…")
        assert head.index("FENCE") == row.index("…") + 3
        assert f"holder    {'h' * 255}\n" in shell("show", "x").stdout
        assert "m" * 1000 in shell("show", "x").stdout


def test_ls_json_is_one_list_of_locks(shell: Shell) -> None:
    assert json.loads(shell("ls", "--json").stdout) == []
    before = time.time()
    with shell.locks() as locks, locks.lock("x", metadata=[1]) as lease:
        (lock,) = json.loads(shell("ls", "--json").stdout)
        (holder,) = lock["holders"]
        assert lock.keys() == LOCK_FIELDS
        assert holder.keys() == HOLDER_FIELDS
        assert (lock["name"], lock["locked"], lock["waiters"]) == ("x", True, 0)
        assert (holder["fence"], holder["claim_id"]) == (lease.fence, lease.claim_id)
        assert (holder["holder"], holder["mode"], holder["metadata"]) == (locks.holder, "exclusive", [1])
        assert before <= holder["acquired_at"] <= time.time()
        assert holder["expires_at"] > before + 29


def test_ls_of_nothing_says_so_on_stderr(shell: Shell) -> None:
    done = shell("ls", "ord")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "lockfast: no lock that begins with 'ord' is held or waited for\n"


def test_show_prints_everything_about_one_lock(shell: Shell) -> None:
    with shell.locks() as locks, locks.lock("x", ttl=110, metadata={"a": 1}) as lease:
        done = shell("show", "x", "--check")
        assert done.returncode == 0
        lines = done.stdout.splitlines()
        assert lines[0] == "x: held"
        assert lines[1] == f"  holder    {locks.holder}"
        assert re.match(r"            held \d", lines[2])
        assert "expires in 1m" in lines[2]
        assert lines[3:] == [
            f"  fence     {lease.fence}",
            "  mode      exclusive",
            f"  claim     {lease.claim_id}",
            '  metadata  {"a": 1}',
            "  waiters   0",
        ]
        assert json.loads(shell("show", "x", "--json").stdout).keys() == LOCK_FIELDS


def test_show_names_those_who_wait_first_in_line_first(shell: Shell) -> None:
    with shell.locks() as locks, locks.lock("x"):
        for number in (1, 2):
            shell.start("run", "--holder", f"waiter\x9b-{number}", "x", "--", "true")
            until(lambda: locks.inspect("x").waiters == number, "a waiter")  # noqa: B023
        lines = shell("show", "x").stdout.splitlines()
        assert lines[-3:] == ["  waiters   2", "            1. waiter\\x9b-1", "            2. waiter\\x9b-2"]


def test_show_of_a_free_lock_says_free(shell: Shell) -> None:
    done = shell("show", "x")
    assert (done.returncode, done.stdout) == (0, "x: free\n  waiters   0\n")
    assert shell("show", "x", "--check").returncode == 1
    free = json.loads(shell("show", "x", "--json").stdout)
    assert free == {"name": "x", "locked": False, "waiters": 0, "queue": [], "holders": [], "damage": None}


def test_break_prints_what_it_broke_and_what_that_means(shell: Shell) -> None:
    with shell.locks() as locks:
        lease = locks.lock("x").acquire()
        assert lease is not None
        done = shell("break", "x")
        assert done.returncode == 0
        what, meaning = done.stdout.splitlines()
        assert re.match(rf"broke x, held by {re.escape(locks.holder)} for \d", what)
        assert what.endswith(f"with fence {lease.fence}")
        assert "higher fence" in meaning
        assert not locks.inspect("x").locked
        assert lease.release() is False


def test_break_of_a_free_lock_exits_1(shell: Shell) -> None:
    done = shell("break", "x")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "lockfast: lock 'x' was not held; nothing was broken\n"


def test_break_json_prints_what_there_was(shell: Shell) -> None:
    with shell.locks() as locks:
        lease = locks.lock("x").acquire()
        assert lease is not None
        broken = json.loads(shell("break", "x", "--json").stdout)
        assert broken.keys() == LOCK_FIELDS | {"broken"}
        assert (broken["broken"], broken["holders"][0]["fence"]) == (True, lease.fence)
        again = shell("break", "x", "--json")
        assert (again.returncode, json.loads(again.stdout)["broken"]) == (1, False)
        lease.release()


def test_namespaces_are_apart(shell: Shell) -> None:
    with shell.locks() as locks, locks.lock("x"):
        assert json.loads(shell("ls", "--json", "--namespace", "other").stdout) == []
        assert shell("show", "x", "--check", "--namespace", "other").returncode == 1


def damage(shell: Shell, change: str) -> None:
    with closing(sqlite3.connect(shell.url.removeprefix("sqlite:///"))) as db, db:
        assert db.execute(f"UPDATE claims SET {change} WHERE key = 'x'").rowcount


def test_a_hold_that_cannot_be_read_is_shown_as_damaged_and_break_frees_it(shell: Shell) -> None:
    with shell.locks() as locks, locks.lock("mail"):
        assert locks.lock("x").acquire()
        damage(shell, "ends_at = zeroblob(8)")
        head, mail, row = shell("ls").stdout.splitlines()
        assert mail.split()[:2] == ["mail", locks.holder]
        assert re.match(r"x +\(damaged\) +- +- +when it is broken +0 +damaged: a hold cannot be read$", row)
        assert row.index("damaged:") == head.index("METADATA")
        shown = shell("show", "x", "--check")
        assert shown.stdout.splitlines() == [
            "x: held",
            "  damaged   a hold cannot be read; `lockfast break` frees it",
            "  holder    (damaged)",
            "  waiters   0",
        ]
        shown = json.loads(shell("show", "x", "--json").stdout)
        assert (shown["damage"], shown["locked"]) == ("a hold cannot be read", True)
        refused = shell("run", "--wait", "0", "x", "true")
        assert (refused.returncode, "break_lock('x')" in refused.stderr) == (69, True)
        assert shell("break", "x").stdout.startswith("broke x, held by (damaged)\n")
        assert shell("run", "--wait", "0", "x", "true").returncode == 0


def test_metadata_that_cannot_be_read_is_reported_in_its_place(shell: Shell) -> None:
    with shell.locks() as locks, locks.lock("x"):
        damage(shell, "metadata = '{zeros'")
        row = shell("ls").stdout.splitlines()[1]
        assert row.split()[:2] == ["x", locks.holder]
        assert row.endswith(f"damaged: the metadata of '{locks.holder}' is not JSON that can be read")
        assert "  damaged   the metadata of" in shell("show", "x").stdout
