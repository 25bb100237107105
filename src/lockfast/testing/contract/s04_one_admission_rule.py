"""One admission rule for every primitive.

An exclusive claim fits when no claim holds; a shared claim fits when no exclusive claim holds and there is room.
No claim passes an older waiter. Written with the verbs alone, as every backend must answer them.
"""

from __future__ import annotations

from functools import partial

import pytest

from lockfast._model import GRACE_S, Busy, Claim, Grant
from lockfast.testing.contract.story import Promise, needs
from lockfast.testing.stage import Stage


class _Room:
    """A resource, and the claims that ask for it."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.verbs = stage.locks().faults
        self._asked: set[str] = set()

    def writer(self) -> Claim:
        return self.stage.claim("room", ttl=600)

    def reader(self, limit: int | None = None) -> Claim:
        return self.stage.claim("room", ttl=600, mode="shared", limit=limit)

    async def ask(self, claim: Claim, *, enqueue: bool = True) -> Grant | Busy:
        """A new waiter is in the store's queue when this returns: the answer may arrive earlier."""
        waiters = await self._waiters()
        answer = await self.verbs.acquire(claim, enqueue=enqueue, within=5)
        if enqueue and isinstance(answer, Busy) and claim.id not in self._asked:
            await self.stage.until(partial(self._waits_beside, waiters), "the new waiter to be in the queue")
        self._asked.add(claim.id)
        return answer

    async def _waits_beside(self, others: int) -> bool:
        return await self._waiters() == others + 1

    async def _waiters(self) -> int:
        return (await self.stage.info("room")).waiters

    async def enters(self, claim: Claim) -> bool:
        return isinstance(await self.ask(claim), Grant)

    async def leaves(self, claim: Claim) -> None:
        assert await self.verbs.release(claim, linger=0.0, within=5)

    async def is_reserved_when_it_leaves(self, claim: Claim) -> None:
        """For the next. To one of the same process it may be granted at once, so another client says this."""
        assert await self.stage.locks().faults.release(claim, linger=0.0, within=5)

    async def wakeups(self, *claims: Claim) -> None:
        """Until each of them was woken."""
        for claim in claims:
            await self.stage.until(partial(self.verbs.wait, claim, 0.0), "a waiter to be woken")

    async def asleep(self, *claims: Claim) -> bool:
        """None of them was woken, so far."""
        return not any([await self.verbs.wait(claim, 0.0) for claim in claims])

    async def inside(self) -> set[str]:
        return {holder.claim_id for holder in (await self.stage.info("room")).holders}


