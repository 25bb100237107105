"""The lock table answers every verb as the reference does, whatever is asked in whatever order, as time passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.test_model import Machine, run_machine
from tests.servers.postgres_tables import table


class PostgresTableMachine(Machine):
    def where(self) -> str:
        return table().url(Path(self.folder.name))


def test_the_lock_table_answers_as_the_reference_does() -> None:
    run_machine(PostgresTableMachine, 10)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_lock_table_answers_as_the_reference_does_in_many_runs() -> None:
    run_machine(PostgresTableMachine, 80)
