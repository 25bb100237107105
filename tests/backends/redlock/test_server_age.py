"""For how long a server of a quorum has remembered everything, from what it says of itself in whole seconds."""

from __future__ import annotations

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


def connect(member: Member, uptime: int, *, run: str = "first", role: str = "master") -> float:
    """Its age after a connection, with which it says these things."""
    server = f"run_id:{run}\r\nuptime_in_seconds:{uptime}\r\nredis_mode:standalone\r\n".encode()
    member._greet([server, f"role:{role}\r\n".encode(), b"aof_enabled:0\r\n", b"maxmemory:0\r\n", [b"appendfsync"]])
    return member.age()


def test_a_server_does_not_become_younger_with_a_new_connection(member: Member, boot: Boot) -> None:
    assert connect(member, 1) == 0.0
    boot.now += 0.9  # and its second has not changed
    assert connect(member, 1) == pytest.approx(0.9)
    boot.now += 0.2
    assert connect(member, 3) == pytest.approx(2.0), "its uptime is more than was known"


def test_a_server_that_restarted_is_as_young_as_it_says(member: Member, boot: Boot) -> None:
    assert connect(member, 600) == 599.0
    boot.now += 5.0
    assert connect(member, 2, run="second") == 1.0


def test_a_server_that_was_a_replica_is_as_young_as_that(member: Member, boot: Boot) -> None:
    assert connect(member, 600) == 599.0
    with pytest.raises(BackendUnavailable, match="is a replica"):
        connect(member, 600, role="slave")
    boot.now += 5.0
    assert connect(member, 606) == 5.0
