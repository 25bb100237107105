"""Disks that are full or read-only, in a mount namespace that the test makes for itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adversity.actor import Actor
from tests.capabilities import skip_unless_mounts_are_allowed

pytestmark = pytest.mark.slow


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Actor]:
    """A process whose store lies on a disk of its own, of 256 KiB, which it can fill or make read-only."""
    skip_unless_mounts_are_allowed()
    mount = f'mount -t tmpfs -o size=256k none {tmp_path} && exec "$@"'
    actor = Actor(f"sqlite:///{tmp_path / 'locks.db'}", prefix=("unshare", "-Urm", "sh", "-c", mount, "sh"))
    yield actor
    actor.close()


def test_a_full_disk_is_a_clear_error_and_the_store_survives_it(disk: Actor) -> None:
    assert disk.ask("acquire", name="x")["fence"]
    disk.ask("fill")
    answers = [disk.ask("acquire", name=f"y{number}", wait=0) for number in range(200)]
    refused = [answer for answer in answers if "error" in answer]
    assert refused, "the disk was never full"
    assert {answer["error"] for answer in refused} == {"BackendUnavailable"}
    assert all("disk is full" in answer["text"] for answer in refused)
    assert all(answer["transient"] is False for answer in refused)
    disk.ask("empty")
    assert disk.ask("acquire", name="z")["fence"]


def test_a_full_disk_from_the_start_is_a_clear_error(disk: Actor) -> None:
    disk.ask("fill")
    answer = disk.ask("acquire", name="x")
    assert answer["error"] == "BackendUnavailable"
    assert "full" in answer["text"]


def test_a_read_only_disk_is_a_clear_error(disk: Actor) -> None:
    disk.ask("remount")
    answer = disk.ask("acquire", name="x")
    assert answer["error"] == "BackendUnavailable"
    assert "read-only" in answer["text"]


def test_a_disk_that_becomes_read_only_is_a_clear_error(disk: Actor) -> None:
    assert disk.ask("acquire", name="x")["fence"]
    disk.ask("shut")
    disk.ask("remount")
    answer = disk.ask("acquire", name="x", wait=0)
    assert answer["error"] == "BackendUnavailable"
    assert "read-only" in answer["text"]
