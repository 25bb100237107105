"""Every chapter of the contract on every backend of the table, in every world that its stories are for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.testing.contract import CHAPTERS, Promise
from tests.contract.backends import BACKENDS, Row


def _on(backend: Row, chapter: type[Promise]) -> type[Promise]:
    def url(self: Any, tmp_path: Path) -> str:
        return backend.url(tmp_path)

    def records(self: Any, tmp_path: Path) -> int:
        return backend.records(tmp_path)

    told = {"url": url, "records": records, "can": backend.can, "__module__": __name__}
    return type(f"Test{chapter.__name__}_{backend.name}", (chapter,), told)


for _backend in BACKENDS:
    for _chapter in CHAPTERS:
        _made = _on(_backend, _chapter)
        globals()[_made.__name__] = _made
