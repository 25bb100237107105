"""SQLite's clock: reboots, other hosts and steps of the wall clock."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest

import lockfast
from lockfast import BackendUnavailable
from lockfast._model import Grant
from lockfast._time import boot_now
from lockfast._worlds import drive
from lockfast.backends.sqlite import schema as sqlite_store
from lockfast.backends.sqlite.io.host import this_host
from lockfast.sync import Locks
from tests.backends.sqlite.stage import backend_on, claim_on, hold, on_host
from tests.servers.waiting import LIMIT_S


def test_a_reboot_voids_all_leases_and_fences_keep_growing(locks: Locks, path: Path) -> None:
    before = hold(locks)
    now = this_host()
    rebooted = now._replace(boot="the next boot", booted_at=before.acquired_at + 1, now=lambda: boot_now() - 1e6)
    with on_host(path, rebooted) as after:
        assert not after.inspect("x").locked
        assert hold(after).fence > before.fence


def test_fences_keep_growing_when_a_power_loss_took_the_last_commits_with_it(locks: Locks, path: Path) -> None:
    before = hold(locks)
    with sqlite3.connect(path) as db:
        db.execute(f"UPDATE claims SET counter = counter - 1 WHERE {sqlite_store.STORE}")  # as if never written
    db.close()
    rebooted = this_host()._replace(boot="the next boot", booted_at=before.acquired_at + 1)
    with on_host(path, rebooted) as after:
        assert hold(after).fence > before.fence


def test_a_reboot_is_not_taken_for_another_host_even_if_the_clock_is_behind(
    locks: Locks, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine without a clock that runs on a battery. Some fences went with the power."""
    before = hold(locks)
    with sqlite3.connect(path) as db:
        db.execute(f"UPDATE claims SET counter = counter - 1000 WHERE {sqlite_store.STORE}")
    db.close()
    monkeypatch.setattr("time.time", lambda: before.acquired_at - 600)
    rebooted = this_host()._replace(boot="the next boot", booted_at=before.acquired_at - 610)
    with on_host(path, rebooted) as after:
        assert not after.inspect("x").locked
        assert hold(after).fence > before.fence


def test_another_host_is_refused_while_leases_are_live(locks: Locks, path: Path) -> None:
    lease = hold(locks)
    other = this_host()._replace(machine="another machine", boot="its boot")
    with on_host(path, other) as elsewhere:
        with pytest.raises(BackendUnavailable, match=r"in use by another host.* use a lock server") as refused:
            hold(elsewhere)
        with pytest.raises(BackendUnavailable, match="another host"):
            elsewhere.list()
    assert refused.value.transient is False
    assert lease.held
    assert lease.release() is True


def stored_machine(path: Path) -> str:
    with sqlite3.connect(path) as db:
        (machine,) = db.execute(f"SELECT claim FROM claims WHERE {sqlite_store.STORE}").fetchone()
    db.close()
    return str(machine)


def test_the_id_of_the_machine_is_in_no_file_and_in_no_message(locks: Locks, path: Path) -> None:
    lease, machine = hold(locks), this_host().machine
    assert machine not in stored_machine(path)
    other = this_host()._replace(machine="another machine", boot="its boot")
    with on_host(path, other) as elsewhere, pytest.raises(BackendUnavailable) as refused:
        hold(elsewhere)
    assert machine not in str(refused.value)
    lease.release()
    rebooted = this_host()._replace(boot="the next boot", booted_at=lease.acquired_at + 1)
    with on_host(path, rebooted) as after:
        hold(after)
        assert machine not in stored_machine(path)


