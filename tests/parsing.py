"""Parsed files, for the tests of the shape of the house.

Decides: that the garbage collector rests meanwhile. A syntax tree has thousands of objects and no garbage, and to look
through them again and again takes longer than to parse.
"""

from __future__ import annotations

import ast
import gc


def nodes_of(text: str) -> tuple[ast.Module, list[ast.AST]]:
    """The tree, and all of its nodes."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        tree = ast.parse(text)
        return tree, list(ast.walk(tree))
    finally:
        if was_enabled:
            gc.enable()
