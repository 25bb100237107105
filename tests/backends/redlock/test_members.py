"""What a client makes of the answers with which a server of a quorum introduces itself."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest

from lockfast.backends.redis.io.urls import endpoint_of_url
from lockfast.backends.redlock.io import members as redis_quorum_members
from lockfast.backends.redlock.io.members import Member

DAY = 86_400.0


@pytest.fixture
def booted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's machine booted a minute ago."""
    monkeypatch.setattr(redis_quorum_members, "boot_now", lambda: 60.0)


def introduced(server: str, *, persistence: str = "aof_enabled:0", fsync: bytes = b"everysec") -> Member:
    member = Member(endpoint_of_url(urlsplit("redis://nowhere")), [], [])
    facts: list[Any] = [f"run_id:a\r\n{server}".encode(), b"role:master", persistence.encode(), b"maxmemory:0"]
    member._greet([*facts, [b"appendfsync", fsync]])
    return member


@pytest.mark.usefixtures("booted")
def test_a_server_that_syncs_every_write_counts_at_once_though_the_client_booted_a_minute_ago() -> None:
    member = introduced("uptime_in_seconds:0", persistence="aof_enabled:1", fsync=b"always")
    assert member.age() > 365 * DAY


@pytest.mark.usefixtures("booted")
def test_a_server_may_be_older_than_the_boot_of_its_clients_machine() -> None:
    assert introduced(f"uptime_in_seconds:{DAY:.0f}").age() == pytest.approx(DAY, abs=1.0)


@pytest.mark.usefixtures("booted")
def test_a_server_that_restarted_is_as_young_as_its_uptime() -> None:
    assert introduced("uptime_in_seconds:11").age() == pytest.approx(10.0)
