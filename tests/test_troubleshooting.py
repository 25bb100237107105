"""docs/troubleshooting.md has a heading for each text that lockfast raises or warns with, and no other.

Decides: which texts of the source are errors for users. A heading has `…` for what differs, and may stop early.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import lockfast
from lockfast import AcquireTimeout, BackendUnavailable, LimitMismatch, LockError
from tests.servers.server import free_port

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "lockfast"
PAGE = ROOT / "docs" / "troubleshooting.md"

RAISED = {"BackendUnavailable", "LeaseLost", "LimitMismatch", "LockError", "NotHeld", "SelfDeadlock", "StaleFence"}
RAISED |= {"AcquireTimeout", "Conflict", "Unsupported", "logger.warning"}
PARTS = {"… …; nothing was sent", "…: fewer than … of the … lock servers … (…)"}  # of which callers say the rest
COMPOSED = {
    "lock '…' is still held by '…' after …": AcquireTimeout,
    "'…' is in use with limit …, and was asked for with limit …": LimitMismatch,
    "cannot reach …": BackendUnavailable,
    "lock '…' cannot be asked for: fewer than … of the … lock servers answer": BackendUnavailable,
}  # of parts that no one place of the source has: these are raised
SERVERS_OWN_WORDS = {"READONLY, LOADING, OOM, CLUSTERDOWN", "NOPERM, NOAUTH, WRONGPASS"}


def headings() -> list[str]:
    return [line[4:] for line in PAGE.read_text().splitlines() if line.startswith("### ")]


def template(node: ast.expr) -> str | None:
    """The text with `…` for each part that differs; None if none of it is known."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%[srd]", "…", node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)  # type: ignore[misc]
    if isinstance(node, ast.BinOp):
        return f"{template(node.left) or '…'}{template(node.right) or '…'}"
    return None


def sources() -> Iterator[ast.AST]:
    for path in sorted(SOURCE.rglob("*.py")):
        if not path.is_relative_to(SOURCE / "testing") and not path.is_relative_to(SOURCE / "cli"):
            yield from ast.walk(ast.parse(path.read_text()))


def says(heading: str, text: str) -> bool:
    """Whether a text begins as the heading does; quotation marks around what differs are repr's."""
    words = [re.escape(part) for part in re.split("'?…'?", heading)]
    return re.match(".*".join(words), text, re.DOTALL) is not None


def test_each_heading_is_a_text_of_the_source() -> None:
    known = {text for node in sources() if isinstance(node, ast.expr) and (text := template(node))}
    to_find = set(headings()) - SERVERS_OWN_WORDS - set(COMPOSED)
    assert not [heading for heading in sorted(to_find) if not any(says(heading, text) for text in known)]


def test_the_texts_that_are_put_together_are_raised() -> None:
    servers = ",".join(f"127.0.0.1:{free_port()}" for _ in range(3))
    raised: list[LockError] = []
    with (
        lockfast.connect("memory://troubleshooting") as locks,
        lockfast.connect(f"redis://127.0.0.1:{free_port()}", patience=0.1) as no_server,
        lockfast.connect(f"redlock://{servers}", patience=0.1) as no_quorum,
        locks.lock("report"),
        locks.semaphore("pool", limit=2),
    ):
        for lock in (
            locks.lock("report", wait=0.01),
            locks.semaphore("pool", limit=3, wait=0),
            no_server.lock("report"),
            no_quorum.lock("report"),
        ):
            with pytest.raises(LockError) as info, lock:
                pass
            raised.append(info.value)
    for (heading, kind), error in zip(COMPOSED.items(), raised, strict=True):
        assert heading in headings()
        assert isinstance(error, kind)
        assert says(heading, str(error))


def test_each_error_has_a_heading() -> None:
    missing = [
        text
        for node in sources()
        if isinstance(node, ast.Call) and node.args and ast.unparse(node.func) in RAISED
        if (text := template(node.args[0])) and len(text.replace("…", "").strip()) > 15
        if text not in PARTS and not any(says(heading, text) for heading in headings())
    ]
    assert not missing, "\n".join(missing)
