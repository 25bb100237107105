"""What all commands share: how options are read, and how a line is printed.

Decides: that a usage error is one line and exit code 64, how times are written, that help fits a terminal of 80
columns, and that nothing which others chose (a name, a holder) can move the reader's cursor or look like a line of
ours.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from lockfast._text import shown
from lockfast.cli import exits

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"([\d.]+)(ms|[smhd])")
TIMES = "A TIME is in seconds (30, 1.5) or written as 200ms, 5m, 1h30m or 1d."


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        # The width is given, or argparse imports half the library to find it out.
        super().__init__(prog, width=80, max_help_position=26)


class Parser(argparse.ArgumentParser):
    """argparse in our manners: no abbreviations, examples kept as written, one line for an error."""

    def __init__(self, command: str, **more: Any) -> None:
        super().__init__(
            prog=f"lockfast {command}",
            allow_abbrev=False,
            formatter_class=_Formatter,
            **more,
        )

    def takes_next(self, word: str) -> bool:
        """Whether the word after this option, or after these one-letter options in one word, is a value of it."""
        if word.startswith("--"):
            return self._has_value(word)
        for number, letter in enumerate(word[1:], 2):
            if self._has_value(f"-{letter}"):
                return number == len(word)
        return False

    def _has_value(self, option: str) -> bool:
        action = self._option_string_actions.get(option)
        return action is not None and action.nargs != 0

    def error(self, message: str) -> NoReturn:
        complain(f"{message} (see {self.prog} --help)")
        raise SystemExit(exits.USAGE)


def seconds(text: str) -> float:
    """`30`, `1.5`, `200ms`, `5m`, `1h30m`: a length of time as it is written on the command line."""
    parts = _PART.findall(text)
    try:
        if parts and "".join(number + unit for number, unit in parts) == text:
            return sum(float(number) * _UNITS[unit] for number, unit in parts)
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a time; write 30, 1.5, 200ms, 5m or 1h30m") from None


def code(text: str) -> int:
    """An exit code that a shell can see."""
    if not text.isdecimal() or int(text) > 255:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not an exit code from 0 to 255")
    return int(text)


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """The first row is the heading; columns are as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def complain(text: str) -> None:
    """One line on stderr, in our name. Does nothing if stderr is closed."""
    if sys.stderr is None:  # closed by our parent process
        return
    try:
        print(f"lockfast: {visible(' '.join(text.splitlines()))}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return


def visible(text: str) -> str:
    """The text without anything that a terminal obeys or does not show: controls, turns of direction, line ends."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def unmistakable(text: str) -> str:
    """`visible`, and no two texts look the same by their escapes."""
    return visible(text.replace("\\", "\\\\"))


class _Warnings(logging.Handler):
    """What no event reports: that a store is unsafe, or its server badly set up."""

    def emit(self, record: logging.LogRecord) -> None:
        if not hasattr(record, "lock_kind"):
            complain(record.getMessage())


_WARNINGS = _Warnings(logging.WARNING)


def report_warnings() -> None:
    """Print the log's warnings to stderr. Losses have messages of their own, so they are left out."""
    logging.getLogger("lockfast").addHandler(_WARNINGS)


def keep_logs_quiet() -> None:
    """The demo prints its own messages, so the logger's last resort must not print them again."""
    logging.getLogger("lockfast").addHandler(logging.NullHandler())


def overview(commands: dict[str, str]) -> str:
    """What `lockfast --help` says."""
    lines = "\n".join(f"  {name:<8} {what}" for name, what in commands.items())
    return f"""usage: lockfast COMMAND [OPTION…]

Locks between processes and hosts, that are right by default.

commands:
{lines}

`lockfast help COMMAND` shows more. `lockfast --version` shows the version.

examples:
  lockfast run nightly-report ./report.sh     wait for the lock, then run
  lockfast run --wait 0 nightly-report ./report.sh
                                              exit 75 at once if it is held
  lockfast ls                                 who holds what
  lockfast show nightly-report --json
  lockfast break nightly-report

exit codes:
  0    done                          74        the lease was lost
  1    no (see the command's help)   75        the lock was not acquired in time
  64   wrong usage                   126, 127  cannot execute, not found
  69   the store cannot be asked     128+n     ended by signal n

environment:
  LOCKFAST_URL         where the locks are, if --url is not given
  LOCKFAST_SYSTEM_URL  where they are with --system, in place of
                       /var/lib/lockfast
  LOCKFAST_DEBUG       if set and not 0, an error shows where it came from"""
