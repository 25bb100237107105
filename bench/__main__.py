"""`python -m bench [--only NAME] [--series WORDS] [--quick] [--strict]`: ask the questions and keep the answers."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bench import page, plots, results
from bench.harness import Finding, Setting
from bench.peers import Missing
from bench.questions import QUESTIONS
from bench.report import misses, table

Ask = Callable[[str, bool], list[Finding]]  # a question, quick or not


def main(
    arguments: list[str] | None = None, *, ask: Ask | None = None, show: Callable[[Path], None] | None = None
) -> int:
    """0; 1 if a question failed or, with --strict, a bound was not met; 2 if a package is not installed.

    Tests ask and show something else.
    """
    chosen = _parse(arguments)
    answers: dict[str, list[Finding]] = {}
    status = 0
    for question in chosen.only or QUESTIONS:
        print(f"… {question}", file=sys.stderr, flush=True)
        started = time.monotonic()
        try:
            answers[question] = (ask or partial(_ask, series=chosen.series))(question, chosen.quick)
        except Missing as error:
            status = 2
            print(f"bench: {question} is not answered: {error}", file=sys.stderr)
        except Exception:  # one question that cannot be answered does not take the others' answers away
            status = status or 1
            traceback.print_exc()
        else:
            seconds = time.monotonic() - started
            results.write(question, answers[question], chosen.out, quick=chosen.quick, seconds=seconds)
    print(table(answers), misses(answers), sep="\n\n")
    if answers:
        (show or _show)(chosen.out)
    missed = any(finding.miss for findings in answers.values() for finding in findings)
    return status or int(chosen.strict and missed)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", action="append", choices=QUESTIONS, help="just this question; may be given again")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and shorter windows: a first impression")
    parser.add_argument(
        "--series",
        action="append",
        default=[],
        metavar="WORDS",
        help="just the series with these words in their names",
    )
    parser.add_argument("--strict", action="store_true", help="exit 1 if a bound is not met")
    parser.add_argument("--out", type=Path, help=f"folder for results; that of the page is {_shown(results.FOLDER)}")
    chosen = parser.parse_args(arguments)
    in_part = chosen.quick or chosen.series
    chosen.out = chosen.out or (results.QUICK_FOLDER if in_part else results.FOLDER)
    return chosen


def _ask(question: str, quick: bool, series: Sequence[str] = ()) -> list[Finding]:
    with tempfile.TemporaryDirectory(prefix="lockfast-bench-") as folder:
        setting = Setting(Path(folder), quick, tuple(series))
        findings: list[Finding] = importlib.import_module(f"bench.{question}").run(setting)
        return findings


def _show(folder: Path) -> None:
    """Draw what there is in the folder; if it is that of the page, the page shows it."""
    kept = results.read(folder)
    drawn = plots.draw(kept, folder)
    print(f"kept in {_shown(folder)}, with {' and '.join(drawn) or 'no picture'}")
    if folder.resolve() == results.FOLDER.resolve():
        page.PAGE.write_text(page.updated(page.PAGE.read_text(), kept))
        print(f"shown in {_shown(page.PAGE)}")


def _shown(path: Path) -> str:
    return os.path.relpath(path)


if __name__ == "__main__":
    sys.exit(main())
