"""Every chapter of the contract on every backend of the table, in every world that its stories are for."""

from __future__ import annotations

from tests.contract.backends import BACKENDS
from tests.contract.suites import at_scale, classes

for _row in filter(None, map(at_scale, BACKENDS)):
    globals().update(classes(_row, __name__))
