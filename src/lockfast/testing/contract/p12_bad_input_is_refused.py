"""Promise 12: bad input gets a clear error before anything is sent."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

import lockfast
from lockfast import aio
from lockfast.errors import LockError
from lockfast.testing.awaited import AwaitedLocks
from lockfast.testing.contract.story import Promise, about
from lockfast.testing.stage import Stage

NO_NAMES = ["", "x" * 256, "x" * 100_000, "a\nb", "a\x00b", "\x1f", "a\x7f", "\ud800", None, 7, b"bytes", ["list"]]
NAMES = ["a", "x" * 255, "order:42", "a b", " ", "ünï/çødé 🔒", "%_*?[]", "';--\"\\"]
NO_LENGTHS = [-1, -0.001, math.nan, math.inf, -math.inf, True, "30", b"30", [], timedelta(seconds=-1)]
NO_TTLS = [*NO_LENGTHS, 0, 0.0, False, None, timedelta(0)]
_circle: list[Any] = []
_circle.append(_circle)
NO_METADATA = [object(), {1, 2}, b"bytes", math.nan, {"a": math.inf}, {(1, 2): 3}, _circle, "x" * 1_000_000]


def _name(value: object) -> str:
    return repr(value)[:20].encode("ascii", "backslashreplace").decode()


class BadInputIsRefused(Promise, about="input"):
    @pytest.mark.parametrize("name", NO_NAMES, ids=_name)
    async def test_a_name_that_is_none(self, stage: Stage, name: Any) -> None:
        locks = stage.locks()
        with pytest.raises(ValueError, match="name"):
            locks.lock(name)
        with pytest.raises(ValueError, match="name"):
            await locks.inspect(name)
        with pytest.raises(ValueError, match="name"):
            await locks.break_lock(name)
        _assert_nothing_sent(locks)

    @pytest.mark.parametrize("ttl", NO_TTLS, ids=_name)
    async def test_a_ttl_that_is_none(self, stage: Stage, ttl: Any) -> None:
        locks = stage.locks()
        with pytest.raises(ValueError, match="ttl"):
            locks.lock("door", ttl=ttl)
        _assert_nothing_sent(locks)

    async def test_a_ttl_that_the_backend_cannot_keep(self, stage: Stage) -> None:
        locks = stage.locks()
        can = locks.faults.capabilities
        for ttl in (can.min_ttl / 2, can.max_ttl * 2):
            with pytest.raises(ValueError, match="ttl"):
                locks.lock("door", ttl=ttl)
        _assert_nothing_sent(locks)

    @pytest.mark.parametrize("wait", NO_LENGTHS, ids=_name)
    async def test_a_wait_that_is_none(self, stage: Stage, wait: Any) -> None:
        locks = stage.locks()
        with pytest.raises(ValueError, match="wait"):
            locks.lock("door", wait=wait)
        _assert_nothing_sent(locks)

    @pytest.mark.parametrize("min_hold", [*NO_LENGTHS, None], ids=_name)
    async def test_a_min_hold_that_is_none(self, stage: Stage, min_hold: Any) -> None:
        locks = stage.locks()
        with pytest.raises(ValueError, match="min_hold"):
            locks.lock("door", min_hold=min_hold)
        _assert_nothing_sent(locks)

    @pytest.mark.parametrize("min_hold", [timedelta.max, 1e12], ids=_name)
    async def test_a_min_hold_that_would_never_end(self, stage: Stage, min_hold: Any) -> None:
        locks = stage.locks()
        with pytest.raises(ValueError, match="min_hold must be at most"):
            locks.lock("door", min_hold=min_hold)
        _assert_nothing_sent(locks)

    @pytest.mark.parametrize("option", ["max_hold", "renew_every"])
    @pytest.mark.parametrize("value", [*NO_LENGTHS, 0, timedelta(0)], ids=_name)
    async def test_a_limit_of_renewals_that_is_none(self, stage: Stage, option: str, value: Any) -> None:
        locks = stage.locks()
        with pytest.raises(ValueError, match=option):
            locks.lock("door", **{option: value})
        _assert_nothing_sent(locks)

    async def test_renewals_too_rare_for_the_ttl_or_for_a_lease_that_is_not_renewed(self, stage: Stage) -> None:
        locks = stage.locks()
        for options in ({"renew_every": 30}, {"renew_every": 5, "renew": False}, {"max_hold": 60, "renew": False}):
            with pytest.raises(ValueError, match="renew"):
                locks.lock("door", ttl=30, **options)
        _assert_nothing_sent(locks)

    @pytest.mark.parametrize("blocking", [5, 0, 1, "no", None, 0.5], ids=_name)
    async def test_a_blocking_that_is_neither_true_nor_false(self, stage: Stage, blocking: Any) -> None:
        locks = stage.locks()
        for lock in (locks.lock("door"), locks.all("door", "gate")):
            with pytest.raises(ValueError, match="blocking"):
                await lock.acquire(blocking)
        _assert_nothing_sent(locks)

    @pytest.mark.parametrize("timeout", [-2, -0.5, math.nan, True, "5"], ids=_name)
    async def test_a_timeout_that_is_none(self, stage: Stage, timeout: Any) -> None:
        locks = stage.locks()
        with pytest.raises(ValueError, match="timeout"):
            await locks.lock("door").acquire(timeout=timeout)
        _assert_nothing_sent(locks)

    async def test_a_timeout_for_a_try_that_does_not_wait(self, stage: Stage) -> None:
        locks = stage.locks()
        with pytest.raises(ValueError, match="timeout"):
            await locks.lock("door").acquire(blocking=False, timeout=5)
        _assert_nothing_sent(locks)

    @pytest.mark.parametrize("ttl", [ttl for ttl in NO_TTLS if ttl is not None], ids=_name)
    async def test_an_extension_that_is_none(self, stage: Stage, ttl: Any) -> None:
        locks = stage.locks()
        lease = await locks.lock("door", ttl=60).take()
        with pytest.raises(ValueError, match="ttl"):
            await lease.extend(ttl)
        assert locks.faults.calls["renew"] == 0
        assert lease.held

    async def test_an_extension_that_the_backend_cannot_keep(self, stage: Stage) -> None:
        locks = stage.locks()
        lease = await locks.lock("door", ttl=60).take()
        can = locks.faults.capabilities
        for ttl in (can.min_ttl / 2, can.max_ttl * 2):
            with pytest.raises(ValueError, match="ttl"):
                await lease.extend(ttl)
        assert locks.faults.calls["renew"] == 0

    @pytest.mark.parametrize("metadata", NO_METADATA, ids=_name)
    async def test_metadata_that_is_not_json_or_too_much(self, stage: Stage, metadata: Any) -> None:
        locks = stage.locks()
        with pytest.raises(ValueError, match="metadata"):
            locks.lock("door", metadata=metadata)
        _assert_nothing_sent(locks)

    @pytest.mark.parametrize("namespace", NO_NAMES, ids=_name)
    async def test_a_namespace_that_is_none(self, stage: Stage, namespace: Any) -> None:
        with pytest.raises(ValueError, match="namespace"):
            stage.locks(namespace=namespace)

    @pytest.mark.parametrize("holder", [name for name in NO_NAMES if name is not None], ids=_name)
    async def test_a_holder_that_is_none(self, stage: Stage, holder: Any) -> None:
        with pytest.raises(ValueError, match="holder"):
            stage.locks(holder=holder)

    @pytest.mark.parametrize("patience", [0, -1, math.nan, True, "10"], ids=_name)
    async def test_a_patience_that_is_none(self, stage: Stage, patience: Any) -> None:
        with pytest.raises(ValueError, match="patience"):
            stage.locks(patience=patience)

    @pytest.mark.parametrize("prefix", [prefix for prefix in NO_NAMES if prefix != ""], ids=_name)
    async def test_a_prefix_that_is_none(self, stage: Stage, prefix: Any) -> None:
        locks = stage.locks()
        with pytest.raises(ValueError, match="prefix"):
            await locks.list(prefix)
        _assert_nothing_sent(locks)

    async def test_a_url_that_no_backend_answers_to(self, stage: Stage) -> None:
        connect: Any = lockfast.connect if stage.world == "threads" else aio.connect
        with pytest.raises(ValueError, match=r"nosuch.*memory://.*sqlite://") as refused:
            connect("nosuch://user:secret@host/1")
        assert "secret" not in str(refused.value)
        for url in ("", "just-a-name", 7, b"memory://", "memory://x?option=1", "sqlite://", "sqlite://host/x"):
            with pytest.raises(ValueError, match=r"memory://|sqlite://|scheme|options"):
                connect(url)

    @about("store")
    @pytest.mark.parametrize("name", NAMES, ids=_name)
    async def test_every_other_name_is_taken_as_it_is(self, stage: Stage, name: str) -> None:
        async with stage.locks().lock(name) as lease:
            assert lease.name == name
            assert [info.name for info in await stage.observer.list()] == [name]
            assert await stage.fences(name) == [lease.fence]
        assert await stage.is_free(name)

    async def test_closed_locks_are_refused_before_anything_is_sent(self, stage: Stage) -> None:
        locks = stage.locks()
        lock = locks.lock("door")
        await locks.close()
        locks.faults.calls.clear()
        with pytest.raises(LockError, match="closed"):
            await lock.acquire()
        with pytest.raises(LockError, match="closed"):
            await lock.__aenter__()
        with pytest.raises(LockError, match="closed"):
            await locks.inspect("door")
        with pytest.raises(LockError, match="closed"):
            await locks.list()
        with pytest.raises(LockError, match="closed"):
            await locks.break_lock("door")
        with pytest.raises(LockError, match="closed"):
            await lock.locked()
        _assert_nothing_sent(locks)


def _assert_nothing_sent(locks: AwaitedLocks) -> None:
    assert not locks.faults.calls
