"""What is sent to the server as a script."""

from __future__ import annotations

from importlib.resources import files

import pytest

from lockfast.backends.redis.requests import CONSTANTS, source

SCRIPTS = sorted(
    f"{folder}{file.name.removesuffix('.lua')}"
    for folder, package in {"": "redis", "redlock/": "redlock"}.items()
    for file in (files(f"lockfast.backends.{package}") / "scripts").iterdir()
)


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_constant_and_no_part_is_left_to_be_put_in(name: str) -> None:
    text = source(name)
    words = {word.strip("(),'") for word in text.split()}
    assert not words & set(CONSTANTS)
    assert not [line for line in text.splitlines() if line.startswith("--@")]


def test_all_constants_are_used() -> None:
    texts = "".join(
        file.read_text()
        for package in ("redis", "redlock")
        for file in (files(f"lockfast.backends.{package}") / "scripts").iterdir()
    )
    assert [constant for constant in CONSTANTS if constant not in texts] == []
