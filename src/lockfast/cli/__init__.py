"""The command line: `lockfast run`, `ls`, `show`, `break`, `doctor`, `migrate` and `demo`.

Decides: which command is meant, and what the shell sees when one fails: one line and an exit code.
Leaves to one file for each command: everything else. A command's file is imported when it is asked for, because
`lockfast run` stands in front of another program and must not delay it.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence

from lockfast._text import shown

try:
    from lockfast._debug import debug_is_on
    from lockfast.cli import exits
except KeyboardInterrupt:  # so early that no handler of ours is there
    sys.exit(130)

COMMANDS = {
    "run": "run a command while holding a lock",
    "ls": "list the locks that are held or waited for",
    "show": "show who holds a lock and how many wait for it",
    "break": "end every hold of a lock",
    "doctor": "check the servers that the locks rest on",
    "demo": "watch processes compete for a lock, die, stall and take over",
    "migrate": "make the tables that postgresql:// needs, or update them",
}

_HELP = ("-h", "--help", "help")


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code. Says what went wrong in one line on stderr and never shows a traceback."""
    try:
        return _main(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:  # wherever it fell, in the middle of an explanation too
        if debug_is_on():
            raise
        return exits.INTERRUPTED


def _main(words: list[str]) -> int:
    try:
        _write_whatever_comes()
        code = _dispatch(words)
        if sys.stdout is not None:  # it is None if our parent process closed it
            sys.stdout.flush()  # here, where a reader that has gone away can still be answered for
        return code
    except SystemExit as end:  # argparse after --help, and our own parser after an error
        return end.code if isinstance(end.code, int) else exits.USAGE
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return _explain(error)


def _write_whatever_comes() -> None:
    """What a stream's encoding does not have is written as an escape: no name may keep us from reporting a lock."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not if a caller put something else in its place, or closed it
            stream.reconfigure(errors="backslashreplace")


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in _HELP:
        return _help(words)
    if words[0] in ("-V", "--version"):
        import lockfast

        print(f"lockfast {lockfast.__version__}")
        return exits.OK
    if words[0] not in COMMANDS:
        known = ", ".join(COMMANDS)
        raise ValueError(f"{shown(words[0])} is not a command; known are {known}, and options come after the command")
    return _command(words[0])(words[1:])


def _help(words: list[str]) -> int:
    """`help`, `help run`, `-h run`."""
    if words[1:] and words[1] not in _HELP:
        return _dispatch([words[1], "--help"])
    from lockfast.cli.options import overview

    print(overview(COMMANDS), file=sys.stdout if words else sys.stderr)
    return exits.OK if words else exits.USAGE


def _command(name: str) -> Callable[[list[str]], int]:
    if name == "run":
        from lockfast.cli.run import run

        return run
    if name == "demo":
        from lockfast.cli.demo import demo

        return demo
    if name == "doctor":
        from lockfast.cli.doctor import doctor

        return doctor
    if name == "migrate":
        from lockfast.cli.migrate import migrate

        return migrate
    from lockfast.cli import inspection

    return {"ls": inspection.list_locks, "show": inspection.show, "break": inspection.break_}[name]


def _explain(error: BaseException) -> int:
    """Say what happened, and choose the exit code that the documentation promises."""
    if debug_is_on():
        raise error
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter tries to flush once more and complains
        return exits.BROKEN_PIPE
    from lockfast.cli.options import complain
    from lockfast.cli.signals import Interrupted

    if isinstance(error, Interrupted):
        return exits.SIGNAL + error.signum
    code, text = exits.meaning(error)
    complain(text)
    return code
