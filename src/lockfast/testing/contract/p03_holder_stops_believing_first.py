"""Promise 3: the holder stops believing before the server can grant again.

The local deadline counts from before the request was sent, less a drift margin, and `held` is computed.
"""

from __future__ import annotations

import pytest

from lockfast.errors import LeaseLost
from lockfast.testing.clock import FakeClock
from lockfast.testing.contract.story import Promise, about, needs
from lockfast.testing.faults import ALWAYS
from lockfast.testing.stage import Stage


class HolderStopsBelievingFirst(Promise, about="engine"):
    async def test_a_lease_counts_from_before_its_request_and_not_from_the_reply(self, stage: Stage) -> None:
        locks = stage.locks()
        locks.faults.hang_reply("acquire")
        asker = stage.start(locks.lock("post", ttl=10, renew=False).take())
        await stage.until(lambda: locks.faults.hanging == 1)
        stage.clock.advance(4)
        locks.faults.resume()
        lease = await asker.result()
        assert lease.remaining == pytest.approx(6)

    @about("store")
    async def test_a_lease_after_waiting_counts_from_its_last_request_and_not_the_first(self, stage: Stage) -> None:
        holder = await stage.locks().lock("post", ttl=600).take()
        waiter = stage.start(stage.locks().lock("post", ttl=10).take())
        await stage.queue("post", 1)
        stage.clock.advance(100)
        await stage.queue("post", 1)
        await holder.release()
        assert (await waiter.result()).remaining == pytest.approx(10)

    async def test_an_asked_again_lease_counts_from_the_request_that_was_answered(self, stage: Stage) -> None:
        locks = stage.locks()
        locks.faults.lose_reply("acquire", 2)
        lease = await stage.finish(locks.lock("post", ttl=10, renew=False).take())
        assert 9 < lease.remaining <= 10
        stage.clock.advance(lease.remaining)
        assert not lease.held

    async def test_a_renewal_counts_from_before_its_request(self, stage: Stage) -> None:
        locks = stage.locks()
        lease = await locks.lock("post", ttl=30).take()
        locks.faults.hang_reply("renew")
        await stage.asleep()
        stage.clock.advance(10)
        await stage.until(lambda: locks.faults.hanging == 1)
        stage.clock.advance(5)
        locks.faults.resume()
        await stage.until(lambda: lease.remaining > 15)
        assert lease.remaining == pytest.approx(25)

    async def test_an_extension_counts_from_before_its_request(self, stage: Stage) -> None:
        locks = stage.locks()
        lease = await locks.lock("post", ttl=10, renew=False).take()
        locks.faults.hang_reply("renew")
        extender = stage.start(lease.extend(20))
        await stage.until(lambda: locks.faults.hanging == 1)
        stage.clock.advance(5)
        locks.faults.resume()
        await extender.result()
        assert lease.remaining == pytest.approx(15)

    async def test_held_is_computed_from_the_clock_and_needs_nobody_to_notice(self, stage: Stage) -> None:
        """As after SIGSTOP: not one line of code has run since time passed."""
        lease = await stage.locks().lock("post", ttl=10, renew=False).take()
        stage.clock.advance(9.99)
        assert lease.held
        assert not lease.lost
        stage.clock.advance(0.01)
        assert not lease.held
        assert lease.lost
        assert lease.remaining == 0

    async def test_a_dead_renewal_does_not_keep_the_holder_believing(self, stage: Stage) -> None:
        locks = stage.locks()
        lease = await locks.lock("post", ttl=10).take()
        locks.faults.hang_request("renew", ALWAYS)
        await stage.asleep()
        stage.clock.advance(4)
        await stage.until(lambda: locks.faults.hanging == 1)
        stage.clock.advance(6)
        assert not lease.held
        with pytest.raises(LeaseLost):
            lease.check()

    @about("store")
    @pytest.mark.parametrize("delay", [0.0, 1.0, 9.0])
    async def test_there_is_never_a_moment_with_two_believers(self, stage: Stage, delay: float) -> None:
        locks, rival = stage.locks(), stage.locks().lock("post")
        locks.faults.hang_reply("acquire")
        asker = stage.start(locks.lock("post", ttl=10, renew=False).take())
        await stage.until(lambda: locks.faults.hanging == 1)
        stage.clock.advance(delay)
        locks.faults.resume()
        lease = await asker.result()
        for _ in range(200):
            believed = lease.held
            taken = await rival.acquire(blocking=False)
            assert taken is None or not believed
            if taken is not None:
                break
            stage.clock.advance(0.125)
            await stage.settle()
        else:
            raise AssertionError("the lock was never granted again")

    @about("store")
    @needs("expires")
    async def test_a_clock_that_may_drift_is_believed_for_less_than_the_ttl(self, stage: Stage) -> None:
        locks = stage.locks(capabilities={"drift": 0.1})
        lease = await locks.lock("post", ttl=10, renew=False).take()
        assert lease.remaining == pytest.approx(9)
        await lease.extend(20)
        assert lease.remaining == pytest.approx(18)
        stage.clock.advance(18)
        assert not lease.held
        assert (await stage.info("post")).locked

    async def test_a_holder_with_a_slow_clock_within_the_margin_still_stops_first(self, stage: Stage) -> None:
        own = FakeClock()
        lease = await stage.locks(clock=own, capabilities={"drift": 0.1}).lock("post", ttl=10, renew=False).take()
        rival = stage.locks().lock("post")
        for _ in range(100):
            stage.clock.advance(0.125)
            own.advance(0.125 * 0.91)  # nearly as slow as declared
            await stage.settle()
            believed = lease.held
            if await rival.acquire(blocking=False) is not None:
                assert not believed
                break
        else:
            raise AssertionError("the lock was never granted again")

    @about("store")
    async def test_what_was_lost_is_never_believed_in_again(self, stage: Stage) -> None:
        locks = stage.locks()
        lease = await locks.lock("post", ttl=10).take()
        locks.faults.hang_request("renew")
        await stage.asleep()
        stage.clock.advance(4)
        await stage.until(lambda: locks.faults.hanging == 1)
        stage.clock.advance(6)
        with pytest.raises(LeaseLost):
            lease.check()
        locks.faults.resume()  # a late answer
        await stage.until(lambda: stage._calm())
        assert not lease.held
        assert lease.lost
        with pytest.raises(LeaseLost):
            lease.check()

    async def test_renewals_and_extensions_never_shorten_what_is_believed(self, stage: Stage) -> None:
        locks = stage.locks()
        lease = await locks.lock("post", ttl=60, renew=False).take()
        await lease.extend(5)
        assert lease.remaining == pytest.approx(60)
        stage.clock.advance(59)
        assert lease.held
        assert await stage.fences("post") == [lease.fence]
