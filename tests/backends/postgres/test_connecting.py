"""How a connection to PostgreSQL is made, for either kind of locks: what a failure leaves, and which host is tried first."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lockfast
import lockfast.aio
from lockfast import BackendUnavailable
from tests.servers.postgres import USER
from tests.servers.postgres_tables import table
from tests.servers.server import HOST

pytestmark = pytest.mark.slow
SCHEMES = ("postgresql", "postgresql+advisory")
TRIES = 5

Fail = Callable[..., list[BaseException]]


def _fail(url: str, **options: Any) -> list[BaseException]:
    errors: list[BaseException] = []
    with lockfast.connect(url, **options) as locks:
        for _ in range(TRIES):
            with pytest.raises(BackendUnavailable) as caught:
                locks.lock("a", wait=0).acquire()
            errors.append(caught.value)
    return errors


def _fail_in_tasks(url: str, **options: Any) -> list[BaseException]:
    errors: list[BaseException] = []

    async def story() -> None:
        async with lockfast.aio.connect(url, **options) as locks:
            for _ in range(TRIES):
                with pytest.raises(BackendUnavailable) as caught:
                    await locks.lock("a", wait=0).acquire()
                errors.append(caught.value)

    asyncio.run(story())
    return errors


@pytest.fixture(params=["threads", "asyncio"])
def fail(request: pytest.FixtureRequest) -> Fail:
    return _fail if request.param == "threads" else _fail_in_tasks


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _sockets() -> int:
    """Of this process."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{number}").startswith("socket:")
        except OSError:  # of the listing itself
            continue
    return found


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the sockets of this process cannot be counted")
@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_connection_that_was_refused_leaves_no_socket_until_the_next_collection(
    tmp_path: Path, fail: Fail, scheme: str
) -> None:
    url = table().url(tmp_path).replace("postgresql:", f"{scheme}:").replace(f"{USER}@", "nobody_of_that_name@")
    fail(url)
    before = _sockets()
    kept = fail(url)  # as a caller that logs them later does
    assert _sockets() <= before
    assert len(kept) == TRIES


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the sockets of this process cannot be counted")
@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("scheme", SCHEMES)
def test_nor_does_one_that_was_not_answered(fail: Fail, scheme: str) -> None:
    with socket.create_server((HOST, 0)) as mute:
        before = _sockets()
        kept = fail(f"{scheme}://{USER}@{HOST}:{mute.getsockname()[1]}/a", patience=0.05)
        assert _sockets() <= before
    assert len(kept) == TRIES
