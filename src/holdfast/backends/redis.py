"""Redis and Valkey: each verb is one script, on the server's clock.

Decides: under which keys a name is kept, and what goes into and comes out of each script (`redis_lua/`).
Leaves to the scripts: each step. Leaves to the driver: connections, errors, where the waiters sleep.

All keys of a name share one hash tag, so they live in one slot of a cluster. Every key expires by itself: whatever
crashes, what is left is gone after a while.
"""

from __future__ import annotations

import builtins
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

from holdfast._model import (
    GRACE,
    KEPT_CHANGES,
    PATROL,
    PRESENCE,
    SHARED,
    Busy,
    Capabilities,
    Change,
    Claim,
    Grant,
    HolderInfo,
    LockInfo,
    Renewal,
    Sight,
    patrol,
)
from holdfast._values import NANO, Allowance, Booked, Rate, Stored, Write, Written
from holdfast.drivers.redis import RedisDriver, Script
from holdfast.errors import LimitMismatch

MICRO: Final = 1_000_000
DAY: Final = 86_400_000  # milliseconds
QUICK: Final = 10.0  # seconds in which a question of an operator is answered, or refused
BATCH: Final = 100  # names in one script that renews

_CONSTANTS: Final = {
    "REMEMBER": DAY,  # milliseconds that a name's last fence is kept after its last use
    "FORGET": 30 * DAY,  # and the last version of a cell that was deleted
    "LINGER_MS": int(2 * PRESENCE * 1000),
    "PRESENCE": int(PRESENCE * MICRO),
    "GRACE": int(GRACE * MICRO),
    "KEPT_CHANGES": KEPT_CHANGES,
}


@cache
def script(name: str) -> Script:
    """A script with what it shares with others, and its constants, put in."""
    folder = files("holdfast.backends") / "redis_lua"
    text = (folder / f"{name}.lua").read_text()
    text = text.replace("--@library", (folder / "library.lua").read_text())
    for constant, value in _CONSTANTS.items():
        text = re.sub(rf"\b{constant}\b", str(value), text)
    source = text.encode()
    return Script(name, source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())


class _Keys(NamedTuple):
    held: str
    line: str
    waits: str
    kept: str
    eyes: str
    changes: str


def _tagged(key: str) -> str:
    """A closing brace would end the hash tag early."""
    return "holdfast:{" + key.replace("%", "%25").replace("}", "%7D") + "}"


def _untagged(key: bytes) -> str:
    inside = key[len(b"holdfast:{") : key.rindex(b"}")].decode()
    return inside.replace("%7D", "}").replace("%25", "%")


def _keys(key: str) -> _Keys:
    tag = _tagged(key)
    return _Keys(f"{tag}:held", f"{tag}:line", f"{tag}:waits", f"{tag}:kept", f"{tag}:eyes", f"{tag}:changes")


def _micros(seconds: float) -> int:
    return round(seconds * MICRO)


