"""The requests of one verb share its time; rows that another transaction has locked have a part of it."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from lockfast import _time
from lockfast._model import Claim, Renewal, Terms
from lockfast._reentry import run_to_end
from lockfast.backends.postgres.io.refusals import NameInUse
from lockfast.backends.postgres_table import backend
from lockfast.backends.postgres_table.backend import PostgresTableBackend
from lockfast.backends.postgres_table.requests import Catalogue


def claim(number: int = 0) -> Claim:
    return Claim(f"{number:032}", Terms(f"\x1fx{number}", f"x{number}", "me", 3.0))


class LockedRows(PostgresTableBackend):
    """The first rows of a batch are not locked; each check of another one takes a tenth of a second."""

    def __init__(self, patch: pytest.MonkeyPatch, free: int) -> None:
        self.checks = 0
        self._free = free
        for module in (backend, _time):
            patch.setattr(module, "boot_now", lambda: self.checks / 10)

    async def _renew(self, batch: Sequence[Renewal], patience: str | None, within: float) -> list[bool | None]:
        if patience is None:
            return [*[True] * self._free, *[None] * (len(batch) - self._free)]
        self.checks += 1
        raise NameInUse("another transaction has locked it")


@pytest.mark.parametrize(("leases", "checks"), [(3, 2), (500, 5)])
def test_a_renewal_answers_in_time_though_all_other_rows_are_locked(
    leases: int, checks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = LockedRows(monkeypatch, free=1)
    batch = [Renewal(claim(number), 3.0, number) for number in range(leases)]
    assert run_to_end(table.renew(batch, within=1.0)) == [True, *[None] * (leases - 1)]
    assert table.checks == checks


@pytest.mark.parametrize(("leases", "checks"), [(1, 1), (500, 10)])
def test_a_renewal_has_all_of_its_time_if_every_row_is_locked(
    leases: int, checks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = LockedRows(monkeypatch, free=0)
    with pytest.raises(NameInUse):
        run_to_end(table.renew([Renewal(claim(number), 3.0, number) for number in range(leases)], within=1.0))
    assert table.checks == checks


class SlowDriver:
    """Everything takes 0.6 s."""

    now = None
    cannot_listen = False

    def __init__(self, patch: pytest.MonkeyPatch, answer: Any) -> None:
        self.given: list[float] = []
        self._answer = answer
        for module in (backend, _time):
            patch.setattr(module, "boot_now", lambda: 0.6 * len(self.given))
        self.wakeups = SimpleNamespace(address="here", forget=lambda claim: None)

    async def expect(self, claim: Claim, within: float) -> str:
        self.given.append(within)
        return "here"

    async def ask(self, request: Any, within: float) -> Any:
        self.given.append(within)
        return self._answer


def test_to_observe_has_what_is_left_when_wake_ups_are_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    driver: Any = SlowDriver(monkeypatch, {"changes": [], "retry_after": None})
    run_to_end(PostgresTableBackend(driver, Catalogue("public")).observe(claim(), after=1, within=1.0))
    assert driver.given == pytest.approx([1.0, 0.4])


def test_to_take_back_what_is_in_doubt_has_what_is_left_after_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    driver: Any = SlowDriver(monkeypatch, True)
    table = PostgresTableBackend(driver, Catalogue("public"))
    table._in_doubt.add(claim().id)
    assert run_to_end(table.release(claim(), linger=0.0, within=1.0))
    assert driver.given == pytest.approx([1.0, 0.4])
