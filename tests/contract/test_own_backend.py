"""The example of a backend from outside keeps the contract, by the test that stands beside it.

A backend that lockfast does not know needs no more than `make_backend` to be held to the contract.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lockfast.testing.contract.story import SUBJECTS
from tests.scale import QUICK, SOAK

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "own_backend"
sys.path.append(str(EXAMPLE))

if not QUICK:
    import test_lockfast_jsonfile as example

    class TestOwnBackend(example.TestJsonFile):
        make_backend = example.TestJsonFile.make_backend
        subjects = SUBJECTS if SOAK else frozenset({"store"})
