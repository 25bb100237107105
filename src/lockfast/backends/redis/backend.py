"""Redis and Valkey: each verb is one script, on the server's clock.

Decides: which script answers a verb, and what follows its reply.
Leaves to `requests`: keys and requests. Leaves to `replies`: what a reply means. Leaves to the scripts (`scripts/`):
each step. Leaves to the driver (`io/`): connections, errors, where the waiters sleep.

Every key but a cell's expires: whatever crashes, nothing is left behind for ever.
"""

from __future__ import annotations

import builtins
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final

from lockfast._bounded import BoundedDict, BoundedSet
from lockfast._ids import CLAIM_ID_CHARS
from lockfast._model import (
    MAX_POLL_S,
    Busy,
    Capabilities,
    Claim,
    Grant,
    LockInfo,
    Observation,
    Renewal,
)
from lockfast._records import damaged_lock
from lockfast._refusals import limit_mismatch
from lockfast._time import boot_now, time_left
from lockfast._values import EMPTY_CELL, NS_PER_S, Allowance, Booked, Rate, Stored, Write, Written, as_stored
from lockfast.backends.redis import replies, requests
from lockfast.backends.redis.io.resp import ReplyError, call, command, whole, words
from lockfast.backends.redis.io.router import RedisDriver
from lockfast.backends.redis.listing import Listing, run_each
from lockfast.backends.redis.requests import MICRO, Prepared, keys_of, script, tagged
from lockfast.errors import BackendUnavailable, LimitMismatch

MAX_IN_DOUBT: Final = 10_000  # claims
# What an abandon says of earlier requests of its claim, see abandon.lua; 0 if nothing is known of them:
IN_DOUBT: Final = 1
IN_ORDER: Final = 2
MAX_CONTENDED: Final = 4096  # names
MAX_INSPECTED_AT_ONCE: Final = 500  # names


