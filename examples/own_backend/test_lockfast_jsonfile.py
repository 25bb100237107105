"""The contract of all backends, on this one: `pip install -e . 'lockfast[testing]' && pytest`.

A story that needs what the backend's capabilities say it lacks is not collected.
"""

from __future__ import annotations

import json
from pathlib import Path

from lockfast_jsonfile import JsonFileBackend

from lockfast.backend import Backend, Clock, World
from lockfast.testing.contract import ContractSuite


class TestJsonFile(ContractSuite):
    capabilities = JsonFileBackend.capabilities

    def make_backend(self, tmp_path: Path, world: World, clock: Clock | None) -> Backend:
        return JsonFileBackend(str(tmp_path / "locks.json"), world, clock)

    def records(self, tmp_path: Path) -> int:
        return len(json.loads((tmp_path / "locks.json").read_text())["records"])