class RedisBackend:
    capabilities = Capabilities(drift=0.005, renew_batch=1000)

    def __init__(self, driver: RedisDriver) -> None:
        self._driver = driver

    def _now(self) -> str:
        """Empty, so that the server reads its own clock; a test's clock is told to it."""
        now = self._driver.now
        return "" if now is None else str(_micros(now()))

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant | Busy:
        wakes = self._driver.wakes
        joins = enqueue and bool(wakes.address)
        answer = await self._acquire(claim, wakes.expect(claim) if joins else "", joins, within)
        if enqueue and not joins and answer[0] == 0:  # the first of this `Locks` that waits: now there is a mailbox
            answer = await self._acquire(claim, await self._driver.expect(claim, within), True, within)
        if answer[0] == 1:
            wakes.forget(claim)
            return Grant(answer[1], answer[2] / MICRO)
        if answer[0] == -1:
            LimitMismatch.tell(claim.terms.name, answer[1] or None, claim.terms.limit)
        _, ahead, retry, holder, held = answer
        retry_after = patrol(ahead)
        if retry >= 0:
            retry_after = min(retry_after, retry / MICRO)
        return Busy(ahead, retry_after, holder.decode() if held else None)

    async def _acquire(self, claim: Claim, address: str, enqueue: bool, within: float) -> Any:
        id, (key, _, holder, ttl, mode, limit, metadata) = claim
        letter = "s" if mode == SHARED else "x"
        size = len(holder.encode())
        tail = f"{limit or 0} {size} {holder} {metadata or ''}"
        args = (self._now(), id, _micros(ttl), letter, limit or 0, tail, holder, int(enqueue), address)
        return await self._driver.run(script("acquire"), _keys(key), args, within)

    async def wait(self, claim: Claim, seconds: float) -> bool:
        return await self._driver.wakes.wait(claim, seconds)

    async def renew(self, batch: Sequence[Renewal], *, within: float) -> builtins.list[bool]:
        calls = []
        for start in range(0, len(batch), self._driver.names_in_one):
            part = batch[start : start + self._driver.names_in_one]
            keys = tuple(f"{_tagged(claim.terms.key)}:held" for claim, _, _ in part)
            args = [self._now()]
            for claim, ttl, fence in part:
                args += [claim.id, str(_micros(ttl)), str(fence)]
            calls.append((keys, args))
        answers = await self._driver.run_all(script("renew"), calls, within)
        return [kept == 1 for answer in answers for kept in answer]

    async def release(self, claim: Claim, *, linger: float, within: float, heir: str = "") -> bool:
        args = (self._now(), claim.id, _micros(linger), heir)
        return bool(await self._driver.run(script("release"), _keys(claim.terms.key), args, within) == 1)

    async def abandon(self, claim: Claim, *, within: float) -> None:
        try:
            await self._driver.run(script("abandon"), _keys(claim.terms.key), (self._now(), claim.id), within)
        finally:
            self._driver.wakes.forget(claim)

    async def observe(self, claim: Claim, *, after: int, within: float) -> Sight:
        address = await self._driver.expect(claim, within)
        args = (self._now(), claim.id, after, address)
        retry, changes = await self._driver.run(script("observe"), _keys(claim.terms.key), args, within)
        retry_after = min(PATROL, retry / MICRO) if retry >= 0 else PATROL
        return Sight(tuple(map(_change, changes)), retry_after)

    async def inspect(self, key: str) -> LockInfo:
        return await self._look(key, breaks=False)

    async def break_(self, key: str) -> LockInfo:
        return await self._look(key, breaks=True)

    async def _look(self, key: str, *, breaks: bool) -> LockInfo:
        args = (self._now(), int(breaks))
        found, queue, wall = await self._driver.run(script("inspect"), _keys(key), args, QUICK)
        holders = [
            HolderInfo(
                holder=holder.decode(),
                claim_id=id.decode(),
                fence=fence,
                mode="shared" if mode == b"s" else "exclusive",
                acquired_at=acquired / MICRO,
                expires_at=(wall + left) / MICRO,
                metadata=json.loads(metadata) if metadata else None,
            )
            for id, holder, fence, mode, acquired, left, metadata in found
        ]
        holders.sort(key=lambda holder: holder.fence)
        return LockInfo(key, tuple(holders), len(queue), tuple(name.decode() for name in queue))

    async def list(self, prefix: str) -> builtins.list[LockInfo]:
        start = re.sub(r"([\\*?\[\]^-])", r"\\\1", _tagged(prefix)[:-1])
        names = set()
        for kind in ("held", "waits"):
            names |= {_untagged(key) for key in await self._driver.scan(f"{start}*}}:{kind}", QUICK)}
        infos = [await self.inspect(name) for name in sorted(names)]
        return [info for info in infos if info.holders or info.waiters]

    async def throttle(self, key: str, rate: Rate, *, cost: int, patience: float, within: float) -> Booked:
        now = self._driver.now
        moment = "" if now is None else _moment(round(now() * NANO))
        wait = round(min(patience, 1e6) * NANO)
        args = (moment, rate.interval, rate.burst, cost, wait)
        allowed, left, early, until = await self._driver.run(
            script("throttle"), (f"{_tagged(key)}:limit",), args, within
        )
        seconds, nanos = map(int, until.split())
        return Booked(Allowance(allowed == 1, left, early / NANO), seconds * NANO + nanos)

    async def unthrottle(self, key: str, rate: Rate, *, cost: int, until: int, within: float) -> None:
        args = (_moment(until), _moment(until - rate.interval * cost))
        await self._driver.run(script("unthrottle"), (f"{_tagged(key)}:limit",), args, within)

    async def read(self, key: str) -> Stored:
        value, version, fence, writer = await self._driver.command(
            ("HMGET", f"{_tagged(key)}:cell", "v", "n", "f", "w"), QUICK
        )
        if value is None:
            return Stored()
        return Stored(value.decode(), int(version), int(fence), writer.decode())

    async def write(self, key: str, write: Write, *, within: float) -> Written:
        only = "" if write.if_version is None else write.if_version
        fence = "" if write.fence is None else write.fence
        args = (write.id, int(write.value is not None), write.value or "", only, fence)
        outcome, version, last = await self._driver.run(script("write"), (f"{_tagged(key)}:cell",), args, within)
        return Written(outcome.decode(), version, last)

    async def close(self) -> None:
        await self._driver.close()

    def before_fork(self) -> None:
        """Connections are forgotten in the child; the parent goes on using them."""

    def after_fork(self, *, child: bool) -> None:
        if child:
            self._driver.after_fork()

    def __repr__(self) -> str:
        return repr(self._driver)


def _change(text: bytes) -> Change:
    number, fence, holder = text.decode().split(" ", 2)
    return Change(int(number), int(fence), holder[1:] if holder.startswith("+") else None)


def _moment(nanoseconds: int) -> str:
    return f"{nanoseconds // NANO} {nanoseconds % NANO}"
