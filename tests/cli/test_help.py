"""Help can be found in every way that people look for it, and fits a terminal of 80 columns."""

from __future__ import annotations

import pytest

from lockfast.cli import COMMANDS, main

HELPS = [[], *([command] for command in COMMANDS)]


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("words", HELPS, ids=lambda words: " ".join(words) or "overview")
def test_every_help_fits_80_columns(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    wide = [line for line in said(["help", *words], capsys).splitlines() if len(line) > 80]
    assert wide == []


@pytest.mark.parametrize("command", COMMANDS)
def test_help_and_a_command_mean_the_help_of_the_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    own = said([command, "--help"], capsys)
    assert own.startswith(f"usage: lockfast {command} ")
    for word in ("help", "-h", "--help"):
        assert said([word, command], capsys) == own


def test_help_of_what_is_no_command_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "frobnicate"]) == 64
    assert "'frobnicate' is not a command" in capsys.readouterr().err


def test_help_of_help_is_the_overview(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(["help", "help"], capsys) == said(["help"], capsys)


def test_the_help_of_run_says_how_times_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(["help", "run"], capsys)
    assert all(f"{option} TIME " in text for option in ("--ttl", "--wait", "--min-hold", "--kill-after"))
    assert all(unit in text for unit in ("(30, 1.5)", "200ms", "5m", "1h30m"))
