"""The lock table, and rows that a transaction of another client has locked without their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from lockfast.errors import BackendUnavailable
from lockfast.testing.awaited import AwaitedLease
from lockfast.testing.stage import Stage
from tests.adversity.postgres_table.stage import OnTable
from tests.patience import impatient
from tests.renewals import renew_soon, renewal_state

RENEW = "SELECT lockfast_renew('{\"\"}', %s, %s, %s, '{60}', %s)"
RELEASE = "SELECT lockfast_many(%s, %s, %s, %s, %s, %s, '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}')"


class TestLockedRows(OnTable):
    @contextmanager
    def locked(self, *names: str) -> Iterator[psycopg.Connection[Any]]:
        """A transaction that has locked these rows; it is rolled back by the end."""
        with psycopg.connect(self.server.url) as other:
            other.execute("SELECT FROM distributed_locks WHERE lock_name = ANY (%s) FOR UPDATE", (list(names),))
            yield other
            other.rollback()

    def came_through(self, leases: list[AwaitedLease]) -> Callable[[], bool]:
        """Whether these have been renewed since."""
        before = [lease.raw._deadline for lease in leases]
        return lambda: all(lease.raw._deadline > then for lease, then in zip(leases, before, strict=True))

    async def test_a_locked_row_costs_no_other_lease_of_its_batch_a_renewal(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        leases = [await locks.lock(f"x{number}", ttl=600).take() for number in range(10)]
        stuck, others = leases[4], [lease for lease in leases if lease is not leases[4]]
        with self.locked("x4"):
            renewed, skipped = self.came_through(others), self.came_through([stuck])
            renew_soon(*leases)
            await stage.until(renewed, "the other leases to be renewed")
            await stage.until(lambda: renewal_state(stuck).failures, "the keeper to know that one was not")
            assert not skipped()
            assert stuck.held, "it is not known, which is no loss"
        renew_soon(stuck)
        await stage.until(skipped, "the lease whose row is no longer locked to be renewed")

    async def test_an_extension_whose_row_is_locked_fails_and_the_lease_is_kept(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        lease = await locks.lock("x", ttl=600).take()
        with self.locked("x"), impatient(locks), pytest.raises(BackendUnavailable):
            await lease.extend()
        assert lease.held
        await lease.extend()

    async def test_a_row_that_stays_locked_is_no_error_in_the_log_of_the_server(self, stage: Stage) -> None:
        del stage  # the server alone decides this
        with psycopg.connect(self.server.url, autocommit=True) as renewing:
            fences = {"x": _taken(renewing, "x")}
            with self.locked("x"):
                assert _renewed(renewing, fences, "x", patience=1) == {"in_use": True}
            assert _renewed(renewing, fences, "x", patience=1) == [True]

    async def test_a_locked_row_holds_up_no_other_release_of_its_batch(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        leases = [await locks.lock(f"x{number}", ttl=600).take() for number in range(10)]
        with self.locked("x4") as other:
            releases = [stage.start(lease.release()) for lease in leases]
            await stage.until(lambda: sum(one.done for one in releases) == 9, "all others to be released")
            assert not releases[4].done
            other.rollback()
            assert all([await one.result() for one in releases])
        assert self.held() == 0

    async def test_a_renewal_and_a_batch_of_releases_that_meet_are_no_deadlock(self, stage: Stage) -> None:
        del stage  # the server alone decides this
        with psycopg.connect(self.server.url) as renewing, psycopg.connect(self.server.url) as releasing:
            fences = {name: _taken(renewing, name) for name in ("a", "b", "c", "d", "e")}
            renewing.commit()
            renewing.execute("SET statement_timeout = '60s'")
            assert _renewed(renewing, fences, "a") == [True]
            assert _released(releasing, "b", "c", "d", "e") == [[True] * 4, []]
            assert _renewed(renewing, fences, "b") == [None], "it would wait for the releases, which may wait for it"

    async def test_a_batch_of_releases_soon_gives_up_on_a_locked_row(self, stage: Stage) -> None:
        del stage
        with psycopg.connect(self.server.url, autocommit=True) as releasing:
            for name in ("a", "b", "c", "d"):
                _taken(releasing, name)
            releasing.execute("SET statement_timeout = '60s'")
            with self.locked("b"), pytest.raises(psycopg.errors.LockNotAvailable):
                _released(releasing, "a", "b", "c", "d")
            assert _released(releasing, "a", "b", "c", "d") == [[True] * 4, []]


def _taken(connection: psycopg.Connection[Any], name: str) -> int:
    row = connection.execute("SELECT lockfast_acquire('', %s, %s, 'h', 600)", (name, name)).fetchone()
    assert row is not None
    return int(row[0]["fence"])


def _renewed(
    connection: psycopg.Connection[Any], fences: dict[str, int], name: str, patience: int | None = None
) -> Any:
    row = connection.execute(RENEW, ([name], [name], [fences[name]], patience)).fetchone()
    assert row is not None
    return row[0]


def _released(connection: psycopg.Connection[Any], *names: str) -> Any:
    number, claims = len(names), list(names)
    params = ([""] * number, claims, claims, [0] * number, [""] * number, [""] * number)
    row = connection.execute(RELEASE, params).fetchone()
    assert row is not None
    return row[0]
