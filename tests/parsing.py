"""Parsed files, for the tests of the shape of the house.

Decides: that the garbage collector rests meanwhile. A syntax tree has thousands of objects and no garbage, and to look
through them again and again takes longer than to parse.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from contextlib import contextmanager


def nodes_of(text: str) -> tuple[ast.Module, list[ast.AST]]:
    """The tree, and all of its nodes."""
    with collector_at_rest():
        tree = ast.parse(text)
        return tree, list(ast.walk(tree))


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """No garbage is collected in this block: for many files at once."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
