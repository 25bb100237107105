"""The lock table refuses what no client could read, and what is there all the same keeps no client from the rest."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

import lockfast
from lockfast import BackendUnavailable
from lockfast._records import LARGEST_METADATA, LONGEST_NAME
from lockfast._reentry import drive
from lockfast.backends.postgres_table.requests import info
from lockfast.backends.postgres_table.schema import script
from tests.backends.damages import HUGE, METADATA, count_on
from tests.renewals import renew
from tests.servers.postgres_tables import table
from tests.servers.waiting import LIMIT_S, until

pytestmark = pytest.mark.slow

NO_JSONB = {"no JSON", "no number"}  # no column could keep that

# Each is refused by every function that grants.
TOO_MUCH = {
    "deep metadata": ("h", "[" * 3000 + "]" * 3000),
    "metadata a little too deep": ("h", "[" * 51 + "]" * 51),
    "large metadata": ("h", f'"{"x" * LARGEST_METADATA}"'),
    "metadata of many small things": ("h", f"[{'1,' * LARGEST_METADATA}1]"),
    "what is wrapped, and deep": ("h", f'{{"lockfast:json": "{"[" * 51}{"]" * 51}"}}'),
    "what is beside the wrapped": ("h", f'{{"lockfast:json": "1", "a": "{"x" * LARGEST_METADATA}"}}'),
    "a long holder": ("h" * (LONGEST_NAME + 1), "{}"),
    "a huge holder": ("h" * HUGE, "{}"),
}
ENOUGH = {
    "deep metadata": ("h", "[" * 50 + "]" * 50),
    "brackets in a string": ("h", f'"{"[" * 1000}"'),
    "large metadata": ("h", f'"{"x" * (LARGEST_METADATA - 2)}"'),
    "metadata of many small things": ("h", f"[{'1,' * (LARGEST_METADATA // 2 - 2)}1]"),
    "what is wrapped": ("h", f'{{"lockfast:json": "\\"{"x" * (LARGEST_METADATA - 2)}\\""}}'),
    "a long holder": ("é" * LONGEST_NAME, "{}"),
}

MANY = """SELECT lockfast_many('{}', '{}', '{}', '{}', '{}', '{}', '{"",""}', '{x,y}', '{c1,c2}', '{h,h}', '{60,60}',
    '{exclusive,exclusive}', '{NULL,NULL}', '{NULL,NULL}', '{NULL,NULL}')"""

TIMES = {
    "no end": ("expires_at", "infinity"),
    "no begin": ("acquired_at", "-infinity"),
    "a ttl of ages": ("ttl", "100000000 years"),
    "a ttl below zero": ("ttl", "-1 day"),
}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return table().url(tmp_path)


@pytest.fixture
def peer(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as peer:
        yield peer


@pytest.mark.parametrize("what", TOO_MUCH)
def test_what_is_too_much_is_refused_by_acquire_lock(peer: psycopg.Connection[Any], what: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        peer.execute("SELECT acquire_lock('x', %s, 60, %s)", TOO_MUCH[what])
    assert peer.execute("SELECT count(*) FROM distributed_locks").fetchone() == (0,)


@pytest.mark.parametrize("address", [None, "somewhere"])
@pytest.mark.parametrize("what", TOO_MUCH)
def test_what_is_too_much_is_refused_by_the_function_that_clients_call(
    url: str, peer: psycopg.Connection[Any], what: str, address: str | None
) -> None:
    with lockfast.connect(url) as locks, locks.lock("x", ttl=60):
        for name in ("x", "free") if address else ("free",):
            asked = "SELECT lockfast_acquire('', %s, 'c', %s, 60, 'exclusive', NULL, %s::jsonb, %s)"
            with pytest.raises(psycopg.errors.InvalidParameterValue):
                peer.execute(asked, (name, *TOO_MUCH[what], address))
        assert [one.name for one in locks.list()] == ["x"]


@pytest.mark.parametrize("ttl", ["0", "-1", "NaN", "Infinity", "NULL"])
def test_a_ttl_that_is_none_is_refused_by_the_functions_that_clients_call(
    peer: psycopg.Connection[Any], ttl: str
) -> None:
    one = f"SELECT lockfast_acquire('', 'x', 'c', 'h', ('{{{ttl}}}'::float[])[1])"
    for ask in (one, MANY.replace("{60,60}", f"{{60,{ttl}}}")):
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            peer.execute(ask.encode())
    assert peer.execute("SELECT count(*) FROM distributed_locks").fetchone() == (0,)


def test_metadata_is_bounded_whatever_a_session_makes_of_backslashes(peer: psycopg.Connection[Any]) -> None:
    peer.execute("SET standard_conforming_strings = off; SET escape_string_warning = off")
    asked = "SELECT acquire_lock('x', 'h', 60, %s::jsonb)"
    assert peer.execute(asked, (f"[{'[],' * 60}[]]",)).fetchone() == (True,)
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        peer.execute(asked, TOO_MUCH["deep metadata"][1:])


@pytest.mark.parametrize("what", ENOUGH)
def test_what_is_not_too_much_is_kept(url: str, peer: psycopg.Connection[Any], what: str) -> None:
    holder, _ = ENOUGH[what]
    assert peer.execute("SELECT acquire_lock('x', %s, 60, %s)", ENOUGH[what]).fetchone() == (True,)
    with lockfast.connect(url) as locks:
        info = locks.inspect("x")
        assert (info.holders[0].holder, info.damage) == (holder, "")


@pytest.mark.parametrize("metadata", [7, ["a"], {"a": 1}])
def test_metadata_that_is_no_text_is_shown_as_damaged(metadata: Any) -> None:
    answer = {"name": "x", "now": 0, "holders": [["h", "c", 1, "exclusive", 0, 1, metadata]], "queue": []}
    assert info("", answer).damage == "the metadata of 'h' is not text"


@pytest.fixture
def older(peer: psycopg.Connection[Any]) -> Iterator[str]:
    """A schema whose tables refuse nothing."""
    peer.execute(script("older").encode())
    found = peer.execute(
        "SELECT conrelid::regclass::text, quote_ident(conname) FROM pg_constraint"
        " WHERE contype = 'c' AND connamespace = 'older'::regnamespace"
    )
    for relation, constraint in found.fetchall():
        peer.execute(f"ALTER TABLE {relation} DROP CONSTRAINT {constraint}".encode())
    yield "older"
    peer.execute("DROP SCHEMA older CASCADE")


@pytest.mark.parametrize("what", [*sorted(METADATA.keys() - NO_JSONB), *TIMES, "a holder"])
def test_damaged_rows_do_not_hide_the_rest(url: str, peer: psycopg.Connection[Any], older: str, what: str) -> None:
    column, value = {**TIMES, "a holder": ("holder_id", "h" * HUGE)}.get(what) or ("metadata", METADATA[what])
    with lockfast.connect(url, schema=older) as locks, lockfast.connect(url, schema=older) as others:
        with others.lock("y", ttl=60), locks.lock("w", ttl=60) as sound:
            lease = locks.lock("x", ttl=60).acquire()
            assert lease is not None
            peer.execute(f"UPDATE older.distributed_locks SET {column} = %s WHERE lock_name = 'x'", (value,))
            assert [one.name for one in others.list()] == ["w", "x", "y"]
            info = others.inspect("x")
            assert info.locked
            assert info.damage or what in ("no end", "a ttl of ages", "a ttl below zero")
            with suppress(BackendUnavailable):  # or its times cannot be counted with
                assert others.lock("x").acquire(timeout=0) is None
                with pytest.raises(lockfast.AcquireTimeout) as refused, others.lock("x", wait=0):
                    pass
                assert len(pickle.dumps(refused.value)) < 2000
            renew(sound)
            assert others.break_lock("x").locked
            assert others.inspect("x") == lockfast.LockInfo("x")
            second = others.lock("x", ttl=60).acquire(timeout=0)
            assert second is not None
            assert second.fence > lease.fence
            second.release()


UNREADABLE = ("fence = -1", "fence = 1::bigint << 60", "acquired_at = '-infinity'", "acquired_at = 'infinity'")


@pytest.mark.parametrize("change", UNREADABLE)
def test_beside_a_hold_that_cannot_be_read_each_claim_gets_an_error_that_says_what_frees_it(
    url: str, peer: psycopg.Connection[Any], change: str
) -> None:
    with lockfast.connect(url) as locks, lockfast.connect(url) as others:
        lease = locks.lock("x", ttl=60).acquire()
        assert lease is not None
        peer.execute(f"UPDATE distributed_locks SET {change} WHERE lock_name = 'x'".encode())
        for claim in (
            lambda: others.lock("x").acquire(timeout=0),
            lambda: others.lock("x", wait=LIMIT_S).acquire(),
            lambda: others.semaphore("x", 3).acquire(timeout=0),
            lambda: next(iter(others.election("x").observe())),
            lambda: drive(locks._logic.engine.backend.acquire(lease._claim, enqueue=False, within=LIMIT_S)),
        ):
            with pytest.raises(BackendUnavailable, match=r"'x' .*is damaged.*break_lock") as refused:
                claim()
            assert not refused.value.transient
        assert peer.execute("SELECT acquire_lock('x', 'another', 60)").fetchone() == (False,)
        (_, answers), *_ = peer.execute(MANY).fetchone() or ((None, []),)
        assert ["damaged" in answer for answer in answers] == [True, False]
        assert others.inspect("x").waiters == 0
        assert others.break_lock("x").damage
        again = others.lock("x", ttl=60).acquire(timeout=0)
        assert again is not None
        assert again.fence > lease.fence


@pytest.mark.parametrize("change", UNREADABLE)
def test_time_and_its_own_release_end_a_hold_that_cannot_be_read(
    url: str, peer: psycopg.Connection[Any], change: str
) -> None:
    damage = f"UPDATE distributed_locks SET {change} WHERE lock_name = 'x'".encode()
    with lockfast.connect(url) as locks, lockfast.connect(url) as others:
        lease = locks.lock("x", ttl=60).acquire()
        assert lease is not None
        peer.execute(damage)
        assert lease.release()
        assert others.lock("x", ttl=60, renew=False).acquire(timeout=0)
        peer.execute(damage)
        peer.execute("UPDATE distributed_locks SET expires_at = now() - interval '1 second'")
        assert locks.lock("x", ttl=60).acquire(timeout=0)


@pytest.mark.parametrize("change", ["slot = 7", "slot = -3", "ttl = '-1 day'", "ttl = '0'"])
def test_a_hold_with_a_slot_or_a_ttl_that_none_has_lets_no_second_claim_in(
    url: str, peer: psycopg.Connection[Any], change: str
) -> None:
    with lockfast.connect(url) as locks, lockfast.connect(url) as others:
        lease = locks.lock("x", ttl=60).acquire()
        assert lease is not None
        peer.execute(f"UPDATE distributed_locks SET {change} WHERE lock_name = 'x'".encode())
        assert others.lock("x").acquire(timeout=0) is None
        assert peer.execute("SELECT acquire_lock('x', 'another', 60)").fetchone() == (False,)
        (_, answers), *_ = peer.execute(MANY).fetchone() or ((None, []),)
        assert ["fence" in answer for answer in answers] == [False, True]
        info = others.inspect("x")
        assert [one.fence for one in info.holders] == [lease.fence]
        assert info.holders[0].expires_at > lease.acquired_at
        renew(lease)
        assert lease.release()
        assert others.lock("x", ttl=60).acquire(timeout=0)


@pytest.mark.parametrize("ttl", ["100000000 years", "-100000000 years"])
def test_an_expired_hold_does_not_hide_the_rest_whatever_its_ttl(
    url: str, peer: psycopg.Connection[Any], older: str, ttl: str
) -> None:
    with lockfast.connect(url, schema=older) as locks:
        assert locks.lock("x", ttl=60, renew=False).acquire()
        over = "UPDATE older.distributed_locks SET ttl = %s::interval, expires_at = now() - interval '1 second'"
        peer.execute(over, (ttl,))
        peer.execute("SELECT older.lockfast_sweep(clock_timestamp())")  # as one of many grants of any name does
        assert peer.execute("SELECT count(*) FROM older.distributed_locks").fetchone() == (0,)
        peer.execute("SELECT older.lockfast_acquire('', 'x', 'c', 'h', 60)")
        peer.execute(over, (ttl,))
        assert locks.lock("x", ttl=60).acquire(timeout=0)


@pytest.mark.parametrize("until_", ["NaN", "9e19", "Infinity"])
def test_a_damaged_limiter_gives_no_permit_twice_and_heals(
    url: str, peer: psycopg.Connection[Any], older: str, until_: str
) -> None:
    with lockfast.connect(url, schema=older) as locks:
        slow = locks.limiter("x", rate=1, per=3600, burst=2)
        assert slow.try_acquire()
        peer.execute("UPDATE older.lockfast_limiters SET until = %s::numeric", (until_,))
        answer = slow.try_acquire()
        assert not answer
        assert 0 < answer.retry_after <= 3600
        quick = locks.limiter("z", rate=1000)
        until(quick.try_acquire, "a permit")


@pytest.mark.parametrize(
    "change", ["version = 9223372036854775807", "version = 9007199254740992", "version = -7", "fence = -5"]
)
def test_a_damaged_cell_says_so_and_its_delete_frees_it(url: str, peer: psycopg.Connection[Any], change: str) -> None:
    with lockfast.connect(url) as locks:
        cell = locks.cell("x")
        before = cell.write({"a": 1})
        peer.execute(f"UPDATE lockfast_cells SET {change} WHERE key = 'x'".encode())
        for use in (cell.read, lambda: cell.write(2), lambda: cell.write(2, if_version=before)):
            with pytest.raises(BackendUnavailable, match=r"cell 'x' is damaged.*delete\(\)"):
                use()
        cell.delete()
        assert cell.read() == (None, 0)
        assert cell.write(3) > before
        count_on(locks, before)


@pytest.mark.parametrize("key", ["x", ""])
@pytest.mark.parametrize("version", [2**53 - 1, 2**63 - 1])
def test_a_version_that_was_not_counted_to_spoils_no_other_cell(
    url: str, peer: psycopg.Connection[Any], version: int, key: str
) -> None:
    with lockfast.connect(url) as locks:
        cell = locks.cell("x")
        before = cell.write(1)
        if not key:
            cell.delete()
        peer.execute("UPDATE lockfast_cells SET version = %s WHERE key = %s", (version, key))
        with suppress(BackendUnavailable):  # it may be damaged
            cell.write(2)
        cell.delete()
        count_on(locks, before)


@pytest.mark.parametrize("value", ["[" * 3000 + "]" * 3000, "{zeros"])
def test_a_value_that_cannot_be_read_can_be_written_over(url: str, peer: psycopg.Connection[Any], value: str) -> None:
    with lockfast.connect(url) as locks:
        cell = locks.cell("x")
        before = cell.write({"a": 1})
        peer.execute("UPDATE lockfast_cells SET value = %s WHERE key = 'x'", (value,))
        with pytest.raises(BackendUnavailable, match="cell 'x' is damaged"):
            cell.read()
        cell.delete()
        assert cell.write(3) > before
        assert cell.read().value == 3