class OneAdmissionRule(Promise, about="store"):
    @needs("shared")
    async def test_an_exclusive_claim_fits_only_when_nobody_holds(self, stage: Stage) -> None:
        room = _Room(stage)
        first = room.writer()
        assert await room.enters(first)
        assert isinstance(await room.ask(room.writer(), enqueue=False), Busy)
        assert isinstance(await room.ask(room.reader(), enqueue=False), Busy)
        await room.leaves(first)
        reader = room.reader()
        assert await room.enters(reader)
        assert isinstance(await room.ask(room.writer(), enqueue=False), Busy)

    @needs("limits")
    @pytest.mark.parametrize("limit", [1, 2, 5])
    async def test_no_more_shared_claims_hold_than_the_limit(self, stage: Stage, limit: int) -> None:
        room = _Room(stage)
        inside = [room.reader(limit) for _ in range(limit)]
        for claim in inside:
            assert await room.enters(claim)
        late = room.reader(limit)
        assert not await room.enters(late)
        await room.leaves(inside[0])
        await room.wakeups(late)
        assert await room.enters(late)
        assert not await room.enters(room.reader(limit))
        assert len(await room.inside()) == limit

    @needs("shared")
    async def test_without_a_limit_any_number_may_share(self, stage: Stage) -> None:
        room = _Room(stage)
        for _ in range(50):
            assert await room.enters(room.reader())
        assert len(await room.inside()) == 50

    @needs("limits")
    async def test_a_place_is_made_by_expiry_and_by_breaking_too(self, stage: Stage) -> None:
        room = _Room(stage)
        assert await room.enters(stage.claim("room", ttl=5, mode="shared", limit=1))
        assert not await room.enters(room.reader(1)._replace(id="late"))
        stage.clock.advance(5)
        assert await room.enters(room.reader(1)._replace(id="late"))
        await stage.observer.break_lock("room")
        assert await room.enters(room.reader(1))

    @needs("expires")
    @pytest.mark.parametrize("ends", ["a hold", "a reservation"])
    async def test_a_claim_that_finds_room_made_by_time_leaves_it_to_an_older_waiter(
        self, stage: Stage, ends: str
    ) -> None:
        room = _Room(stage)
        dead, absent = stage.claim("room", ttl=5), stage.claim("room", ttl=4)
        older, finder = room.writer(), room.writer()
        assert await room.enters(dead)
        if ends == "a reservation":
            assert not await room.enters(absent)
        assert not await room.enters(older)
        assert not await room.enters(finder)
        if ends == "a reservation":
            stage.clock.advance(2)  # too much of a ttl of 4 s for the release to grant it
            await room.is_reserved_when_it_leaves(dead)
            stage.clock.advance(GRACE_S)
        else:
            stage.clock.advance(5)
        assert not await room.enters(finder)
        assert await room.enters(older)
        assert not await room.enters(finder)
        assert await room.inside() == {older.id}

    @needs("expires")
    async def test_what_expired_and_is_asked_for_again_is_held_once(self, stage: Stage) -> None:
        room = _Room(stage)
        claim = stage.claim("room", ttl=5)
        first = await room.ask(claim)
        stage.clock.advance(5)
        again = await room.ask(claim)
        assert isinstance(first, Grant)
        assert isinstance(again, Grant)
        assert again.fence > first.fence
        assert await room.inside() == {claim.id}
        stage.clock.advance(5)
        assert await room.enters(room.writer())

    @needs("limits")
    async def test_the_permit_of_a_dead_holder_comes_back(self, stage: Stage) -> None:
        room = _Room(stage)
        assert await room.enters(stage.claim("room", ttl=5, mode="shared", limit=2))
        assert await room.enters(room.reader(2))
        assert isinstance(await room.ask(room.reader(2), enqueue=False), Busy)
        stage.clock.advance(5)
        assert await room.enters(room.reader(2))

    @needs("shared")
    async def test_no_reader_is_ever_beside_a_writer(self, stage: Stage) -> None:
        room = _Room(stage)
        writer = room.writer()
        assert await room.enters(writer)
        readers = [room.reader() for _ in range(3)]
        for reader in readers:
            assert not await room.enters(reader)
        assert await room.inside() == {writer.id}
        await room.leaves(writer)
        for reader in readers:
            assert await room.enters(reader)
        assert await room.inside() == {reader.id for reader in readers}

    @needs("shared")
    async def test_nobody_fits_past_an_older_waiter(self, stage: Stage) -> None:
        """Readers that keep coming do not starve a writer."""
        room = _Room(stage)
        early, writer, late = room.reader(), room.writer(), room.reader()
        assert await room.enters(early)
        assert not await room.enters(writer)
        assert not await room.enters(late)  # though it would fit beside the early one
        assert isinstance(await room.ask(room.reader(), enqueue=False), Busy)
        await room.leaves(early)
        await room.wakeups(writer)
        assert await room.asleep(late)
        assert not await room.enters(late)
        assert await room.enters(writer)
        await room.leaves(writer)
        await room.wakeups(late)
        assert await room.enters(late)

    @needs("shared")
    async def test_readers_that_wait_between_two_writers_enter_together(self, stage: Stage) -> None:
        room = _Room(stage)
        first, second = room.writer(), room.writer()
        readers, latecomer = [room.reader() for _ in range(3)], room.reader()
        assert await room.enters(first)
        for claim in [*readers, second, latecomer]:
            assert not await room.enters(claim)
        await room.leaves(first)
        await room.wakeups(*readers)
        assert await room.asleep(second, latecomer)
        for reader in reversed(readers):  # in whatever order they come for it
            assert await room.enters(reader)
        for reader in readers:
            assert not await room.enters(second)
            await room.leaves(reader)
        await room.wakeups(second)
        assert await room.enters(second)
        assert not await room.enters(latecomer)

    @needs("limits")
    async def test_a_release_wakes_as_many_as_there_is_room_for(self, stage: Stage) -> None:
        room = _Room(stage)
        inside = [room.reader(2), room.reader(2)]
        waiting = [room.reader(2) for _ in range(4)]
        for claim in inside:
            assert await room.enters(claim)
        for claim in waiting:
            assert not await room.enters(claim)
        await room.leaves(inside[0])
        await room.wakeups(waiting[0])
        assert await room.asleep(*waiting[1:])
        await room.leaves(inside[1])
        await room.wakeups(waiting[1])
        assert await room.asleep(*waiting[2:])
        for claim in waiting[:2]:
            assert await room.enters(claim)
        assert not await room.enters(waiting[2])

    @needs("limits")
    async def test_what_is_reserved_is_nobody_else_s(self, stage: Stage) -> None:
        room = _Room(stage)
        holder, woken = room.reader(1), room.reader(1)
        assert await room.enters(holder)
        assert not await room.enters(woken)
        await room.leaves(holder)
        for stranger in (room.reader(1), room.writer()):
            assert isinstance(await room.ask(stranger, enqueue=False), Busy)
        assert await room.enters(woken)

    @needs("reserves")
    async def test_a_reservation_that_lapses_goes_to_the_next(self, stage: Stage) -> None:
        room = _Room(stage)
        holder, dead, live = room.writer(), stage.claim("room", ttl=4), room.writer()
        assert await room.enters(holder)
        assert not await room.enters(dead)
        assert not await room.enters(live)
        stage.clock.advance(2)  # too much of a ttl of 4 s for the release to grant it
        await room.is_reserved_when_it_leaves(holder)
        assert not await room.enters(live)
        stage.clock.advance(GRACE_S)
        assert await room.enters(live)
        assert not await room.enters(dead)

    @needs("shared")
    async def test_a_waiter_that_is_abandoned_makes_way(self, stage: Stage) -> None:
        room = _Room(stage)
        reader, writer, late = room.reader(), room.writer(), room.reader()
        assert await room.enters(reader)
        assert not await room.enters(writer)
        assert not await room.enters(late)
        await room.verbs.abandon(writer, within=5)
        await room.wakeups(late)  # the one that kept it out is gone
        assert await room.enters(late)

    async def test_a_reservation_that_is_abandoned_goes_to_the_next_at_once(self, stage: Stage) -> None:
        room = _Room(stage)
        holder, first, second = room.writer(), room.writer(), room.writer()
        assert await room.enters(holder)
        for claim in (first, second):
            assert not await room.enters(claim)
        await room.leaves(holder)
        await room.verbs.abandon(first, within=5)
        await room.wakeups(second)
        assert await room.enters(second)

    async def test_abandoning_a_hold_hands_over(self, stage: Stage) -> None:
        room = _Room(stage)
        holder, waiter = room.writer(), room.writer()
        assert await room.enters(holder)
        assert not await room.enters(waiter)
        await room.verbs.abandon(holder, within=5)
        await room.wakeups(waiter)
        assert await room.enters(waiter)

    @needs("expires", "shared")
    async def test_a_name_that_lingers_takes_room_until_it_ends(self, stage: Stage) -> None:
        room = _Room(stage)
        inside = [room.reader(2), room.reader(2)]
        for claim in inside:
            assert await room.enters(claim)
        assert await room.verbs.release(inside[0], linger=5.0, within=5)
        assert isinstance(await room.ask(room.reader(2), enqueue=False), Busy)
        assert await room.verbs.release(inside[0], linger=5.0, within=5) is False
        stage.clock.advance(5)
        assert await room.enters(room.reader(2))

    async def test_a_position_is_the_number_of_waiters_ahead(self, stage: Stage) -> None:
        room = _Room(stage)
        assert await room.enters(room.writer())
        places = [await room.ask(room.writer()) for _ in range(4)]
        assert [place.position for place in places if isinstance(place, Busy)] == [0, 1, 2, 3]
        stranger = await room.ask(room.writer(), enqueue=False)
        assert isinstance(stranger, Busy)
        assert stranger.holder == "direct"
        assert (await stage.info("room")).waiters == 4

    @needs("shared")
    async def test_breaking_ends_every_hold_and_hands_over(self, stage: Stage) -> None:
        room = _Room(stage)
        for _ in range(3):
            assert await room.enters(room.reader())
        writer = room.writer()
        assert not await room.enters(writer)
        before = await stage.observer.break_lock("room")
        assert len(before.holders) == 3
        await room.wakeups(writer)
        assert await room.enters(writer)

    @needs("shared")
    async def test_inspect_shows_the_mode_of_a_hold(self, stage: Stage) -> None:
        room = _Room(stage)
        reader = room.reader(3)
        assert await room.enters(reader)
        (held,) = (await stage.info("room")).holders
        assert (held.mode, held.claim_id) == ("shared", reader.id)
