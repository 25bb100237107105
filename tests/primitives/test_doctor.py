"""`locks.doctor()`: what it reports of the servers that the locks rest on, and when locks can be acquired."""

from __future__ import annotations

import asyncio
import json

import pytest

import lockfast
from lockfast import Diagnosis, Health

WELL = Health("a", reachable=True, latency=0.001)
GONE = Health("b", reachable=False, error="the lock server b cannot be connected to")
YOUNG = Health("c", reachable=True, latency=0.001, excluded_for=3.0)
WRONG = Health("d", reachable=True, error="the lock server d is a replica")


@pytest.mark.parametrize(
    ("servers", "works"),
    [
        ([WELL], True),
        ([GONE], False),
        ([WELL, WELL, GONE], True),
        ([WELL, GONE, GONE], False),
        ([WELL, WELL, GONE, GONE], False),
        ([WELL, WELL, YOUNG], True),
        ([WELL, YOUNG, WRONG], False),
    ],
)
def test_more_than_half_of_the_servers_must_count(servers: list[Health], works: bool) -> None:
    assert Diagnosis(tuple(servers)).works is works


def test_a_diagnosis_is_ready_for_json() -> None:
    report = json.loads(json.dumps(Diagnosis((WELL, GONE)).as_dict()))
    assert report["works"] is False
    assert [server["counts"] for server in report["servers"]] == [True, False]
    assert report["servers"][1]["error"] == GONE.error


def test_a_store_of_one_answers_for_itself() -> None:
    with lockfast.connect("memory://doctor") as locks:
        (server,) = locks.doctor().servers
        assert server.where == "memory://doctor"
        assert server.counts
        assert server.latency is not None
        assert locks.list() == []


def test_a_server_that_is_gone_is_reported_and_not_raised() -> None:
    async def ask() -> Diagnosis:
        async with lockfast.aio.connect("redis://127.0.0.1:1") as locks:
            return await locks.doctor()

    diagnosis = asyncio.run(ask())
    assert not diagnosis.works
    (server,) = diagnosis.servers
    assert not server.reachable
    assert "cannot reach redis://127.0.0.1:1/0: connection refused" in server.error
