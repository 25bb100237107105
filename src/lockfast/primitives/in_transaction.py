"""Locks inside a transaction of the caller's own: commit and rollback end them.

Decides: what may be asked for, and that several names are taken in one order.
Leaves to the backend: how. There is no lease: nothing has to be kept, renewed or released.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockfast._ids import new_claim_id
from lockfast._model import Busy, Claim, Terms
from lockfast._text import shown
from lockfast._time import Seconds, length
from lockfast.backends.optional import LocksInTransactions, name_on
from lockfast.engine.core import Engine
from lockfast.errors import BackendUnavailable
from lockfast.primitives.lock import timed_out
from lockfast.primitives.names import LockName, qualify, valid


async def in_transaction(
    engine: Engine, namespace: str, connection: object, names: Sequence[LockName], wait: Seconds | None
) -> int:
    """The fence of what is done in that transaction from now on."""
    backend = engine.backend
    if not isinstance(backend, LocksInTransactions):
        raise engine.unsupported("locks inside a transaction; postgresql+advisory:// has them")
    if not names:
        raise ValueError("in_transaction() takes at least one name")
    valid_names = [valid(name_on(backend, name)) for name in names]
    keys = sorted({qualify(namespace, name): name for name in valid_names}.items())
    if len(keys) < len(names):
        raise ValueError(f"in_transaction() takes each name once; these are {', '.join(map(shown, names))}")
    limit = None if wait is None else length(wait, "wait", zero=True)
    engine.must_be_open()
    if limit is None:
        for key, name in keys:
            engine.must_not_wait_for_itself(Claim(new_claim_id(), Terms(key, name, engine.holder, 1.0)))
    started = engine.now()
    try:
        fence, missing, holder = await backend.in_transaction(connection, dict(keys), limit)
    except BackendUnavailable as error:
        raise engine.outage.final(error) from error.__cause__
    if missing is not None:
        name = dict(keys)[missing]
        then = "; none of what was asked for is held, and the transaction can go on"
        raise timed_out(name, Busy(0, 0.0, holder), limit, engine.now() - started, then)
    return fence
