"""`python -m bench [--only NAME] [--quick] [--strict]`: ask the questions, show and keep the answers."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import traceback
from pathlib import Path

from bench.harness import Finding, Setting
from bench.peers import Missing
from bench.report import draw, table, write_json

QUESTIONS = (
    *("uncontended", "contended", "memory", "keeper", "startup", "waiting", "promptness"),
    *("redis_uncontended", "redis_asyncio", "redis_contended", "redis_keeper", "redis_server_cpu"),
    "redlock",
    *("postgres_table", "postgres_snapshot", "postgres_advisory"),
)
RESULTS = Path(__file__).parent / "results"


def main(arguments: list[str] | None = None) -> int:
    """0, unless a question failed or, with --strict, a bound was not met."""
    chosen = _parse(arguments)
    answers: dict[str, list[Finding]] = {}
    failed = False
    for question in chosen.only or QUESTIONS:
        print(f"… {question}", file=sys.stderr, flush=True)
        try:
            answers[question] = _ask(question, chosen.quick)
        except Missing as error:
            print(f"bench: {error}", file=sys.stderr)
            return 2
        except Exception:  # one question that cannot be answered does not take the others' answers away
            failed = True
            traceback.print_exc()
    print(table(answers))
    _keep(answers, chosen.out, "-".join(chosen.only or ["all"]) + ("-quick" if chosen.quick else ""))
    missed = any(finding.within_bound is False for findings in answers.values() for finding in findings)
    return 1 if failed or (chosen.strict and missed) else 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", action="append", choices=QUESTIONS, help="just this question; may be given again")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and shorter windows: a first impression")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a bound is not met")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for JSON and plot (default: %(default)s)")
    return parser.parse_args(arguments)


def _ask(question: str, quick: bool) -> list[Finding]:
    with tempfile.TemporaryDirectory(prefix="lockfast-bench-") as folder:
        findings: list[Finding] = importlib.import_module(f"bench.{question}").run(Setting(Path(folder), quick))
        return findings


def _keep(answers: dict[str, list[Finding]], folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(answers, folder / f"{name}.json")
    draw(answers, folder / f"{name}.png")
    print(f"kept in {os.path.relpath(folder)}: {name}.json and {name}.png")


if __name__ == "__main__":
    sys.exit(main())