class RedisBackend:
    capabilities = Capabilities(drift=0.005, renew_batch=200, hands_over=True)

    def __init__(self, driver: RedisDriver) -> None:
        self._driver = driver
        if driver.endpoint.clustered or driver.replicas:
            self.capabilities = self.capabilities._replace(hands_over=False)
        self._listed = not driver.endpoint.clustered  # scripts see whether names are listed
        self._listing = Listing(driver)
        self._unanswered = BoundedDict[str, float](MAX_IN_DOUBT)  # by claim: since when a request of it is
        self._abandoned = BoundedDict[str, float](MAX_IN_DOUBT)  # by claim: when that was last asked for, and answered
        self._contended = BoundedSet[str](MAX_CONTENDED)  # keys that others held or wanted too: no quick script there

    def _now(self) -> tuple[bytes, ...]:
        """Empty, so that the server reads its own clock; a test's clock is sent."""
        now = self._driver.now
        return () if now is None else (b"%d" % requests.micros(now()),)

    def _request(self, prepared: Prepared, id: str) -> bytes:
        claim = id.encode()
        if len(claim) == CLAIM_ID_CHARS and self._driver.now is None:
            return prepared.head + claim + prepared.tail
        now = self._now()
        count = b"*%d\r\n" % (prepared.size + len(now))
        return count + prepared.before + words(claim) + prepared.after + words(*now)

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant | Busy:
        started = boot_now()
        id, terms = claim
        try:
            left = within
            if terms.key not in self._contended and not self._driver.replicas:
                prepared = requests.quick_acquire(terms, self._listed)
                request, directly = self._request(prepared, id), self._driver.ask_directly
                answer = await (
                    directly(request, within) if directly else self._driver.ask(prepared.key, request, within)
                )
                if answer.__class__ is ReplyError:
                    left = time_left(started + within)
                    answer = await self._driver.settle(prepared.script, prepared.key, request, answer, left)
                if answer is not None:
                    self._driver.wakeups.forget(claim)  # an earlier request may have put it into the queue
                    return replies.granted(answer)
                left = time_left(started + within)
            return await self._acquire_or_wait(claim, enqueue, left)
        except LimitMismatch:
            raise
        except BackendUnavailable as error:
            if error.sent:
                self._note_unanswered(id, started)
            raise
        except BaseException:  # cancelled or interrupted
            self._note_unanswered(id, started)
            raise

    def _note_unanswered(self, id: str, since: float) -> None:
        self._unanswered[id] = min(since, self._unanswered.get(id, since))

    def _doubt(self, id: str) -> int:
        """IN_DOUBT: an unanswered request of the claim may arrive after the one that is sent now."""
        since = self._unanswered.get(id, self._abandoned.get(id))
        if since is None:
            return 0
        if self._driver.keeps_order(since):
            return IN_ORDER
        return IN_DOUBT if id in self._unanswered else 0

    async def _acquire_or_wait(
        self, claim: Claim, enqueue: bool, within: float, proposal: tuple[int, int] | None = None
    ) -> Grant | Busy:
        """The full script, for a key that is or may be contended. In a quorum the client proposes fence and order."""
        driver, terms = self._driver, claim.terms
        address = ""
        if enqueue:
            address = driver.wakeups.address and driver.wakeups.expect(claim)
            if not address:  # there is no subscription
                until = boot_now() + within
                address = await driver.expect(claim, within)
                within = time_left(until)
        answer = await self._acquire(claim, address, within, proposal)
        if answer.__class__ is not list:
            driver.wakeups.forget(claim)
            self._contended.keep(terms.key, answer.endswith(b"+"))
            return replies.granted(answer)
        if terms.key not in self._contended:
            self._contended.add(terms.key)
        if len(answer) == 1:
            self._must_be_readable(terms.name, answer[0])
            raise limit_mismatch(terms.name, answer[0] or None, terms.limit)
        return replies.busy(*answer)

    async def _acquire(self, claim: Claim, address: str, within: float, proposal: tuple[int, int] | None) -> Any:
        prepared = requests.acquire(claim.terms, address, self._listed)
        request = self._request(prepared, claim.id)
        if self._driver.replicas:
            return await self._acquire_replicated(claim, prepared, request, within)
        return await self._driver.run(prepared.script, prepared.key, request, within)

    async def _acquire_replicated(self, claim: Claim, prepared: Prepared, request: bytes, within: float) -> Any:
        until = boot_now() + within
        answer, replicas = await self._driver.run_replicated(prepared.script, prepared.key, request, within)
        if answer.__class__ is not list and replicas < self._driver.replicas:
            if b"=" in answer:  # it held before this request, so this one does not undo it
                raise self._driver.too_few(replicas)
            with suppress(BackendUnavailable):  # the caller abandons it again
                await self.abandon(claim, within=time_left(until))
            raise self._driver.too_few(replicas, transient=False)
        return answer

    async def _run(self, name: str, key: str, args: Sequence[str | bytes | int], within: float) -> Any:
        keys = keys_of(key, self._listed)
        return await self._driver.run(script(name), keys[0], call(script(name), keys, args), within)

    async def _run_on_value(self, name: str, key: str, args: Sequence[str | bytes | int], within: float) -> Any:
        return await self._driver.run(script(name), key, call(script(name), [key], args), within)

    def wait(self, claim: Claim, seconds: float) -> Coroutine[Any, Any, bool | Grant]:
        return self._driver.wakeups.wait(claim, seconds)

    async def renew(self, batch: Sequence[Renewal], *, within: float) -> builtins.list[bool | None]:
        until = boot_now() + within
        calls, places = requests.renewals(batch, self._driver.names_per_script, self._now())
        answers = await self._driver.run_all(script("renew"), calls, within, replicated=True)
        errors = [answer for answer in answers if isinstance(answer, BackendUnavailable)]
        if len(errors) == len(answers):
            raise errors[0]
        kept: builtins.list[bool | None] = [None] * len(batch)
        unsaid: builtins.list[int] = []
        for part, answer in zip(places, answers, strict=True):
            if not isinstance(answer, BackendUnavailable):
                for place, one in zip(part, answer, strict=True):
                    kept[place] = one == 1
                    if one is None:
                        kept[place] = None
                        unsaid.append(place)
        if unsaid:
            # Shared claims hold the name. This one lost it, or is one of them: the reply to its downgrade was lost.
            again = [requests.as_shared(batch[place]) for place in unsaid]
            with suppress(BackendUnavailable):
                for place, answer in zip(unsaid, await self.renew(again, within=time_left(until)), strict=True):
                    kept[place] = answer
        return kept

    async def release(self, claim: Claim, *, linger: float, within: float, successor: str = "") -> bool:
        id, terms = claim
        until = boot_now() + within
        if (self._unanswered or self._abandoned) and self._doubt(id) == IN_DOUBT:
            freed = await self._release(claim, linger, within, successor)
            await self.abandon(claim, within=time_left(until))  # so that a request in doubt takes no effect
            return freed
        if not linger and terms.key not in self._contended:
            prepared = requests.quick_release(terms.key)
            request, directly = self._request(prepared, id), self._driver.ask_directly
            answer = await (directly(request, within) if directly else self._driver.ask(prepared.key, request, within))
            if answer.__class__ is ReplyError:
                answer = await self._driver.settle(prepared.script, prepared.key, request, answer, time_left(until))
            if answer is not None:
                return bool(answer == 1)
            within = time_left(until)
        return await self._release(claim, linger, within, successor)

    async def _release(self, claim: Claim, linger: float, within: float, successor: str) -> bool:
        id, terms = claim
        prepared = requests.release(terms.key, requests.micros(linger) if linger else 0, successor, self._listed)
        answer = await self._driver.run(prepared.script, prepared.key, self._request(prepared, id), within)
        if answer == 2 and terms.key in self._contended:
            return True
        self._must_be_readable(terms.name, answer)
        self._contended.keep(terms.key, answer == 2)
        return bool(answer)

    def _must_be_readable(self, name: str, answer: Any) -> None:
        """Raises BackendUnavailable if a script reports damage to the record."""
        if answer.__class__ is bytes:
            raise damaged_lock(name, self, replies.damage(answer))

    async def abandon(self, claim: Claim, *, within: float) -> None:
        started = boot_now()
        abandon, keys = script("abandon"), keys_of(claim.terms.key, self._listed)
        request = call(abandon, keys, (claim.id, self._doubt(claim.id), *self._now()))
        if claim.id in self._unanswered:
            request = whole(abandon, request)  # no client may be left to read that the server lacks the script
        try:
            await self._driver.run(abandon, keys[0], request, within)
            self._unanswered.pop(claim.id, None)
            self._abandoned[claim.id] = started
        except BackendUnavailable:
            self._note_unanswered(claim.id, started)  # repeated on another connection, it may overtake this one
            raise
        finally:
            self._driver.wakeups.forget(claim)

    async def observe(self, claim: Claim, *, after: int, within: float) -> Observation:
        until = boot_now() + within
        address = await self._driver.expect(claim, within)
        args: tuple[str | bytes | int, ...] = (claim.id, after, address, *self._now())
        answer = await self._run("observe", claim.terms.key, args, time_left(until))
        self._must_be_readable(claim.terms.name, answer[0])
        retry, changes = answer
        retry_after = min(MAX_POLL_S, retry / MICRO) if retry >= 0 else MAX_POLL_S
        return Observation(tuple(map(replies.change, changes)), retry_after)

    async def inspect(self, key: str, *, within: float) -> LockInfo:
        return await self._inspect(key, "all", within)

    async def inspect_holders(self, key: str, *, within: float) -> LockInfo:
        return await self._inspect(key, "holders", within)

    async def _inspect(self, key: str, what: str, within: float) -> LockInfo:
        keys = keys_of(key)
        request = call(script("inspect"), keys, (what, *self._now()))
        return replies.info(key, await self._driver.question(keys[0], request, within, script("inspect")))

    async def break_(self, key: str, *, within: float) -> LockInfo:
        info, _ = await self._break(key, within)
        return info

    async def _break(self, key: str, within: float) -> tuple[LockInfo, dict[str, float]]:
        """What was there, and by claim for how many seconds it would have held."""
        answer = await self._run("inspect", key, ("break", *self._now()), within)
        return replies.info(key, answer), replies.seconds_left(answer)

    async def list(self, prefix: str, *, within: float) -> builtins.list[LockInfo]:
        names = await self._listing.names(prefix, within)
        infos: builtins.list[LockInfo] = []
        for start in range(0, len(names), MAX_INSPECTED_AT_ONCE):
            infos += await self._inspect_all(names[start : start + MAX_INSPECTED_AT_ONCE], within)
        return [info for info in infos if info.holders or info.waiters]

    async def _inspect_all(self, names: Sequence[str], within: float) -> builtins.list[LockInfo]:
        keys = [keys_of(name) for name in names]
        answers = await run_each(self._driver, "inspect", keys, ("all", *self._now()), within)
        return [replies.info(name, answer) for name, answer in zip(names, answers, strict=True)]

    async def throttle(self, key: str, rate: Rate, *, cost: int, patience: float, within: float) -> Booked:
        now = self._driver.now
        moment = "" if now is None else _moment(round(now() * NS_PER_S))
        wait = round(min(patience, 9e6) * NS_PER_S)
        args = (moment, rate.interval, rate.burst, cost, wait)
        allowed, left, early, until = await self._run_on_value("throttle", f"{tagged(key)}:limit", args, within)
        seconds, nanos = map(int, until.split())
        return Booked(Allowance(allowed == 1, left, early / NS_PER_S), seconds * NS_PER_S + nanos)

    async def unthrottle(self, key: str, rate: Rate, *, cost: int, until: int, within: float) -> None:
        args = (_moment(until), _moment(until - rate.interval * cost))
        await self._run_on_value("unthrottle", f"{tagged(key)}:limit", args, within)

    async def read(self, key: str, *, within: float) -> Stored:
        cell = f"{tagged(key)}:cell"
        request = command("HMGET", cell, "v", "n", "f", "w")
        try:
            value, version, fence, writer = await self._driver.question(cell, request, within)
        except BackendUnavailable as error:
            if error.kind != "WRONGTYPE":
                raise
            return Stored(damage="it is not a hash")
        found = (value, fence, writer)
        if found == (None, None, None):  # a deleted cell keeps its last version
            last = as_stored(None, 0 if version is None else replies.count(version), 0, "")
            return last if last.damage else EMPTY_CELL
        if None in found:
            return Stored(damage="a part of it is gone")
        try:
            return as_stored(value.decode(), replies.count(version), replies.count(fence), replies.text(writer))
        except UnicodeDecodeError:
            return Stored(damage="its value is not text")

    async def write(self, key: str, write: Write, *, within: float) -> Written:
        only = "" if write.if_version is None else write.if_version
        fence = "" if write.fence is None else write.fence
        args = (write.id, int(write.value is not None), write.value or "", only, fence)
        outcome, version, last = await self._run_on_value("write", f"{tagged(key)}:cell", args, within)
        return Written(outcome.decode(), version, last)

    async def close(self) -> None:
        await self._driver.close()

    def before_fork(self) -> None:
        """The child drops its connections; the parent goes on using them."""

    def after_fork(self, *, child: bool) -> None:
        if child:
            self._driver.after_fork()

    @property
    def url(self) -> str:
        return self._driver.endpoint.url

    async def identify(self, within: float) -> tuple[str, str]:
        return await self._driver.identify(within)

    @property
    def store_id(self) -> str:
        return self._driver.endpoint.store_id

    def __repr__(self) -> str:
        return repr(self._driver)


def _moment(nanoseconds: int) -> str:
    return f"{nanoseconds // NS_PER_S} {nanoseconds % NS_PER_S}"
