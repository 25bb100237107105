"""What the public names give, beyond the promises that have chapters of their own."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from lockfast._model import LockInfo
from lockfast.errors import LeaseLost, NotHeld
from lockfast.observe.events import Event
from lockfast.testing.contract.story import Promise, about, needs
from lockfast.testing.stage import Stage


class PublicNames(Promise, about="engine"):
    # Lock and Lease

    @about("store")
    async def test_a_lease_shows_what_was_granted(self, stage: Stage) -> None:
        before = time.time()
        lease = await stage.locks(holder="worker-7").lock("shop", ttl=30).take()
        assert (lease.name, lease.holder, lease.ttl, lease.metadata) == ("shop", "worker-7", 30.0, None)
        assert before - 1 <= lease.acquired_at <= time.time() + 1
        assert before + 29 <= lease.expires_at <= time.time() + 31
        assert (lease.held, lease.lost, lease.remaining) == (True, False, pytest.approx(30))
        lease.check()

    async def test_a_released_lease_is_neither_held_nor_lost(self, stage: Stage) -> None:
        lease = await stage.locks().lock("shop").take()
        assert await lease.release() is True
        assert (lease.held, lease.lost, lease.remaining) == (False, False, 0)
        with pytest.raises(NotHeld, match="released"):
            lease.check()
        with pytest.raises(NotHeld):
            await lease.extend(10)

    @about("store")
    async def test_locked_is_true_while_the_lock_is_held(self, stage: Stage) -> None:
        mine, theirs = stage.locks().lock("shop"), stage.locks().lock("shop")
        assert not await mine.locked()
        async with mine:
            assert await mine.locked()
            assert await theirs.locked()
        assert not await theirs.locked()

    async def test_a_lock_can_stand_in_for_the_lock_of_the_standard_library(self, stage: Stage) -> None:
        lock = stage.locks().lock("shop")
        assert await lock.acquire()
        assert not await lock.acquire(False)
        await lock.release()
        with pytest.raises(RuntimeError):  # as threading.Lock and asyncio.Lock raise it
            await lock.release()

    async def test_a_body_may_release_its_lease_early(self, stage: Stage) -> None:
        lock = stage.locks().lock("shop")
        async with lock as lease:
            assert await lease.release()
            other = await stage.locks().lock("shop").take()
        assert await stage.fences("shop") == [other.fence]
        async with stage.locks().lock("other"):
            pass

    async def test_a_lock_object_can_be_used_again_and_again(self, stage: Stage) -> None:
        lock = stage.locks().lock("shop")
        for _ in range(3):
            async with lock as lease:
                assert lease.held
            await lock.take()
            await lock.release()
        assert await stage.is_free("shop")

    async def test_lengths_may_be_timedeltas(self, stage: Stage) -> None:
        lock = stage.locks().lock("shop", ttl=timedelta(seconds=20), wait=timedelta(0), min_hold=timedelta(0))
        async with lock as lease:
            assert lease.ttl == 20
            assert await stage.locks().lock("shop").acquire(timeout=timedelta(0)) is None
            await lease.extend(timedelta(minutes=1))
            assert lease.ttl == 60

    async def test_reprs_show_the_state(self, stage: Stage) -> None:
        locks = stage.locks(holder="worker-7")
        lock = locks.lock("shop")
        lease = await lock.take()
        assert "'shop'" in repr(lock.raw)
        assert "worker-7" in repr(locks.raw)
        assert "held" in repr(lease)
        assert str(lease.fence) in repr(lease)
        await lease.release()
        assert "released" in repr(lease)

    # Reentrancy: client-side, for one thread or task

    async def test_a_reentrant_lock_can_be_entered_again_by_the_same_actor(self, stage: Stage) -> None:
        locks = stage.locks()
        async with locks.lock("shop", reentrant=True) as outer:
            async with locks.lock("shop", reentrant=True) as inner:
                assert inner.claim_id == outer.claim_id
            assert outer.held
            assert await stage.fences("shop") == [outer.fence]
        assert await stage.is_free("shop")

    async def test_a_reentrant_lock_object_counts_acquire_and_release(self, stage: Stage) -> None:
        lock = stage.locks().lock("shop", reentrant=True)
        for _ in range(3):
            assert await lock.acquire(blocking=False)
        for _ in range(3):
            assert (await stage.info("shop")).locked
            await lock.release()
        assert await stage.is_free("shop")
        with pytest.raises(NotHeld):
            await lock.release()

    async def test_a_reentrant_lock_keeps_every_other_actor_out(self, stage: Stage) -> None:
        lock = stage.locks().lock("shop", reentrant=True)
        async with lock:
            assert await stage.start(lock.acquire(blocking=False)).result() is None
        other = await stage.start(lock.take()).result()
        assert await lock.acquire(blocking=False) is None
        assert other.held

    @about("store")
    async def test_a_reentrant_lock_keeps_other_clients_out_even_in_the_same_actor(self, stage: Stage) -> None:
        async with stage.locks().lock("shop", reentrant=True):
            assert await stage.locks().lock("shop", reentrant=True).acquire(blocking=False) is None

    async def test_what_was_lost_cannot_be_entered_again(self, stage: Stage) -> None:
        lock = stage.locks().lock("shop", ttl=10, renew=False, reentrant=True)
        lease = await lock.take()
        stage.clock.advance(10)
        following = await stage.locks().lock("shop").take()
        assert await lock.acquire(blocking=False) is None  # refused like everybody else
        assert not lease.held
        assert await stage.fences("shop") == [following.fence]

    async def test_inside_its_with_what_was_lost_cannot_be_entered_again(self, stage: Stage) -> None:
        lock = stage.locks().lock("shop", ttl=10, renew=False, reentrant=True)

        async def lose_and_enter_again() -> None:
            async with lock:
                stage.clock.advance(10)
                with pytest.raises(LeaseLost):
                    await lock.acquire(blocking=False)

        with pytest.raises(LeaseLost):
            await lose_and_enter_again()
        assert await stage.is_free("shop")

    async def test_an_error_in_the_inner_body_leaves_the_outer_one_its_lock(self, stage: Stage) -> None:
        lock = stage.locks().lock("shop", reentrant=True)

        async def inner() -> None:
            async with lock:
                raise ZeroDivisionError

        async with lock as lease:
            with pytest.raises(ZeroDivisionError):
                await inner()
            assert lease.held
            assert (await stage.info("shop")).locked
        assert await stage.is_free("shop")

    # min_hold

    @about("store")
    @needs("expires")
    async def test_a_name_stays_taken_until_min_hold_after_the_grant(self, stage: Stage) -> None:
        async with stage.locks().lock("shop", min_hold=60) as lease:
            stage.clock.advance(2)
        assert not lease.held
        rival = stage.locks().lock("shop")
        stage.clock.advance(57.9)
        assert await rival.acquire(blocking=False) is None
        stage.clock.advance(0.1)
        taken = await rival.acquire(blocking=False)
        assert taken is not None
        assert taken.fence > lease.fence

    @about("store")
    @needs("expires")
    async def test_a_waiter_comes_in_when_min_hold_has_passed(self, stage: Stage) -> None:
        lease = await stage.locks().lock("shop", min_hold=7).take()
        waiter = stage.start(stage.locks().lock("shop").take())
        await stage.queue("shop", 1)
        assert await lease.release()
        assert await stage.sleep_through(waiter) == pytest.approx(7, abs=0.6)

    @about("store")
    @needs("expires")
    async def test_a_hold_longer_than_min_hold_is_freed_at_once(self, stage: Stage) -> None:
        async with stage.locks().lock("shop", ttl=60, min_hold=5):
            stage.clock.advance(5)
        assert await stage.is_free("shop")

    @about("store")
    @needs("expires")
    async def test_a_name_that_lingers_is_not_held_renewed_or_taken_again_by_its_claim(self, stage: Stage) -> None:
        locks = stage.locks()
        lease = await locks.lock("shop", ttl=10, min_hold=60).take()
        assert await lease.release()
        assert await lease.release() is False
        with pytest.raises(NotHeld):
            await lease.extend(100)
        stage.clock.advance(60)
        assert await stage.is_free("shop")
        assert locks.faults.calls["renew"] == 0

    @about("store")
    @needs("expires")
    async def test_breaking_ends_min_hold_too(self, stage: Stage) -> None:
        async with stage.locks().lock("shop", min_hold=60):
            pass
        await stage.observer.break_lock("shop")
        assert await stage.locks().lock("shop").acquire(blocking=False) is not None

    # Looking, and breaking a lock

    @about("store")
    async def test_inspect_reports_the_holders_and_how_many_wait(self, stage: Stage) -> None:
        before = time.time()
        lease = await stage.locks(holder="worker-7").lock("shop", ttl=30).take()
        waiter = stage.start(stage.locks().lock("shop").take())
        await stage.queue("shop", 1)
        info = await stage.info("shop")
        assert (info.name, info.waiters, info.locked) == ("shop", 1, True)
        (held,) = info.holders
        facts = (held.holder, held.claim_id, held.fence, held.mode, held.metadata)
        assert facts == ("worker-7", lease.claim_id, lease.fence, "exclusive", None)
        assert held.acquired_at == pytest.approx(lease.acquired_at)
        assert before + 29 <= held.expires_at <= time.time() + 31
        assert info.as_dict()["holders"][0]["fence"] == lease.fence
        row = (info.lock_name, info.holder_id, info.acquired_at, info.expires_at, info.metadata)
        assert row == ("shop", held.holder_id, held.acquired_at, held.expires_at, held.metadata)
        await lease.release()
        await waiter.result()

    @about("store")
    @needs("metadata")
    async def test_metadata_is_shown_to_others_as_it_was_given(self, stage: Stage) -> None:
        lease = await stage.locks().lock("shop", metadata={"job": [1, "a"]}).take()
        (seen,), (listed,) = (await stage.info("shop")).holders, (await stage.observer.list())[0].holders
        (broken,) = (await stage.observer.break_lock("shop")).holders
        assert [one.metadata for one in (lease, seen, listed, broken)] == [{"job": [1, "a"]}] * 4

    @about("store")
    async def test_inspect_shows_no_less_time_after_a_shorter_extension(self, stage: Stage) -> None:
        before = time.time()
        lease = await stage.locks().lock("shop", ttl=60, renew=False).take()
        await lease.extend(5)
        (held,) = (await stage.info("shop")).holders
        assert held.expires_at >= before + 59

    @about("store")
    async def test_inspect_of_a_name_that_nobody_uses_is_empty(self, stage: Stage) -> None:
        info = await stage.info("shop")
        assert info == LockInfo("shop")
        assert (info.lock_name, info.holder_id, info.acquired_at, info.expires_at) == ("shop", None, None, None)
        assert info.metadata is None

    @about("store")
    async def test_list_gives_what_is_held_or_waited_for_in_order_of_names(self, stage: Stage) -> None:
        locks = stage.locks()
        for name in ("b", "a:2", "a:1", "c"):
            await locks.lock(name).take()
        async with locks.lock("gone"):
            pass
        assert [info.name for info in await locks.list()] == ["a:1", "a:2", "b", "c"]
        assert [info.name for info in await locks.list("a:")] == ["a:1", "a:2"]
        assert await locks.list("nothing") == []

    @about("store")
    async def test_a_list_shows_what_has_changed_since_the_one_before_it(self, stage: Stage) -> None:
        """As in a view that is refreshed every second."""
        locks = stage.locks()
        first, shown = await locks.lock("a").take(), [["a"]]
        listed = [[info.name for info in await stage.observer.list()]]
        second = await locks.lock("b").take()
        for change, names in (
            (first.release, ["b"]),
            (locks.lock("a").take, ["a", "b"]),
            (second.release, ["a"]),
            (locks.lock("c").take, ["a", "c"]),
            (locks.lock("b").take, ["a", "b", "c"]),
        ):
            await change()
            shown.append(names)
            listed.append([info.name for info in await stage.observer.list()])
        assert listed == shown

    @about("store")
    async def test_a_prefix_means_its_letters_and_nothing_else(self, stage: Stage) -> None:
        locks = stage.locks()
        names = ["%", "*", "A", "[a]", "\\", "\\_", "_", "a", "a%b", "a_b", "aXb", "a\U0010ffff\U0010ffff", "ä"]
        for name in names:
            await locks.lock(name).take()
        for prefix in ("%", "_", "*", "[", "\\", "\\_", "a%", "a_", "A", "a", "ä"):
            found = [info.name for info in await locks.list(prefix)]
            assert found == sorted(name for name in names if name.startswith(prefix)), prefix

    @about("store")
    async def test_names_that_look_alike_are_different_names(self, stage: Stage) -> None:
        locks = stage.locks()
        for name in ("name", "Name", "name ", " name", "name\u0301", "nam\u00e9", "name\u200b"):
            assert await locks.lock(name).acquire(blocking=False) is not None, name

    @about("store")
    async def test_no_two_of_many_names_are_one_lock(self, stage: Stage) -> None:
        locks = stage.locks()
        for number in range(300):
            assert await locks.lock(f"lock-{number}").acquire(blocking=False) is not None
        assert len(await locks.list("lock-")) == 300

    @about("store")
    async def test_break_lock_returns_what_it_removed(self, stage: Stage) -> None:
        lease = await stage.locks(holder="stuck").lock("shop").take()
        breaker = stage.locks()
        received = stage.record(breaker)
        before = await breaker.break_lock("shop")
        assert before.name == "shop"
        assert [(h.holder, h.fence) for h in before.holders] == [("stuck", lease.fence)]
        assert [(event.kind, event.name, event.fence) for event in received] == [("broken", "shop", lease.fence)]
        assert await breaker.break_lock("shop") == LockInfo("shop")

    @about("store")
    async def test_namespaces_keep_names_apart(self, stage: Stage) -> None:
        ours, theirs = stage.locks(), stage.locks(namespace=stage.namespace + "-2")
        lease = await ours.lock("shop").take()
        other = await theirs.lock("shop").take()
        assert [info.name for info in await ours.list()] == ["shop"]
        assert [holder.fence for holder in (await theirs.inspect("shop")).holders] == [other.fence]
        await theirs.break_lock("shop")
        assert await theirs.list() == []
        assert await stage.fences("shop") == [lease.fence]

    @about("store")
    async def test_the_default_namespace_is_one_like_any_other(self, stage: Stage) -> None:
        name = f"shop-{stage.namespace}"
        default, ours = stage.locks(namespace="lockfast"), stage.locks()
        await default.lock(name).take()
        assert await ours.lock(name).acquire(blocking=False) is not None
        assert [info.name for info in await default.list(name)] == [name]
        assert await ours.list("lockfast") == []

    # Events

    async def test_an_ordinary_hold_is_reported_as_asked_granted_and_released(self, stage: Stage) -> None:
        locks = stage.locks(holder="worker-7")
        received = stage.record(locks)
        async with locks.lock("shop", ttl=60) as lease:
            stage.clock.advance(3)
        assert [event.kind for event in received] == ["asked", "granted", "released"]
        assert {(event.name, event.holder, event.claim_id) for event in received} == {
            ("shop", "worker-7", lease.claim_id)
        }
        assert received[1].fence == received[2].fence == lease.fence
        assert received[1].waited == 0
        assert received[2].held_for == pytest.approx(3)

    async def test_the_events_of_a_wait_say_how_long_it_took(self, stage: Stage) -> None:
        holder = await stage.locks(holder="worker-7").lock("shop", ttl=600).take()
        locks = stage.locks()
        received = stage.record(locks)
        quitter = stage.start(locks.lock("shop", wait=5).acquire())
        await stage.queue("shop", 1)
        stage.clock.advance(5)
        await quitter.result()
        waiter = stage.start(locks.lock("shop").take())
        await stage.queue("shop", 1)
        stage.clock.advance(0.25)
        await holder.release()
        await waiter.result()
        reported = [event for event in received if event.kind != "asked"]
        assert [(event.kind, event.outcome) for event in reported] == [
            ("not_granted", "timeout"),
            ("granted", "granted"),
        ]
        assert [event.waited for event in reported] == pytest.approx([5, 0.25])
        assert reported[0].held_by == "worker-7"
        assert reported[0].position == 0
        assert "worker-7" in reported[0].detail

    async def test_a_long_wait_is_reported_while_it_lasts(self, stage: Stage) -> None:
        holder = await stage.locks(holder="worker-7").lock("shop", ttl=3600).take()
        locks = stage.locks()
        received = stage.record(locks)
        waiter = stage.start(locks.lock("shop").take())
        await stage.queue("shop", 1)

        def reported() -> list[Event]:
            stage.clock.advance(1)
            return [event for event in received if event.kind == "waiting"]

        await stage.until(reported)
        event = reported()[0]
        assert event.waited is not None
        assert event.waited >= 10
        assert (event.name, event.held_by, event.position) == ("shop", "worker-7", 0)
        await holder.release()
        await waiter.result()

    async def test_a_listener_that_fails_harms_no_caller(self, stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
        locks = stage.locks()
        locks.raw.events.listen(_fail)
        received = stage.record(locks)
        with caplog.at_level("CRITICAL"):
            async with locks.lock("shop"):
                pass
        assert [event.kind for event in received] == ["asked", "granted", "released"]


def _fail(event: Event) -> None:
    raise ZeroDivisionError
