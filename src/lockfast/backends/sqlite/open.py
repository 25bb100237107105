"""From `sqlite:///file.db` to the backend, and between URLs and files.

Decides: which file a URL names.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import SplitResult, quote, unquote

from lockfast._secrets import shown_url
from lockfast._text import shown
from lockfast.backends.opening import BackendFactory, ConnectOptions, refuse_url_options, split_url


def open_url(parts: SplitResult, options: ConnectOptions) -> BackendFactory:
    from lockfast.backends.sqlite.backend import SqliteBackend  # here: `url_of_file` needs no sqlite3
    from lockfast.backends.sqlite.io.driver import open_driver
    from lockfast.backends.sqlite.schema import SCHEMA

    options.refuse_all_but(where="sqlite://")
    refuse_url_options(parts)
    file = _file(parts)
    return lambda world, clock: SqliteBackend(open_driver(file, SCHEMA, world, clock))


def file_of(url: str) -> Path | None:
    """The file that a URL of SQLite names; None for any other URL. Raises ValueError if it names none."""
    parts = split_url(url)
    return _file(parts) if parts.scheme == "sqlite" else None


def url_of_file(file: Path) -> str:
    """The URL of its store. A file name may be any bytes."""
    return f"sqlite:///{quote(os.fsencode(file))}"


def _file(parts: SplitResult) -> Path:
    # sqlite:///relative.db and sqlite:////absolute.db, as SQLAlchemy has them
    path = unquote(parts.path, errors="surrogateescape")[1:]
    if ":memory:" in (parts.netloc, path):
        raise ValueError("SQLite's :memory: is a store of one connection alone; for locks of one process use memory://")
    if parts.netloc or not path:
        raise ValueError(
            f"a SQLite URL is sqlite:///relative.db or sqlite:////absolute.db, not {shown(shown_url(parts))}"
        )
    return Path(path).absolute()
