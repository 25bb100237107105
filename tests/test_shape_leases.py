"""No module but `engine.lease` writes a field of a lease: other modules call a method there.

Decides: what counts as such a write. Python has no types here, so a field of the same name on a class of the module's
own is not one, unless the variable is called a lease.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from lockfast.engine.lease import Lease
from tests.test_shape import MODULES, Module

FIELDS = frozenset(Lease.__slots__)


def writes_to_a_lease(modules: dict[str, Module]) -> list[str]:
    return [
        f"{module.name}:{node.lineno} writes {ast.unparse(node)}"
        for module in modules.values()
        if module.name != "engine.lease"
        for node in _written(module)
    ]


def _written(module: Module) -> Iterator[ast.Attribute]:
    own = {field for kind in module.nodes if isinstance(kind, ast.ClassDef) for field in _fields(kind)}
    leases = [
        kind
        for kind in module.nodes
        if isinstance(kind, ast.ClassDef) and any(ast.unparse(base).endswith("Lease") for base in kind.bases)
    ]
    selves = {id(node) for kind in leases for node in ast.walk(kind) if isinstance(node, ast.Attribute)}
    for node in module.nodes:
        if not (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del) and node.attr in FIELDS):
            continue
        of = ast.unparse(node.value)
        if of == "self":
            if id(node) in selves:
                yield node
        elif "lease" in of or node.attr not in own:
            yield node


def _fields(kind: ast.ClassDef) -> Iterator[str]:
    """What the class itself says that it has."""
    for node in ast.walk(kind):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def test_only_the_module_of_leases_writes_to_a_lease() -> None:
    assert writes_to_a_lease(MODULES) == []


@pytest.mark.parametrize(
    "text",
    [
        "def f(lease): lease._state = 'lost'",
        "def f(entry): entry.lease._depth += 1",
        "def f(kept, guard, call): kept._guard, x = guard, call",
        "def f(lease): del lease._body",
        "class Kept:\n    def __init__(self, lease): self._deadline = lease._deadline = 0",
        "class AsyncLease(Lease):\n    def f(self): self._ttl = 1",
    ],
)
def test_a_planted_write_is_found(text: str) -> None:
    assert len(writes_to_a_lease({"primitives.planted": Module("primitives.planted", text)})) == 1


def test_a_field_of_another_class_is_no_offence() -> None:
    text = "class Several:\n    def __init__(self): self._guard = None\ndef f(several): several._guard = 1"
    assert writes_to_a_lease({"primitives.planted": Module("primitives.planted", text)}) == []
