"""Promise 11: fork-safe, thread-safe, safe at interpreter exit; no signal handlers, no surprises from `__del__`."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from unittest import mock

import pytest

from lockfast.errors import LockError, NotHeld
from lockfast.testing.contract.story import Promise, about, needs, on_the_real_clock
from lockfast.testing.stage import Stage


class ProcessManners(Promise, about="store"):
    # Fork

    @needs("fork")
    async def test_a_child_does_not_hold_what_its_parent_holds(self, stage: Stage) -> None:
        lease = await stage.locks().lock("hall").take()

        def child() -> bool:
            with pytest.raises(NotHeld, match="parent"):
                lease.check()
            return not lease.held and not lease.lost and lease.remaining == 0

        assert _in_a_child(child)
        assert lease.held

    @needs("fork")
    async def test_a_child_cannot_release_or_extend_what_its_parent_holds(self, stage: Stage) -> None:
        locks = stage.locks()
        lock = locks.lock("hall")
        lease = await lock.take()

        async def try_everything() -> bool:
            with pytest.raises(LockError):
                await lease.extend(60)
            with contextlib.suppress(LockError):
                await lock.release()
            await lock.__aexit__(None, None, None)
            return await lease.release() is False

        def child() -> bool:
            return stage.alone(try_everything())

        assert _in_a_child(child)
        assert lease.held
        assert await stage.fences("hall") == [lease.fence]

    @needs("fork")
    async def test_a_child_that_closes_its_locks_leaves_its_parent_s_alone(self, stage: Stage) -> None:
        locks = stage.locks()
        lease = await locks.lock("hall").take()

        def child() -> bool:
            stage.alone(locks.close())
            return True

        assert _in_a_child(child)
        assert await stage.fences("hall") == [lease.fence]
        assert await lease.release()

    @needs("fork")
    async def test_a_parent_goes_on_renewing_after_a_fork(self, stage: Stage) -> None:
        lease = await stage.locks().lock("hall", ttl=30).take()
        await stage.asleep()
        assert _in_a_child(lambda: True)
        await stage.pass_time(100)
        assert lease.held
        assert await stage.fences("hall") == [lease.fence]

    @needs("fork")
    async def test_a_child_can_use_its_parent_s_locks_for_itself(self, stage: Stage) -> None:
        locks = stage.locks()
        await locks.lock("hall").take()
        parent = locks.holder

        async def use() -> bool:
            lease = await locks.lock("other").take()
            held = lease.held and lease.holder == locks.holder != parent
            return held and await lease.release()

        assert _in_a_child(lambda: stage.alone(use()))

    @needs("fork", "processes")
    async def test_a_child_is_excluded_by_what_its_parent_holds(self, stage: Stage) -> None:
        locks = stage.locks()
        lock = locks.lock("hall")
        await lock.take()
        assert _in_a_child(lambda: stage.alone(lock.acquire(blocking=False)) is None)

    @needs("fork")
    async def test_parent_and_child_never_make_the_same_claim(self, stage: Stage) -> None:
        locks = stage.locks()
        read, write = os.pipe()

        async def claims(prefix: str) -> set[str]:
            return {(await locks.lock(f"{prefix}-{number}").take()).claim_id for number in range(20)}

        def child() -> bool:
            os.write(write, " ".join(stage.alone(claims("child"))).encode())
            return True

        with mock.patch("time.time_ns", return_value=time.time_ns()):  # in the same millisecond, too
            assert _in_a_child(child)
            ours = await claims("parent")
        os.close(write)
        with os.fdopen(read) as pipe:
            theirs = set(pipe.read().split())
        assert len(theirs) == 20
        assert not theirs & ours

    # Threads and tasks

    @pytest.mark.parametrize("share", ["locks", "lock"])
    async def test_one_object_can_be_used_by_many_at_once(self, stage: Stage, share: str) -> None:
        locks = stage.locks()
        one = locks.lock("hall")
        counter = [0]

        async def count() -> None:
            for _ in range(25):
                async with one if share == "lock" else locks.lock("hall"):
                    seen = counter[0]
                    if seen % 10 == 0:
                        await stage.breathe()
                    counter[0] = seen + 1

        for actor in [stage.start(count()) for _ in range(4)]:
            await actor.result()
        assert counter == [100]
        assert await stage.is_free("hall")

    # Exit

    @needs("processes")
    @on_the_real_clock
    async def test_an_interpreter_that_ends_leaves_no_place_in_a_queue_behind(self, stage: Stage) -> None:
        await stage.locks().lock("hall", ttl=600).take()
        ended = _run(_WAIT_AND_END[stage.world], stage.url, stage.namespace)
        # Python may complain of a connection that was being made in the loop that is left.
        assert (ended.returncode, ended.stdout) == (0, "waits\n"), ended.stderr
        if self.capabilities.expires:
            assert (await stage.info("hall")).waiters == 0
        else:  # its server has yet to see that the connection has ended
            await stage.queue("hall", 0)

    @needs("processes")
    @on_the_real_clock
    async def test_an_interpreter_that_ends_releases_what_it_held(self, stage: Stage) -> None:
        ended = _run(_HOLD_AND_END[stage.world], stage.url, stage.namespace)
        assert (ended.returncode, ended.stderr) == (0, "")
        fence = int(ended.stdout)
        lease = await stage.locks().lock("hall", wait=0).take()
        assert lease.fence > fence

    async def test_closing_releases_everything_and_can_be_repeated(self, stage: Stage) -> None:
        locks = stage.locks()
        leases = [await locks.lock(f"hall-{number}").take() for number in range(3)]
        await locks.close()
        await locks.close()
        assert not any(lease.held for lease in leases)
        assert not any(lease.lost for lease in leases)
        assert await stage.observer.list() == []

    async def test_closing_does_its_best_when_the_backend_cannot_be_asked(self, stage: Stage) -> None:
        locks = stage.locks(patience=1)
        await locks.lock("hall-1", ttl=20).take()
        await locks.lock("hall-2", ttl=20).take()
        locks.faults.lose_request("release", 1)
        await stage.finish(locks.close())
        assert await stage.observer.list() == []

    async def test_what_was_under_way_while_it_closed_opens_nothing_again(self, stage: Stage) -> None:
        before = _open_files()
        locks = stage.locks()
        await locks.lock("hall", ttl=30).take()
        locks.faults.hang_request("renew")
        await stage.asleep()
        stage.clock.advance(10)
        await stage.until(lambda: locks.faults.hanging == 1)
        await locks.close()
        locks.faults.resume()
        await stage.until(lambda: stage._activity.in_background("lockfast-renewal") == 0)
        # A thread that watches sessions closes its own pipe, after it was closed here.
        await stage.until(lambda: not _open_files() - before, "everything that was opened to be closed")

    # Manners

    @needs("blocking")
    async def test_no_signal_handler_is_installed(self, stage: Stage) -> None:
        before = {number: signal.getsignal(number) for number in signal.valid_signals()}
        async with stage.locks().lock("hall"):
            assert {number: signal.getsignal(number) for number in signal.valid_signals()} == before

    @about("engine")
    async def test_forgetting_a_lock_or_a_lease_never_releases_it(self, stage: Stage) -> None:
        locks = stage.locks()
        await locks.lock("hall", ttl=30).take()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            gc.collect()
        assert (await stage.info("hall")).locked
        await stage.asleep()
        await stage.pass_time(100)
        assert (await stage.info("hall")).locked

    async def test_forgetting_all_locks_warns_and_releases_nothing(self, stage: Stage) -> None:
        locks = stage.locks()
        await locks.lock("hall", ttl=30).take()
        engine = locks.raw._logic.engine
        stage._opened.remove(locks)
        with warnings.catch_warnings(record=True) as reported:
            warnings.simplefilter("always")
            del locks
            gc.collect()
        mine = [warning for warning in reported if "hall" in str(warning.message)]
        assert [warning.category for warning in mine] == [ResourceWarning]
        assert (await stage.info("hall")).locked
        await engine.close()

    async def test_forgetting_closed_or_idle_locks_does_not_warn(self, stage: Stage) -> None:
        for close in (True, False):
            locks = stage.locks()
            async with locks.lock("hall", ttl=30):
                pass
            engine = locks.raw._logic.engine
            if close:
                await locks.close()
            stage._opened.remove(locks)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                del locks
                gc.collect()
            await engine.close()


_HOLD_AND_END = {
    "threads": """
