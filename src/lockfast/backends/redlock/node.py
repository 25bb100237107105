"""One Redis server as a member of a quorum: all that the single server can, and votes.

Decides: how a vote is asked for, with a fence that the client proposes, and how a fence is recorded.
Leaves to `redis`: every other request to one server. Leaves to `votes`: what the votes of all mean.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Final

from lockfast._model import Busy, Claim, Grant, Terms
from lockfast._time import boot_now
from lockfast.backends.redis import requests
from lockfast.backends.redis.backend import RedisBackend
from lockfast.backends.redis.io.resp import command, words
from lockfast.backends.redis.io.router import Connections, RedisDriver
from lockfast.backends.redis.requests import Prepared, script, source
from lockfast.backends.redlock.io.members import Member
from lockfast.backends.redlock.tally import BrokenHolds
from lockfast.errors import BackendUnavailable

# Without those that only questions need, each of which is waited for.
SCRIPTS: Final = (
    "redlock/vote_quick",
    "release_quick",
    "acquire",
    "release",
    "abandon",
    "renew",
    "redlock/give_back",
    "redlock/record_fence",
)


@lru_cache(maxsize=1024)
def _quick_vote(terms: Terms) -> Prepared:
    """As `acquire_quick`, with another script; the proposal is its last word."""
    quick, mine = requests.quick_acquire(terms, True), script("redlock/vote_quick")
    before = quick.before.replace(quick.script.digest, mine.digest)
    return quick._replace(script=mine, before=before, size=quick.size + 1)


class NodeDriver(RedisDriver):
    def __init__(self, member: Member, connections: Connections, now: Callable[[], float] | None) -> None:
        super().__init__(member, connections, now)
        self._greeted = True  # each new connection asks the server what it is
        self.ask_directly = partial(self._ask_one, None)


class RedisNode(RedisBackend):
    def __init__(self, driver: RedisDriver, member: Member) -> None:
        super().__init__(driver)
        self.name = member.name
        self.age = member.age  # seconds for which it has remembered everything, as far as that can be known
        self.contended, self.in_doubt = self._contended, self._unanswered
        member.mark_in_doubt = self.mark_in_doubt

    def mark_in_doubt(self, id: str) -> None:
        """A request of this claim may still arrive, after the next one."""
        self._note_unanswered(id, boot_now())

    def quick_vote(self, claim: Claim, fence: int) -> bytes:
        """The same request for every server: it votes if the name is free. Its reply is a fence or None."""
        prepared, now = _quick_vote(claim.terms), self._now()
        return b"*%d\r\n%b$%d\r\n%b\r\n%b$16\r\n%016d\r\n%b" % (
            prepared.size + len(now),
            prepared.before,
            len(claim.id),
            claim.id.encode(),
            prepared.after,
            fence,
            words(*now) if now else b"",
        )

    @property
    def load_quick_vote(self) -> bytes:
        """For a server that has forgotten the script of `quick_vote`."""
        return command("SCRIPT", "LOAD", source("redlock/vote_quick"))

    def quick_release(self, claim: Claim) -> bytes:
        """Its reply is 1 if the claim held and none waits, 0 if it did not hold, None if `release` has to decide."""
        return self._request(requests.quick_release(claim.terms.key), claim.id)

    async def vote(self, claim: Claim, *, fence: int, order: int, enqueue: bool, within: float) -> Grant | Busy:
        """As `acquire`; a grant has the fence that was proposed, or a higher one if that was given out here.

        A claim that has to wait is queued before all that have a higher `order`.
        """
        started = boot_now()
        try:
            return await self._acquire_or_wait(claim, enqueue, within, (fence, order))
        except BackendUnavailable as error:
            if error.sent:
                self._note_unanswered(claim.id, started)
            raise

    async def _acquire(self, claim: Claim, address: str, within: float, proposal: tuple[int, int] | None) -> Any:
        prepared = requests.acquire(claim.terms, address, self._listed)
        now = self._now() or (b"",)
        request = b"*%d\r\n%b%b%b%b" % (
            prepared.size + 3,
            prepared.before,
            words(claim.id),
            prepared.after,
            words(*now, *(proposal or ())),
        )
        return await self._driver.run(prepared.script, prepared.key, request, within)

    async def end_holds(self, key: str, *, within: float) -> BrokenHolds:
        return BrokenHolds(*await self._break(key, within))

    async def refuse(self, key: str, id: str, *, seconds: float, within: float) -> None:
        """End what that claim holds, and grant it nothing for `seconds`."""
        now = self._now() or (b"",)
        await self._run("abandon", key, (id, 1, *now, requests.micros(seconds)), within)

    async def record_fence(self, claim: Claim, *, fence: int, instead_of: int, within: float) -> bool:
        """From now on the claim's hold has that fence, and later ones are higher. False if its hold has neither."""
        args: tuple[str | bytes | int, ...] = (claim.id, fence, instead_of, *self._now())
        return bool(await self._run("redlock/record_fence", claim.terms.key, args, within) == 1)

    async def give_back(self, claim: Claim, *, up_to: int, order: int, enqueue: bool, within: float) -> None:
        """End the claim's hold if its fence is not above `up_to`. The claim may be granted again; or it waits."""
        address = self._driver.wakeups.address if enqueue else ""
        args: tuple[str | bytes | int, ...] = (claim.id, up_to, order, address, *self._now())
        await self._run("redlock/give_back", claim.terms.key, args, within)
