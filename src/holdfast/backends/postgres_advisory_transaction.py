"""Advisory locks that end with a transaction of the user's own.

Decides: the statements, and that a wait which fails leaves the transaction as it was: whatever is taken after a
savepoint goes when it is rolled back to, granted in the last moment or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from holdfast._time import boot_now
from holdfast.backends.postgres_advisory_keys import Key, key_of
from holdfast.drivers.postgres_advisory_transaction import Transaction, has_no_transaction, is_timeout, no_transaction

_CLOCK = "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)"
_TAG = "pg_advisory_xact_lock_shared({tag}, CAST(mod(f / 1000000, 2147483648) AS int))"
_TRY = (
    f"SELECT f, {_TAG}, now() FROM (SELECT CASE WHEN pg_try_advisory_xact_lock({{number}}) THEN {_CLOCK} END AS f "
    "OFFSET 0) AS g"
)
_WAIT = (
    f"SELECT f, {_TAG}, now() FROM (SELECT CASE WHEN set_config('lock_timeout', '{{limit}}', true) IS NULL OR "
    f"pg_advisory_xact_lock({{number}}) IS NULL THEN 0 ELSE {_CLOCK} END AS f OFFSET 0) AS g"
)
_LONGEST = 2**31 - 1  # milliseconds that lock_timeout can be


async def take(transaction: Transaction, keys: Sequence[str], wait: float | None) -> tuple[int, str | None]:
    """The fence, or the key that was not to be had. Takes them in the order in which they are given."""
    transaction.must_last()
    try:
        if len(keys) == 1 and (fence := await _try(transaction, key_of(keys[0]))) is not None:
            return fence, None
        if len(keys) == 1 and wait == 0:
            return 0, keys[0]
        return await _take_all(transaction, keys, wait)
    except Exception as error:
        if has_no_transaction(error):
            raise no_transaction() from error
        raise


async def _try(transaction: Transaction, key: Key) -> int | None:
    (fence, _, began), *_ = await transaction.run(_TRY.format(number=key.number, tag=key.tag))
    if fence is not None and transaction.unsure:
        ((now,),) = await transaction.run("SELECT now()")
        if now != began:
            raise no_transaction()
    return None if fence is None else int(fence)


async def _take_all(transaction: Transaction, keys: Sequence[str], wait: float | None) -> tuple[int, str | None]:
    until = None if wait is None else boot_now() + wait
    await transaction.run("SAVEPOINT holdfast")
    ((before,),) = await transaction.run("SELECT current_setting('lock_timeout')")
    fence = 0
    for name in keys:
        key = key_of(name)
        try:
            granted = await _try(transaction, key)
            if granted is None and wait != 0:
                limit = 0 if until is None else max(1, min(_LONGEST, ceil((until - boot_now()) * 1000)))
                rows = await transaction.run(_WAIT.format(limit=limit, number=key.number, tag=key.tag))
                granted = int(rows[0][0])
        except Exception as error:
            if not is_timeout(error):
                raise
            granted = None
        if granted is None:
            await transaction.run("ROLLBACK TO SAVEPOINT holdfast")  # the setting goes back too
            await transaction.run("RELEASE SAVEPOINT holdfast")
            return 0, name
        fence = granted
    await transaction.run(f"SELECT set_config('lock_timeout', '{before}', true)")
    await transaction.run("RELEASE SAVEPOINT holdfast")
    return fence, None
