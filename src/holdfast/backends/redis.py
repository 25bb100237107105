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
import string
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

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
    Terms,
    patrol,
)
from holdfast._values import NANO, Allowance, Booked, Rate, Stored, Write, Written
from holdfast.drivers.redis_routes import Call, RedisDriver
from holdfast.drivers.redis_wire import ReplyError, Script, call, command, words
from holdfast.drivers.redis_wire import script as pack_script
from holdfast.errors import BackendUnavailable, LimitMismatch

MICRO: Final = 1_000_000
DAY: Final = 86_400_000_000  # microseconds, as all times in scripts, unless their name says milliseconds
CROWDED: Final = 4096  # names that are remembered to be in demand
_SAFE: Final = string.punctuation.replace("%", "")
QUICK: Final = 10.0  # seconds in which a question of an operator is answered, or refused

_CONSTANTS: Final = {
    "DAY": DAY,
    "REMEMBER_MS": 2 * DAY // 1000,  # that a name's last fence is kept after its last use, less at most a day
    "FORGET_MS": 30 * DAY // 1000,  # that the last version of a deleted cell is kept
    "SPARE_MS": 5000,  # that a limiter is kept when it means nothing any more
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
    return pack_script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def _tagged(key: str) -> str:
    """A closing brace would end the hash tag early."""
    if "%" in key or "}" in key:
        key = key.replace("%", "%25").replace("}", "%7D")
    return f"holdfast:{{{key}}}"


def _untagged(key: bytes) -> str:
    inside = key[len(b"holdfast:{") : key.rindex(b"}")].decode()
    return inside.replace("%7D", "}").replace("%25", "%")


def _keys(key: str) -> list[str]:
    tag = _tagged(key)
    return [f"{tag}:{kind}" for kind in ("held", "line", "waits", "eyes", "changes")]


class _Prepared(NamedTuple):
    """A request but for the claim: the same for every claim on the same terms, so it is written once."""

    script: Script
    key: str  # the one that leads to the server
    size: int  # in words
    before: bytes  # the claim
    after: bytes


def _prepared(
    name: str, keys: Sequence[str], before: Sequence[str | int], after: Sequence[str | int] = ()
) -> _Prepared:
    size = 3 + len(keys) + len(before) + 1 + len(after)
    return _Prepared(script(name), keys[0], size, script(name).digest + words(len(keys), *keys, *before), words(*after))


@lru_cache(maxsize=1024)
def _quick_acquire(terms: Terms) -> _Prepared:
    ttl = _micros(terms.ttl)
    record = f" {ttl} {_mode(terms)} {terms.limit or 0} {_plain(terms.holder)} {terms.metadata or ''}"
    lives = -(-ttl // 1000) + _CONSTANTS["REMEMBER_MS"]
    return _prepared("acquire_quick", _keys(terms.key)[:1], (), (record, lives))


@lru_cache(maxsize=1024)
def _quick_release(key: str) -> _Prepared:
    return _prepared("release_quick", _keys(key)[:1], ())


@lru_cache(maxsize=256)
def _acquire(terms: Terms, address: str) -> _Prepared:
    args = (_micros(terms.ttl), _mode(terms), terms.limit or 0, _plain(terms.holder), terms.metadata or "")
    return _prepared("acquire", _keys(terms.key), args, (address,))


@lru_cache(maxsize=256)
def _release(key: str, linger: int, heir: str) -> _Prepared:
    return _prepared("release", _keys(key), (linger, _plain(heir)))


def _renewal(part: Sequence[Renewal], now: tuple[bytes, ...]) -> Call:
    """One script for several names. Ten thousand leases are renewed this way, so every word counts."""
    keys, args = [], []
    for (id, terms), ttl, fence in part:
        key = f"{_tagged(terms.key)}:held".encode()
        keys.append(b"$%d\r\n%b\r\n" % (len(key), key))
        args.append(f"${len(id)}\r\n{id}\r\n{_length_and_value(ttl)}$16\r\n{fence:016d}\r\n")
    head = b"*%d\r\n%b%b" % (4 + 4 * len(part), script("renew").digest, words(len(part)))
    first = f"{_tagged(part[0].claim.terms.key)}:held"
    return Call(first, b"%b%b%b%b" % (head, b"".join(keys), words(*now or ("",)), "".join(args).encode()))


@lru_cache(maxsize=64)
def _length_and_value(ttl: float) -> str:
    micros = str(_micros(ttl))
    return f"${len(micros)}\r\n{micros}\r\n"


def _mode(terms: Terms) -> str:
    return "s" if terms.mode == SHARED else "x"


def _plain(holder: str) -> str:
    """A holder's name with nothing in it that separates words in a record."""
    return quote(holder, safe=_SAFE)


def _micros(seconds: float) -> int:
    return round(seconds * MICRO)


class RedisBackend:
    capabilities = Capabilities(drift=0.005, renew_batch=200)

    def __init__(self, driver: RedisDriver) -> None:
        self._driver = driver
        self._crowded: set[str] = set()  # keys that others lately wanted too: the quick scripts would be in vain

    def _now(self) -> tuple[bytes, ...]:
        """Nothing, so that the server reads its own clock; a test's clock is told to it."""
        now = self._driver.now
        return () if now is None else (b"%d" % _micros(now()),)

    def _request(self, prepared: _Prepared, id: str) -> bytes:
        _, _, size, before, after = prepared
        if self._driver.now is None:
            return b"*%d\r\n%b$%d\r\n%b\r\n%b" % (size, before, len(id), id.encode(), after)
        return b"*%d\r\n%b%b%b%b" % (size + 1, before, words(id), after, words(*self._now()))

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant | Busy:
        id, terms = claim
        if terms.key not in self._crowded and not self._driver.replicas:
            prepared = _quick_acquire(terms)
            request = self._request(prepared, id)
            answer = await self._driver.ask(prepared.key, request, within)
            if answer.__class__ is ReplyError:
                answer = await self._driver.settle(prepared.script, prepared.key, request, answer, within)
            if answer is not None:
                return _granted(answer)
        wakes = self._driver.wakes
        address = wakes.address if enqueue else ""
        if enqueue and not (address and wakes.expects(claim)):
            address = await self._driver.expect(claim, within)
        answer = await self._acquire(claim, address, within)
        if answer.__class__ is not list:
            wakes.forget(claim)
            self._remember(terms.key, crowded=answer.endswith(b"+"))
            return _granted(answer)
        self._remember(terms.key, crowded=True)
        if len(answer) == 1:
            LimitMismatch.tell(terms.name, answer[0] or None, terms.limit)
        return _busy(*answer)

    async def _acquire(self, claim: Claim, address: str, within: float) -> Any:
        """Where others want it too, or may."""
        prepared = _acquire(claim.terms, address)
        request = self._request(prepared, claim.id)
        if self._driver.replicas:
            answer, replicas = await self._driver.run_replicated(prepared.script, prepared.key, request, within)
            if answer.__class__ is not list and replicas < self._driver.replicas:
                await self.abandon(claim, within=within)
                raise self._driver.too_few(replicas)
            return answer
        answer = await self._driver.ask(prepared.key, request, within)
        if answer.__class__ is ReplyError:
            answer = await self._driver.settle(prepared.script, prepared.key, request, answer, within)
        return answer

    async def _run(self, name: str, key: str, args: Sequence[str | bytes | int], within: float) -> Any:
        keys = _keys(key)
        return await self._driver.run(script(name), keys[0], call(script(name), keys, args), within)

    async def _run_on_value(self, name: str, key: str, args: Sequence[str | bytes | int], within: float) -> Any:
        return await self._driver.run(script(name), key, call(script(name), [key], args), within)

    async def wait(self, claim: Claim, seconds: float) -> bool:
        return await self._driver.wakes.wait(claim, seconds)

    async def renew(self, batch: Sequence[Renewal], *, within: float) -> builtins.list[bool | None]:
        calls, size = [], self._driver.names_in_one
        for start in range(0, len(batch), size):
            part = batch[start : start + size]
            calls.append(_renewal(part, self._now()))
        answers = await self._driver.run_all(script("renew"), calls, within)
        errors = [answer for answer in answers if isinstance(answer, BackendUnavailable)]
        if len(errors) == len(answers):
            raise errors[0]
        kept: builtins.list[bool | None] = []
        for number, answer in enumerate(answers):
            known = not isinstance(answer, BackendUnavailable)
            names = len(batch[number * size : (number + 1) * size])
            kept += [one == 1 for one in answer] if known else [None] * names
        return kept

    async def release(self, claim: Claim, *, linger: float, within: float, heir: str = "") -> bool:
        id, terms = claim
        if not linger and terms.key not in self._crowded:
            prepared = _quick_release(terms.key)
            request = self._request(prepared, id)
            answer = await self._driver.ask(prepared.key, request, within)
            if answer.__class__ is ReplyError:
                answer = await self._driver.settle(prepared.script, prepared.key, request, answer, within)
            if answer is not None:
                return bool(answer == 1)
        prepared = _release(terms.key, _micros(linger), heir)
        request = self._request(prepared, id)
        answer = await self._driver.ask(prepared.key, request, within)
        if answer.__class__ is ReplyError:
            answer = await self._driver.settle(prepared.script, prepared.key, request, answer, within)
        self._remember(terms.key, crowded=answer == 2)
        return bool(answer)

    def _remember(self, key: str, *, crowded: bool) -> None:
        if not crowded:
            self._crowded.discard(key)
        elif len(self._crowded) < CROWDED:
            self._crowded.add(key)

    async def abandon(self, claim: Claim, *, within: float) -> None:
        try:
            await self._run("abandon", claim.terms.key, (claim.id, *self._now()), within)
        finally:
            self._driver.wakes.forget(claim)

    async def observe(self, claim: Claim, *, after: int, within: float) -> Sight:
        address = await self._driver.expect(claim, within)
        args: tuple[str | bytes | int, ...] = (claim.id, after, address, *self._now())
        retry, changes = await self._run("observe", claim.terms.key, args, within)
        retry_after = min(PATROL, retry / MICRO) if retry >= 0 else PATROL
        return Sight(tuple(map(_change, changes)), retry_after)

    async def inspect(self, key: str) -> LockInfo:
        return await self._look(key, breaks=False)

    async def break_(self, key: str) -> LockInfo:
        return await self._look(key, breaks=True)

    async def _look(self, key: str, *, breaks: bool) -> LockInfo:
        keys = _keys(key)
        request = call(script("inspect"), keys, (int(breaks), *self._now()))
        if breaks:
            found, queue, wall = await self._driver.run(script("inspect"), keys[0], request, QUICK)
        else:
            found, queue, wall = await self._driver.question(keys[0], request, QUICK, script("inspect"))
        holders = [
            HolderInfo(
                holder=unquote(holder.decode()),
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
        return LockInfo(key, tuple(holders), len(queue), tuple(unquote(name.decode()) for name in queue))

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
        allowed, left, early, until = await self._run_on_value("throttle", f"{_tagged(key)}:limit", args, within)
        seconds, nanos = map(int, until.split())
        return Booked(Allowance(allowed == 1, left, early / NANO), seconds * NANO + nanos)

    async def unthrottle(self, key: str, rate: Rate, *, cost: int, until: int, within: float) -> None:
        args = (_moment(until), _moment(until - rate.interval * cost))
        await self._run_on_value("unthrottle", f"{_tagged(key)}:limit", args, within)

    async def read(self, key: str) -> Stored:
        cell = f"{_tagged(key)}:cell"
        request = command("HMGET", cell, "v", "n", "f", "w")
        value, version, fence, writer = await self._driver.question(cell, request, QUICK)
        if value is None:
            return Stored()
        return Stored(value.decode(), int(version), int(fence), writer.decode())

    async def write(self, key: str, write: Write, *, within: float) -> Written:
        only = "" if write.if_version is None else write.if_version
        fence = "" if write.fence is None else write.fence
        args = (write.id, int(write.value is not None), write.value or "", only, fence)
        outcome, version, last = await self._run_on_value("write", f"{_tagged(key)}:cell", args, within)
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
    return Change(int(number), int(fence), unquote(holder[1:]) if holder.startswith("+") else None)


def _busy(ahead: int, retry: int, holder: bytes | None) -> Busy:
    retry_after = patrol(ahead)
    if retry >= 0:
        retry_after = min(retry_after, retry / MICRO)
    return Busy(ahead, retry_after, None if holder is None else unquote(holder.decode()))


def _granted(answer: bytes) -> Grant:
    fence, _, acquired = answer.partition(b" ")
    number = int(fence)
    return Grant(number, (int(acquired.partition(b" ")[0]) if acquired else number) / MICRO)


def _moment(nanoseconds: int) -> str:
    return f"{nanoseconds // NANO} {nanoseconds % NANO}"
