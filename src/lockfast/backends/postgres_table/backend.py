"""PostgreSQL's lock table: each verb is one function of the server, on the server's clock.

Decides: which function answers a verb, and which claims may still have a request in flight when they are abandoned.
Leaves to `requests`: statements and replies. Leaves to the functions (`sql/`): each step. Leaves to the driver:
connections, errors, batches, where waiters sleep.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from lockfast._bounded import BoundedSet
from lockfast._model import Busy, Capabilities, Claim, Grant, LockInfo, Observation, Renewal
from lockfast._records import NO_HOLD, damaged_lock
from lockfast._refusals import limit_mismatch
from lockfast._time import boot_now, time_left
from lockfast._values import EMPTY_CELL, NS_PER_S, Allowance, Booked, Rate, Stored, Write, Written, as_stored
from lockfast.backends.postgres.io.one_query import identify
from lockfast.backends.postgres.io.refusals import NameInUse
from lockfast.backends.postgres_table import requests
from lockfast.backends.postgres_table.io.batching import array
from lockfast.backends.postgres_table.io.driver import PostgresDriver
from lockfast.backends.postgres_table.requests import (
    OPERATOR_PATIENCE_MS,
    TRY_PATIENCE_MS,
    Catalogue,
    columns_of,
    split,
)
from lockfast.backends.wakeups import read_wake_up
from lockfast.errors import BackendUnavailable

MAX_CONTENDED: Final = 4096  # names
MAX_IN_DOUBT: Final = 10_000  # claims
IN_USE: Final = Busy(0, requests.POLL_WITHOUT_WAKEUPS_S, unsettled=True)  # another client has locked the name


class PostgresTableBackend:
    capabilities = Capabilities(drift=0.005, hands_over=True)

    def __init__(self, driver: PostgresDriver, catalogue: Catalogue) -> None:
        self._driver = driver
        self._catalogue = catalogue
        self._reset()

    def _reset(self) -> None:
        self._contended = BoundedSet[str](MAX_CONTENDED)  # keys that others lately wanted too
        self._in_doubt = BoundedSet[str](MAX_IN_DOUBT)  # claims with an unanswered request, which may still arrive
        self._queued: set[str] = set()  # claims that wait in a place in the queue, or were granted there
        self._dropped = ""  # the last claim that was dropped from these: their ids grow with time
        self._locked_out: set[str] = set()  # claims that wait, found their name locked, and surely have no place
        self._handed: dict[str, Grant] = {}  # claims that were granted by a release of our own, and do not know it yet
        self._abandoned: set[str] = set()  # abandoned claims, with no request since

    def _now(self) -> str | None:
        """Nothing, so that the server reads its own clock; a test's clock is passed to it."""
        now = self._driver.now
        return None if now is None else repr(now())

    async def _ask(self, name: str, *params: str | None, within: float) -> Any:
        return await self._driver.ask(self._catalogue.request(name, *params), within)

    async def _read_only(self, name: str, *params: str | None, within: float) -> Any:
        """One that changes nothing, so it can be asked again if a connection has ended since it was last used."""
        until = boot_now() + within
        try:
            return await self._ask(name, *params, within=within)
        except BackendUnavailable as error:
            left = until - boot_now()
            if not error.transient or left < within / 2:
                raise
            return await self._ask(name, *params, within=left)

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant | Busy:
        driver, terms = self._driver, claim.terms
        if claim.id in self._handed:
            return self._taken_over(claim)
        try:
            if enqueue:
                answer = await self._acquire_or_wait(claim, within)
            else:
                answer = await self._acquire(claim, None, within, TRY_PATIENCE_MS)
        except NameInUse:
            if enqueue:
                await self._expect_without_place(claim, within / 2)  # it had half of the time at most
            return IN_USE
        except BaseException as error:
            if getattr(error, "sent", True):
                self._doubt(claim.id)
            raise
        finally:
            self._abandoned.discard(claim.id)  # another thread may have abandoned it, perhaps before this arrived
        if "fence" in answer:
            driver.wakeups.forget(claim)
            self._forget(claim.id)
            return requests.granted(answer)
        if "damaged" in answer:
            raise damaged_lock(terms.name, self, NO_HOLD)
        if "limit" in answer:
            raise limit_mismatch(terms.name, answer["limit"], terms.limit)
        return requests.busy(answer, cannot_listen=driver.cannot_listen)

    async def _acquire_or_wait(self, claim: Claim, within: float) -> Any:
        """Only a claim that has to wait, or is likely to, needs an address and a connection that wakes it."""
        wakeups, key = self._driver.wakeups, claim.terms.key
        until = boot_now() + within
        contended = key in self._contended
        known = None
        if not contended and not wakeups.expects(claim):
            known = await self._acquire(claim, None, within)
            if "position" not in known:
                return known
            self._contended.add(key)
        try:
            address = await self._driver.expect(claim, max(0.01, until - boot_now()))
            answer = await self._acquire(claim, address, max(0.01, until - boot_now()))
        except BackendUnavailable:
            if known is None or until - boot_now() > 0.01:
                raise
            self._doubt(claim.id)
            return known  # there was no time left to connect, or to be answered, and nothing more to be learned
        if "position" in answer:
            self._contended.add(key)
            self._has_place(claim.id)
        elif contended:
            self._contended.discard(key)  # as long as it is wanted, some callers have to wait
        return answer

    async def _expect_without_place(self, claim: Claim, within: float) -> None:
        """So that it can sleep until its next try: it has no place in the queue yet."""
        if claim.id not in self._queued and claim.id > self._dropped and len(self._locked_out) < MAX_IN_DOUBT:
            self._locked_out.add(claim.id)
        with suppress(BackendUnavailable):
            await self._driver.expect(claim, within)

    def _doubt(self, id: str) -> None:
        """It has an unanswered request, which may give it a place in the queue."""
        self._in_doubt.add(id)
        self._locked_out.discard(id)

    def _has_place(self, id: str) -> None:
        """One that is dropped for it counts as a claim that may have a place, so it is abandoned in any case."""
        self._locked_out.discard(id)
        if len(self._queued) >= MAX_IN_DOUBT and id not in self._queued:
            self._dropped = max(self._dropped, self._queued.pop())
        self._queued.add(id)

    def _forget(self, id: str) -> None:
        self._queued.discard(id)
        self._locked_out.discard(id)
        self._handed.pop(id, None)

    def _hand_on(self, wake_up: str, asked_at: float) -> None:
        """For one of our own. If it holds now, and does not learn of it here, it does so when it next asks."""
        id, grant = read_wake_up(wake_up)
        if grant is not None:
            if len(self._handed) >= MAX_IN_DOUBT:
                self._handed.clear()  # left by claims that were abandoned just then
            self._handed[id] = grant._replace(since=asked_at)
        self._driver.wakeups.wake(id)

    def _taken_over(self, claim: Claim) -> Grant:
        grant = self._handed[claim.id]
        self._driver.wakeups.forget(claim)
        self._forget(claim.id)
        return grant

    async def _acquire(self, claim: Claim, address: str | None, within: float, most: int | None = None) -> Any:
        columns = columns_of(claim.id, claim.terms, address)
        request = self._catalogue.joined("acquire", columns, requests.patience(within, most), self._now())
        return await self._driver.ask(request, within)

    async def wait(self, claim: Claim, seconds: float) -> bool | Grant:
        return await self._driver.wakeups.wait(claim, seconds)

    async def renew(self, batch: Sequence[Renewal], *, within: float) -> builtins.list[bool | None]:
        """First all rows that no other transaction has locked, then each of the others by itself.

        If there are both, the second part ends after half of the time: the answer for the first waits for it.
        """
        started = boot_now()
        kept = await self._renew(batch, None, within)
        skipped = [number for number, holds in enumerate(kept) if holds is None]
        until = started + (within / 2 if len(skipped) < len(batch) else within)
        refused: BackendUnavailable | None = None
        for done, number in enumerate(skipped):
            if done and boot_now() >= until:
                break
            left = time_left(until)
            patience = requests.patience(left / (len(skipped) - done))
            try:
                [kept[number]] = await self._renew([batch[number]], patience, left)
            except BackendUnavailable as error:
                refused = error
                if not isinstance(error, NameInUse):
                    break
        if refused is not None and not any(holds is not None for holds in kept):
            raise refused
        return kept

    async def _renew(self, batch: Sequence[Renewal], patience: str | None, within: float) -> builtins.list[bool | None]:
        keys = [split(renewal.claim.terms.key) for renewal in batch]
        kept: builtins.list[bool | None] = await self._ask(
            "renew",
            array([namespace for namespace, _ in keys]),
            array([name for _, name in keys]),
            array([renewal.claim.id for renewal in batch]),
            array([str(renewal.fence) for renewal in batch]),
            array([repr(renewal.ttl) for renewal in batch]),
            patience,
            self._now(),
            within=within,
        )
        return kept

    async def release(self, claim: Claim, *, linger: float, within: float, successor: str = "") -> bool:
        wakeups, asked_at, until = self._driver.wakeups, (self._driver.now or boot_now)(), boot_now() + within
        columns = (*split(claim.terms.key), claim.id, repr(linger), successor, wakeups.address)
        request = self._catalogue.joined("release", columns, requests.patience(within), self._now())
        freed = await self._driver.ask(request, within)
        if freed.__class__ is builtins.list:  # waiters of this process are next: the server need not notify them
            for wake_up in freed:
                self._hand_on(wake_up, asked_at)
        self._forget(claim.id)
        if claim.id in self._in_doubt:
            await self.abandon(claim, within=time_left(until))  # so that what is still on its way takes no effect
        return bool(freed)

    async def abandon(self, claim: Claim, *, within: float) -> None:
        unanswered = claim.id in self._in_doubt
        late = "true" if unanswered else "false"
        if claim.id in self._abandoned:
            return
        try:
            if claim.id in self._locked_out and not unanswered:
                return  # it has no place, and to check would have to wait
            params = (*split(claim.terms.key), claim.id, late, requests.patience(within), self._now())
            await self._ask("abandon", *params, within=within)
            self._in_doubt.discard(claim.id)
            self._abandoned = self._abandoned if len(self._abandoned) < MAX_IN_DOUBT else set()
            self._abandoned.add(claim.id)
        finally:
            self._driver.wakeups.forget(claim)
            self._forget(claim.id)

    async def observe(self, claim: Claim, *, after: int, within: float) -> Observation:
        until = boot_now() + within
        address = await self._driver.expect(claim, within)
        within = time_left(until)
        params = (*split(claim.terms.key), claim.id, str(after), address, requests.patience(within), self._now())
        answer = await self._ask("observe", *params, within=within)
        if "damaged" in answer:
            raise damaged_lock(claim.terms.name, self, NO_HOLD)
        return requests.observation(answer, cannot_listen=self._driver.cannot_listen)

    async def inspect(self, key: str, *, within: float) -> LockInfo:
        namespace, name = split(key)
        return requests.info(namespace, await self._read_only("inspect", namespace, name, self._now(), within=within))

    async def inspect_holders(self, key: str, *, within: float) -> LockInfo:
        namespace, name = split(key)
        return requests.info(namespace, await self._read_only("holders", namespace, name, self._now(), within=within))

    async def list(self, prefix: str, *, within: float) -> builtins.list[LockInfo]:
        namespace, name = split(prefix)
        found = await self._read_only("list", namespace, name, self._now(), within=within)
        return [requests.info(namespace, one) for one in found]

    async def break_(self, key: str, *, within: float) -> LockInfo:
        namespace, name = split(key)
        patience = requests.patience(within, OPERATOR_PATIENCE_MS)
        before = await self._ask("break", namespace, name, patience, self._now(), within=within)
        return requests.info(namespace, before)

    async def throttle(self, key: str, rate: Rate, *, cost: int, patience: float, within: float) -> Booked:
        now = self._driver.now
        moment = None if now is None else str(round(now() * NS_PER_S))
        wait = str(round(min(patience, 1e9) * NS_PER_S))
        allowed, left, early, until = await self._ask(
            "throttle", key, str(rate.interval), str(rate.burst), str(cost), wait, moment, within=within
        )
        return Booked(Allowance(allowed, int(left), float(early) / NS_PER_S), int(until))

    async def unthrottle(self, key: str, rate: Rate, *, cost: int, until: int, within: float) -> None:
        await self._ask("unthrottle", key, str(rate.interval * cost), str(until), within=within)

    async def read(self, key: str, *, within: float) -> Stored:
        found = await self._read_only("read", key, within=within)
        return EMPTY_CELL if found is None else as_stored(*found)

    async def write(self, key: str, write: Write, *, within: float) -> Written:
        only = None if write.if_version is None else str(write.if_version)
        fence = None if write.fence is None else str(write.fence)
        return Written(*await self._ask("write", key, write.id, write.value, only, fence, within=within))

    async def close(self) -> None:
        await self._driver.close()

    def before_fork(self) -> None:
        """Connections are forgotten in the child; the parent goes on using them."""

    def after_fork(self, *, child: bool) -> None:
        if child:
            self._reset()
            self._driver.after_fork()

    @property
    def url(self) -> str:
        return self._driver.endpoint.url

    async def identify(self, within: float) -> tuple[str, str]:
        return await identify(self._driver.endpoint, within, blocking=self._driver.blocking)

    @property
    def store_id(self) -> str:
        return self._driver.endpoint.name

    def __repr__(self) -> str:
        return repr(self._driver)
