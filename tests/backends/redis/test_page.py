"""What docs/backends/redis.md asks an operator to allow is enough for everything, and every part of it is needed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import lockfast
from tests.servers import binaries
from tests.servers.server import HOST, Server
from tests.servers.waiting import LIMIT_S, join
from tests.waiters import in_queue

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[3] / "docs" / "backends" / "redis.md"


@pytest.fixture(params=["valkey", *(["redis6"] if binaries.HAS_REDIS_6 else [])])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(binary=binaries.valkey() if request.param == "valkey" else binaries.redis_6()) as server:
        yield server


def rule_on_the_page() -> list[str]:
    found = re.search(r"^ACL SETUSER locks .*?(?=^```$)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found, "the page shows no rule"
    return found[0].split()


def in_demand(locks: lockfast.Locks, others: lockfast.Locks) -> None:
    """Hold what four wait for, and let it go from hand to hand.

    Each but the first is likely to be put into the queue the short way: one in a hundred takes the long one.
    """

    with locks.lock("x", wait=LIMIT_S) as lease:
        waiters = [in_queue(others.lock("x", wait=LIMIT_S), locks) for _ in range(4)]
        lease.extend(60)
        assert [info.name for info in others.list()] == ["x"]
    join(*waiters)


def watched(locks: lockfast.Locks, others: lockfast.Locks) -> None:
    seen = iter(others.election("leader").observe())
    assert next(seen).leader is None
    with locks.election("leader"):
        assert next(seen).leader == locks.holder
    assert next(seen).leader is None


def values(locks: lockfast.Locks) -> None:
    assert locks.limiter("api", rate=10).try_acquire()
    cell = locks.cell("state")
    cell.write(1)
    assert cell.update(lambda value: value + 1).value == 2
    cell.delete()


def use_everything(url: str) -> None:
    with lockfast.connect(url) as locks, lockfast.connect(url) as others:
        with locks.lock("uncontended"):
            pass
        in_demand(locks, others)
        watched(locks, others)
        values(locks)
        with locks.semaphore("pool", 2), others.semaphore("pool", 2):
            waiter = in_queue(locks.semaphore("pool", 2), others)
        join(waiter)
        permits = [locks.semaphore("many", 20, ttl=60 + each).acquire() for each in range(20)]
        for permit in permits:
            assert permit
            permit.extend(100)
            assert permit.release()
        assert not locks.break_lock("x").locked


def test_the_rule_on_the_page_is_enough_for_everything(server: Server) -> None:
    server.command(*rule_on_the_page())
    use_everything(f"redis://locks:secret@{HOST}:{server.port}/0")
    assert server.command("ACL", "LOG") == []


def test_without_the_right_to_ask_for_subscribers_waiters_confirm(server: Server) -> None:
    server.command(*(word for word in rule_on_the_page() if word != "+pubsub|numsub"))
    url = f"redis://locks:secret@{HOST}:{server.port}/0"
    with lockfast.connect(url) as locks, lockfast.connect(url) as others:
        in_demand(locks, others)
    assert {entry[7].partition(b"|")[0] for entry in server.command("ACL", "LOG")} == {b"pubsub"}


def test_everything_uses_all_that_the_rule_on_the_page_allows(server: Server) -> None:
    use_everything(server.url)
    used = set(re.findall(r"^cmdstat_(\w+)", server.command("INFO", "commandstats").decode(), re.MULTILINE))
    allowed = {word[1:].partition("|")[0] for word in rule_on_the_page() if word.startswith("+")}
    assert allowed - used == set()


def test_a_name_takes_as_many_bytes_as_the_page_says(server: Server) -> None:
    held, free = (range(int(least), int(most)) for least, most in re.findall(r"(\d+) to (\d+) bytes", PAGE.read_text()))
    number = 8192  # a table of the server's that is just full, neither half empty nor about to grow
    with lockfast.connect(server.url) as locks:
        locks.lock("first").acquire()
        before = used_memory(server)
        leases = [locks.lock(f"name-{each:014d}", renew=False).acquire() for each in range(number)]
        assert (used_memory(server) - before) // number in held
        for lease in leases:
            assert lease
            assert lease.release()
        assert (used_memory(server) - before) // number in free


def used_memory(server: Server) -> int:
    return int(re.findall(rb"used_memory:(\d+)", server.command("INFO", "memory"))[0])
