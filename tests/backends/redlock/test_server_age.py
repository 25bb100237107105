"""For how long a server of a quorum has remembered every vote, from what it reports and by the client's own clock."""

from __future__ import annotations

import math
from urllib.parse import urlsplit

import pytest

from lockfast.backends.redis.io.urls import endpoint_of_url
from lockfast.backends.redlock.io import members as redis_quorum_members
from lockfast.backends.redlock.io.members import Member, members_of
from lockfast.errors import BackendUnavailable


class Boot:
    """The clock of the client's machine."""

    now = 1_000.0


@pytest.fixture
def boot(monkeypatch: pytest.MonkeyPatch) -> Boot:
    boot = Boot()
    monkeypatch.setattr(redis_quorum_members, "boot_now", lambda: boot.now)
    return boot


@pytest.fixture
def member() -> Member:
    return members_of([endpoint_of_url(urlsplit(f"redis://h{number}")) for number in range(3)])[0]


def connect(member: Member, uptime: int, *, run: str = "first", role: str = "master", keeps_all: bool = False) -> float:
    """Its age after a connection, on which it reports these things."""
    aof, fsync = (b"aof_enabled:1\r\n", b"always") if keeps_all else (b"aof_enabled:0\r\n", b"everysec")
    server = f"run_id:{run}\r\nuptime_in_seconds:{uptime}\r\nredis_mode:standalone\r\n".encode()
    member._greet([server, f"role:{role}\r\n".encode(), aof, b"maxmemory:0\r\n", [b"appendfsync", fsync]])
    return member.age()


def test_a_server_does_not_become_younger_with_a_new_connection(member: Member, boot: Boot) -> None:
    assert connect(member, 1) == 0.0
    boot.now += 0.9  # and its second has not changed
    assert connect(member, 1) == pytest.approx(0.9)


def test_a_server_does_not_become_older_when_its_clock_is_stepped_forward(member: Member, boot: Boot) -> None:
    assert connect(member, 2) == 1.0
    boot.now += 5.0
    assert connect(member, 3600) == pytest.approx(6.0)


def test_a_restart_that_the_client_sees_counts_from_then_on_whatever_the_clock_of_the_server_shows(
    member: Member, boot: Boot
) -> None:
    assert connect(member, 600) == 599.0
    boot.now += 5.0
    assert connect(member, 3600, run="second") == 0.0
    boot.now += 5.0
    assert connect(member, 7200, run="second") == 5.0


def test_a_server_that_has_kept_all_remembers_it_after_a_restart(member: Member, boot: Boot) -> None:
    connect(member, 600, keeps_all=True)
    boot.now += 5.0
    assert connect(member, 1, run="second", keeps_all=True) == math.inf


def test_a_server_that_keeps_all_since_its_restart_may_have_forgotten_what_came_before(
    member: Member, boot: Boot
) -> None:
    connect(member, 600)
    boot.now += 5.0
    assert connect(member, 1, run="second", keeps_all=True) == 0.0


def test_a_server_that_kept_all_only_since_its_last_restart_but_one_is_as_young_as_that(
    member: Member, boot: Boot
) -> None:
    connect(member, 600)
    boot.now += 5.0
    connect(member, 1, run="second", keeps_all=True)
    boot.now += 1.0
    assert connect(member, 1, run="third", keeps_all=True) == 1.0


def test_a_server_that_was_a_replica_is_as_young_as_that(member: Member, boot: Boot) -> None:
    assert connect(member, 600) == 599.0
    with pytest.raises(BackendUnavailable, match="is a replica"):
        connect(member, 600, role="slave")
    boot.now += 5.0
    assert connect(member, 606) == 5.0
