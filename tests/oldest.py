"""The oldest client libraries that pyproject.toml allows, for `make oldest`.

`python -m tests.oldest` prints them as requirements for pip; `--installed` fails unless just these are installed.
Needs the standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

EXTRAS = ("redis", "postgres", "prometheus", "otel")  # those that bring a client library


def oldest() -> list[str]:
    """Such as `redis==5.0`: the lower bound of each requirement."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    return [
        requirement.replace(">=", "==") for extra in EXTRAS for requirement in project["optional-dependencies"][extra]
    ]


def other_than(requirements: list[str]) -> list[str]:
    """What is installed in another version, or in a later one than asked for."""
    found = []
    for requirement in requirements:
        name, wanted = re.sub(r"\[.*\]", "", requirement).split("==")
        installed = version(name)
        if installed != wanted and installed.removesuffix(".0") != wanted:
            found.append(f"{name} {installed} instead of {wanted}")
    return found


def main(words: list[str]) -> int:
    if words != ["--installed"]:
        print(*oldest())
        return 0
    if found := other_than(oldest()):
        print("not the oldest clients:", *found, sep="\n  ", file=sys.stderr)
        return 1
    print("with", *oldest())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
