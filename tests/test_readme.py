"""What the documentation shows is what happens: its code is run, block by block.

The convention for README.md and all pages of docs/:

- A ```python block is run by itself, as a file of its own, in an empty folder, with `LOCKFAST_URL` naming a fresh
  SQLite file there. It must end without an error; a block may use `await` at its outermost level.
- The word `continued` after the language (```python continued) runs a block in the namespace of the one above it.
- `redis://localhost:6379/0`, in a block or a command, becomes a server of the tests with an empty database: one for
  each block with its continuations, and one for the commands of a page.
- `//localhost/app` behind a scheme of PostgreSQL becomes a database of the tests with an empty lock table, likewise.
- The word `sketch` (```python sketch) shows code that cannot run by itself, such as a call to a server that a test
  does not have; it must still compile.
- In a ```console block every line that begins with `$ lockfast` is run as a command, in order and in one folder for
  each page; it must end with exit code 0, or with N where the comment on the line is `# exits N` or `# exits N: why`.
  A `./script.sh` that it names exists there and does nothing. The lines that follow are its output; `…` matches
  anything. Lines that begin with `$ psql` are run too. Others (`$ pip install`, `$ make`) are shown and not run.
- Blocks in other languages are ignored.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import shlex
import sqlite3
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType

import pytest
import redis
import sqlalchemy

import lockfast
from tests.servers import shared
from tests.servers.postgres_programs import programs
from tests.servers.postgres_shared import SharedPostgres
from tests.servers.postgres_tables import empty_table

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

REDIS = "redis://localhost:6379/0"  # as the pages write it
_POSTGRES = re.compile(r"(\bpostgresql(?:\+\w+)?)://localhost/app\b")
_databases = SharedPostgres("pages", empty_table)

_BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: str
    line: int  # of its first line of code, for the error message
    language: str
    words: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Command:
    """One command of a console block, and the output that the page shows."""

    arguments: tuple[str, ...]
    exits: int
    prints: str


def blocks_of(page: str, text: str) -> list[Block]:
    return [
        Block(page, text.count("\n", 0, found.start()) + 2, found[1], tuple(found[2].split()), found[3])
        for found in _BLOCK.finditer(text)
    ]


def chains(blocks: list[Block]) -> list[list[Block]]:
    """Python blocks that are run together: each with the continuations that follow it."""
    found: list[list[Block]] = []
    for block in blocks:
        if block.language == "python" and "sketch" not in block.words:
            if "continued" in block.words:
                assert found, f"{block.page}:{block.line} continues nothing"
                found[-1].append(block)
            else:
                found.append([block])
    return found


def commands_of(block: Block) -> list[Command]:
    found: list[Command] = []
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        line, _, output = part.partition("\n")
        arguments = tuple(shlex.split(line, comments=True))
        exits = re.search(r"# exits (\d+)(:.*)?$", line)
        if arguments and arguments[0] in ("lockfast", "psql"):
            found.append(Command(arguments, int(exits[1]) if exits else 0, output.strip()))
    return found


def at_a_server(text: str, folder: Path) -> str:
    """The same text with the URLs of servers of the tests, which start when a page first names them."""
    if REDIS in text:
        text = text.replace(REDIS, shared.valkey().url(folder))
    return _POSTGRES.sub(lambda found: found[1] + _databases.url(folder).removeprefix("postgresql"), text)


def compiled(block: Block) -> CodeType:
    """With its line numbers on the page, so that a traceback leads there."""
    text = "\n" * (block.line - 1) + block.text
    code: CodeType = compile(text, block.page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return code


def run_chain(chain: list[Block]) -> None:
    """One namespace and, if anything is awaited, one event loop for all blocks of the chain.

    An example may leave its connections open, as a program does that uses them until it ends; they are closed here.
    """
    namespace: dict[str, object] = {"__name__": "__main__"}
    with asyncio.Runner() as runner:
        for block in chain:
            result = eval(compiled(block), namespace)
            if inspect.iscoroutine(result):
                runner.run(result)
        for left in namespace.values():
            if isinstance(left, lockfast.Locks | sqlite3.Connection | redis.Redis):
                left.close()
            elif isinstance(left, sqlalchemy.Engine):
                left.dispose()
            elif isinstance(left, lockfast.aio.AsyncLocks):
                runner.run(left.close())


def run_command(command: Command, folder: Path) -> str:
    for script in (argument for argument in command.arguments if argument.startswith("./")):
        (folder / script).write_text("#!/bin/sh\n")
        (folder / script).chmod(0o755)
    program, *arguments = (at_a_server(argument, folder) for argument in command.arguments)
    words = [str(programs() / "psql"), "-X"] if program == "psql" else [sys.executable, "-m", "lockfast"]
    done = subprocess.run(
        [*words, *arguments],
        cwd=folder,
        env={**os.environ, "LOCKFAST_URL": f"sqlite:///{folder / 'locks.db'}", "NO_COLOR": "1", "COLUMNS": "100"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == command.exits, f"{shlex.join(command.arguments)} exits {done.returncode}:\n{done.stdout}"
    return done.stdout


def prints_as_shown(shown: str, printed: str) -> bool:
    pattern = r".*?".join(re.escape(piece.strip()) for piece in shown.split("…"))
    spaces = re.sub(r"(\\\s|\\?\n|\s)+", r"\\s+", pattern)
    return not shown or re.fullmatch(spaces, printed.strip(), re.DOTALL) is not None


def _page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


BLOCKS = {_page_name(page): blocks_of(_page_name(page), page.read_text()) for page in PAGES}
COMMANDS = {
    page: [command for block in blocks if block.language == "console" for command in commands_of(block)]
    for page, blocks in BLOCKS.items()
}


# The promises


@pytest.mark.slow
@pytest.mark.parametrize("page", BLOCKS)
def test_every_block_of_python_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, chain in enumerate(chains(BLOCKS[page])):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        monkeypatch.setenv("LOCKFAST_URL", f"sqlite:///{folder / 'locks.db'}")
        run_chain([replace(block, text=at_a_server(block.text, folder)) for block in chain])


def test_every_block_of_python_compiles() -> None:
    for block in (block for blocks in BLOCKS.values() for block in blocks if block.language == "python"):
        compiled(block)


@pytest.mark.slow
@pytest.mark.parametrize("page", COMMANDS)
def test_every_command_does_what_the_page_shows(page: str, tmp_path: Path) -> None:
    for command in COMMANDS[page]:
        printed = run_command(command, tmp_path)
        assert prints_as_shown(command.prints, printed), f"{page} shows\n{command.prints}\nbut it prints\n{printed}"


# Each check is able to fail

_PAGE = """
```python
kept = 1
```
```python continued
assert kept == 1
import asyncio
await asyncio.sleep(0)
kept = 2
```
```python continued
assert kept == 2
```
```python sketch
await somewhere.else_()
```
```python
assert "kept" not in globals()
```
```console
$ pip install lockfast
$ lockfast run job -- echo done
done
$ lockfast show nobody  # exits 3: nobody
$ lockfast ls  # exits 75 if the moon is full
$ psql -l
```
"""


def test_blocks_share_a_namespace_only_where_they_say_so() -> None:
    found = chains(blocks_of("page", _PAGE))
    assert [len(chain) for chain in found] == [3, 1]
    for chain in found:
        run_chain(chain)


def test_a_block_that_fails_is_noticed_at_its_line() -> None:
    [chain] = chains(blocks_of("page", "text\n\n```python\nx = 1\nassert x == 2\n```\n"))
    with pytest.raises(AssertionError) as caught:
        run_chain(chain)
    assert caught.traceback[-1].lineno + 1 == 5


def test_the_redis_of_a_page_is_a_real_and_empty_one(tmp_path: Path) -> None:
    [chain] = chains(blocks_of("page", f"```python\nurl = {REDIS!r}\n```\n"))
    text = at_a_server(chain[0].text, tmp_path)
    assert REDIS not in text
    assert at_a_server("redis://elsewhere:6379/0", tmp_path) == "redis://elsewhere:6379/0"
    with lockfast.connect(text.split("'")[1]) as locks, locks.lock("x"):
        assert [info.name for info in locks.list()] == ["x"]


def test_the_postgres_of_a_page_is_a_real_and_empty_one(tmp_path: Path) -> None:
    assert at_a_server("postgresql://localhost/apple", tmp_path) == "postgresql://localhost/apple"
    advisory = at_a_server("postgresql+advisory://localhost/app", tmp_path)
    assert advisory.startswith("postgresql+advisory://lockfast@")
    with lockfast.connect(at_a_server("postgresql://localhost/app", tmp_path)) as locks, locks.lock("x"):
        assert [info.name for info in locks.list()] == ["x"]


def test_commands_are_distinguished_from_text_that_is_only_shown() -> None:
    [console] = [block for block in blocks_of("page", _PAGE) if block.language == "console"]
    assert commands_of(console) == [
        Command(("lockfast", "run", "job", "--", "echo", "done"), 0, "done"),
        Command(("lockfast", "show", "nobody"), 3, ""),
        Command(("lockfast", "ls"), 0, ""),
        Command(("psql", "-l"), 0, ""),
    ]


@pytest.mark.slow
def test_a_command_that_exits_with_another_code_than_shown_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="exits"):
        run_command(Command(("lockfast", "no-such-command"), 0, ""), tmp_path)


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("done", "done\n", True),
        ("done", "gone\n", False),
        ("a  b\nc", "a b\nc\n", True),
        ("fence …, held", "fence 17, held\n", True),
        ("fence …, held", "fence 17, lost\n", False),
        ("", "anything", True),
    ],
)
def test_output_is_compared_except_for_the_parts_that_the_page_leaves_open(
    shown: str, printed: str, same: bool
) -> None:
    assert prints_as_shown(shown, printed) is same