@pytest.mark.parametrize("boot", ["this boot", "the next boot"])
def test_a_file_in_which_an_older_lockfast_stored_the_id_of_the_machine_is_known_again(
    locks: Locks, path: Path, boot: str
) -> None:
    lease, host = hold(locks), this_host()
    with sqlite3.connect(path) as db:
        db.execute(f"UPDATE claims SET claim = ? WHERE {sqlite_store.STORE}", (host.machine,))
    db.close()
    if boot == "the next boot":
        host = host._replace(boot=boot, booted_at=lease.acquired_at + 1)
    with on_host(path, host) as after:
        assert after.inspect("x").locked is (boot == "this boot")
        assert hold(after, "y").held
    assert host.machine not in stored_machine(path)


def test_a_clone_with_the_same_machine_id_is_not_taken_for_a_reboot(locks: Locks, path: Path) -> None:
    hold(locks)
    twin = this_host()._replace(boot="its boot")  # it ran already when the lease was granted
    with on_host(path, twin) as elsewhere, pytest.raises(BackendUnavailable, match="another host"):
        hold(elsewhere)


def test_a_file_that_another_host_left_behind_can_be_used(locks: Locks, path: Path) -> None:
    first = hold(locks)
    first.release()
    other = this_host()._replace(machine="another machine", boot="its boot")
    with on_host(path, other) as elsewhere:
        second = hold(elsewhere)
        assert second.fence > first.fence
        with pytest.raises(BackendUnavailable, match="another host"):
            hold(locks)


def test_a_holder_that_only_renews_excludes_another_host(
    locks: Locks, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = hold(locks, ttl=30)
    monkeypatch.setattr("time.time", lambda: lease.acquired_at + 20)
    lease.extend()
    monkeypatch.setattr("time.time", lambda: lease.acquired_at + 40)  # the ttl has passed since the last grant
    other = this_host()._replace(machine="another machine", boot="its boot")
    with on_host(path, other) as elsewhere, pytest.raises(BackendUnavailable, match="another host"):
        hold(elsewhere)
    assert lease.release() is True


def test_a_release_after_a_reboot_does_not_say_that_it_was_held(path: Path) -> None:
    """No request has come since, so the row of the old boot is still there."""
    claim = claim_on("x")
    before = backend_on(path, this_host())
    after = backend_on(path, this_host()._replace(boot="the next boot", booted_at=time.time() + 1))
    assert isinstance(drive(before.acquire(claim, enqueue=False, within=LIMIT_S)), Grant)
    assert drive(after.release(claim, linger=0.0, within=LIMIT_S)) is False
    drive(before.close())
    drive(after.close())


def test_a_release_from_before_a_reboot_ends_no_hold_of_the_new_boot(path: Path) -> None:
    claim = claim_on("x")
    before = backend_on(path, this_host())
    after = backend_on(path, this_host()._replace(boot="the next boot"))
    assert isinstance(drive(after.acquire(claim, enqueue=False, within=LIMIT_S)), Grant)
    with pytest.raises(BackendUnavailable, match="another host"):
        drive(before.release(claim, linger=0.0, within=LIMIT_S))
    assert drive(after.inspect("x", within=LIMIT_S)).locked
    drive(before.close())
    drive(after.close())


def test_a_step_of_the_wall_clock_changes_nothing(locks: Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = hold(locks, ttl=30)
    for step in (1e6, -1e6):
        monkeypatch.setattr("time.time", lambda step=step: lease.acquired_at + step)
        assert lease.held
        assert locks.lock("x", wait=0).acquire() is None
        lease.extend()


def test_a_time_namespace_does_not_shift_the_hosts_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    from lockfast.backends.sqlite.io import host

    monkeypatch.setattr(host, "_read", lambda path: "monotonic 0 0\nboottime 5000 500000000")
    before, there = boot_now(), host._host_clock()()
    assert before <= there + 5000.5 <= boot_now()


def test_a_platform_without_a_boot_id_is_refused(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    from lockfast.backends.sqlite.io import host

    monkeypatch.setattr(host, "_read", lambda path: "")
    monkeypatch.setattr("sys.platform", "plan9")
    with lockfast.connect(f"sqlite:///{path}") as locks, pytest.raises(lockfast.Unsupported, match="boot id"):
        hold(locks)