import sys, lockfast
lease = lockfast.connect(sys.argv[1], namespace=sys.argv[2]).lock("hall", ttl=600).acquire()
print(lease.fence)
""",
    "asyncio": """
import sys, asyncio, lockfast.aio
async def main():
    global locks
    locks = lockfast.aio.connect(sys.argv[1], namespace=sys.argv[2])
    lease = await locks.lock("hall", ttl=600).acquire()
    print(lease.fence)
asyncio.run(main())
""",
}


_WAIT_AND_END = {
    "threads": """
import contextlib, sys, threading, lockfast
locks = lockfast.connect(sys.argv[1], namespace=sys.argv[2])
def wait():
    with contextlib.suppress(lockfast.LockError):  # its locks are closed
        locks.lock("hall", ttl=600).acquire()
threading.Thread(target=wait, daemon=True).start()
while not locks.inspect("hall").waiters:
    pass
print("waits")
""",
    "asyncio": """
import sys, asyncio, lockfast.aio
async def main():
    global locks, waiting
    locks = lockfast.aio.connect(sys.argv[1], namespace=sys.argv[2])
    waiting = asyncio.create_task(locks.lock("hall", ttl=600).acquire())
    waiting._log_destroy_pending = False
    while not (await locks.inspect("hall")).waiters:
        await asyncio.sleep(0)
    print("waits")
loop = asyncio.new_event_loop()
loop.run_until_complete(main())
""",
}


def _open_files() -> Counter[tuple[int, int]]:
    """What is open, by itself and not by its number here: another story may close something meanwhile."""
    gc.collect()  # what others forgot must not be counted
    found: Counter[tuple[int, int]] = Counter()
    for number in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # the list itself is closed by now
            status = os.fstat(int(number))
            found[status.st_dev, status.st_ino] += 1
    return found


def _run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def _in_a_child(check: Callable[[], bool]) -> bool:
    """Whether it is true in a fork of this process; an error there is shown here."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that forking beside threads is risky is the point
        pid = os.fork()
    if pid == 0:
        try:
            os.write(write, b"true" if check() else b"false")
        except BaseException:
            os.write(write, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    assert answer in ("true", "false"), f"in the child: {answer}"
    return answer == "true"
