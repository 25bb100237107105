"""The lock table answers every verb as the reference does, whatever is asked in whatever order, as time passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockfast._ids import new_claim_id
from lockfast._model import Claim
from lockfast.backends.postgres_table.io.batching import TableRequest, replies_of, statement_for
from lockfast.backends.postgres_table.io.session import PreparedStatement
from tests.backends.test_model import Machine, run_machine
from tests.scale import by_scale
from tests.servers.postgres_tables import table


class PostgresTableMachine(Machine):
    hands_over = True

    def where(self) -> str:
        return table().url(Path(self.folder.name))

    def handed(self) -> list[Claim]:
        return [claim for claim in self.claims if claim.id in self.backend._handed]  # type: ignore[attr-defined]


class BatchMachine(PostgresTableMachine):
    """Each request travels with others, which ask for nothing that is there."""

    others = 1

    def __init__(self) -> None:
        super().__init__()
        driver: Any = self.backend._driver  # type: ignore[attr-defined]
        alone, many = driver.ask, driver._many

        async def ask(request: TableRequest, within: float) -> Any:
            if not request.kind:
                return await alone(request, within)
            batch = [*self._others(request), request]
            statement, params = statement_for(batch, many)
            texts = [None if one is None else one.decode() for one in params]
            return replies_of(batch, await alone(TableRequest(statement, texts), within), many)[-1]

        driver.ask = ask

    def _others(self, request: TableRequest) -> list[TableRequest]:
        columns = ("", "elsewhere", new_claim_id(), "0.0", "", "")
        return [TableRequest(PreparedStatement(b"", b""), columns, request.tail, "release") for _ in range(self.others)]


class LargeBatchMachine(BatchMachine):
    others = 10


def test_the_lock_table_answers_as_the_reference_does() -> None:
    run_machine(PostgresTableMachine, 10)


@pytest.mark.slow
@pytest.mark.timeout(by_scale(900, soak=3600))
@pytest.mark.parametrize("machine", [PostgresTableMachine, BatchMachine, LargeBatchMachine])
def test_the_lock_table_answers_as_the_reference_does_in_many_runs(machine: type[Machine]) -> None:
    run_machine(machine, by_scale(15, soak=500))
