"""One Redis server as a member of a quorum: all that the single server can, and votes.

Decides: how a vote is asked for, with a fence that the client proposes, and how a fence is written back.
Leaves to `redis`: everything else that one server is asked. Leaves to `quorum`: what the votes of all mean.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, Final

from holdfast._model import Busy, Claim, Grant, Terms
from holdfast._time import boot_now
from holdfast._worlds import Clock, World
from holdfast.backends import redis_requests as requests
from holdfast.backends.quorum import QuorumBackend
from holdfast.backends.redis import RedisBackend, _granted
from holdfast.backends.redis_requests import Prepared, script
from holdfast.drivers.redis_places import Place
from holdfast.drivers.redis_quorum import Member, Turn, members_of, open_crew, source_of
from holdfast.drivers.redis_routes import RedisDriver
from holdfast.drivers.redis_wire import ReplyError, Script, command, words
from holdfast.drivers.redis_wire import script as pack_script
from holdfast.errors import BackendUnavailable

# How the script `acquire` begins, and how it begins where numbers are counted from what the client proposes.
_COUNTS: Final = "local wall = time[1] * 1000000 + time[2]\nlocal now = tonumber(ARGV[8]) or wall\n"
_PROPOSED: Final = "local wall = tonumber(ARGV[8])\nlocal now = tonumber(ARGV[9]) or time[1] * 1000000 + time[2]\n"


@cache
def proposing() -> Script:
    """The script `acquire`, with a proposal in place of the server's own count."""
    source = source_of(script("acquire"))
    assert source.count(_COUNTS) == 1  # else a fence would not be what was proposed
    source = source.replace(_COUNTS, _PROPOSED)
    return pack_script(source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


@lru_cache(maxsize=1024)
def quick_vote(terms: Terms) -> Prepared:
    """As `acquire_quick`, but for the claim and the proposal."""
    quick = requests.quick_acquire(terms)
    mine = script("quorum_vote")
    return Prepared(
        mine, quick.key, quick.size + 1, quick.before.replace(quick.script.digest, mine.digest), quick.after
    )


@lru_cache(maxsize=256)
def slow_vote(terms: Terms, address: str) -> Prepared:
    slow = requests.acquire(terms, address)
    mine = proposing()
    return Prepared(mine, slow.key, slow.size + 1, slow.before.replace(slow.script.digest, mine.digest), slow.after)


class RedisNode(RedisBackend):
    def __init__(self, driver: RedisDriver, member: Member) -> None:
        super().__init__(driver)
        self._member = member
        self._proposals: dict[str, int] = {}  # by claim: of votes that are being asked for

    @property
    def name(self) -> str:
        return self._member.name

    def age(self) -> float:
        """Seconds for which it has known all that it was told, as far as that can be known."""
        return self._member.age()

    def doubt(self, id: str) -> None:
        """A request of this claim may still arrive, after whatever is asked next."""
        self._doubt(id)

    def is_crowded(self, key: str) -> bool:
        """Whether a vote would put the claim in line at once."""
        return key in self._crowded

    def _proposing(self, prepared: Prepared, id: str) -> bytes:
        _, _, size, before, after = prepared
        now = self._now()
        return b"*%d\r\n%b$%d\r\n%b\r\n%b$16\r\n%016d\r\n%b" % (
            size + len(now),
            before,
            len(id),
            id.encode(),
            after,
            self._proposals[id],
            words(*now),
        )

    def is_plain(self, claim: Claim) -> bool:
        """Whether nothing is known that the quick scripts could not deal with."""
        return claim.terms.key not in self._crowded and claim.id not in self._doubtful and self._driver._direct

    def shout_vote(self, claim: Claim, fence: int) -> Turn:
        """What all servers can be asked in the same words: they vote if the name is free. Answers a fence or None."""
        self._proposals[claim.id] = fence
        try:
            return Turn(self._proposing(quick_vote(claim.terms), claim.id), 0)
        finally:
            del self._proposals[claim.id]

    def shout_release(self, claim: Claim) -> Turn:
        """Answers 1 if it held and nobody waits, 0 if it did not hold."""
        return Turn(self._request(requests.quick_release(claim.terms.key), claim.id), 0)

    async def vote(self, claim: Claim, *, fence: int, enqueue: bool, within: float) -> Grant | Busy:
        """As `acquire`; what is granted has the fence that was proposed, or a higher one if that was given out here."""
        id, terms = claim
        until = boot_now() + within
        self._proposals[id] = fence
        try:
            if terms.key not in self._crowded:
                prepared = quick_vote(terms)
                request = self._proposing(prepared, id)
                answer = await self._driver.ask(prepared.key, request, within)
                if answer.__class__ is ReplyError:
                    answer = await self._driver.settle(prepared.script, prepared.key, request, answer, within)
                if answer is not None:
                    return _granted(answer)
            return await self._acquire_or_wait(claim, enqueue, until)
        except BackendUnavailable:
            self._doubt(id)
            raise
        finally:
            self._proposals.pop(id, None)

    async def _acquire(self, claim: Claim, address: str, within: float) -> Any:
        prepared = slow_vote(claim.terms, address)
        request = self._proposing(prepared, claim.id)
        return await self._driver.run(prepared.script, prepared.key, request, within)

    async def seal(self, claim: Claim, *, fence: int, instead_of: int, within: float) -> bool:
        """From now on the claim's hold goes by that fence, and later ones are higher. False if it has neither."""
        args: tuple[str | bytes | int, ...] = (claim.id, fence, instead_of, *self._now())
        return bool(await self._run("quorum_seal", claim.terms.key, args, within) == 1)

    async def give_back(self, claim: Claim, *, up_to: int, within: float) -> None:
        """End what the claim was granted with a fence up to that one, and its place in line. It may be granted anew."""
        await self._run("quorum_give_back", claim.terms.key, (claim.id, up_to, *self._now()), within)


def open_quorum(
    places: Sequence[Place], world: World, clock: Clock | None, *, node_timeout: float, rejoin: float | None
) -> QuorumBackend:
    """The quorum of these servers, for that world. Nothing is connected yet. Raises ValueError for too few of them."""
    members = members_of(places)
    scripts = [source_of(script(name)) for name in ("quorum_vote", "release_quick")]
    for member in members:  # a vote that comes after the others is not asked for again, so it must be known at once
        member.preload = [command("SCRIPT", "LOAD", source) for source in scripts]
    crew = open_crew(members, world, clock, node_timeout)
    now = clock.now if clock is not None else None
    drivers = [RedisDriver(member, wires, now) for member, wires in zip(members, crew.wires, strict=True)]
    nodes = [RedisNode(driver, member) for driver, member in zip(drivers, members, strict=True)]
    return QuorumBackend(nodes, crew, chance=world.chance, rejoin=rejoin)
