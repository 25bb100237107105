"""Other people's packages, imported when they are measured.

Neither lockfast nor its tests need them, so a missing one is reported with the command that installs it.
"""

from __future__ import annotations

import importlib
from typing import Any


class Missing(Exception):
    """A package of the `bench` group is not installed."""


def need(module: str) -> Any:
    """The module. Raises Missing, saying what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Missing(f"{module} is not installed; `pip install --group bench` brings it") from error
