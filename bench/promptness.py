"""How late is a caller whose server hangs, whose wake-up is lost, or whose holder dies?

The tests show that these things end, and in which order; how long they take depends on the machine, so it is asked
here. Each figure is the best of several tries: a busy machine is late now and then, a timer that is too long always is.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

from tests.adversity.actor import Actor
from tests.adversity.redlock.servers import Quorum
from tests.servers.postgres import USER, PostgresServer
from tests.servers.postgres_tables import empty_table
from tests.servers.proxy import Proxy
from tests.servers.server import HOST, Server
from tests.servers.waiting import LIMIT_S, join, until

import lockfast
from bench.harness import Finding, Setting
from lockfast._model import GRACE_S, poll_after
from lockfast._time import boot_now

WAIT_S = 0.3  # seconds
LATE = poll_after(0) + GRACE_S  # seconds: what the first in the queue may have to wait when it was not woken
Try = Callable[[], float]  # seconds


def run(setting: Setting) -> list[Finding]:
    """Findings for `python -m bench --only promptness`."""
    tries = setting.scaled(10, 3)
    return [
        *_redis(tries),
        *_postgres(tries),
        *_quorum(tries),
        *_processes(f"sqlite:///{setting.folder}/locks.db", setting.folder, setting.scaled(5, 2)),
        *_queues_of_dead(f"sqlite:///{setting.folder}/crowds.db", setting.scaled(5, 2)),
    ]


def _best(what: str, once: Try, tries: int, at_most: float) -> Finding:
    taken = [once() for _ in range(tries)]
    return Finding(what, min(taken), "s", at_most=at_most, detail={"seconds": [round(each, 4) for each in taken]})


@contextmanager
def _ready(url: str) -> Iterator[lockfast.Locks]:
    """A client that is connected."""
    with lockfast.connect(url) as locks:
        with locks.lock("ready"):
            pass
        yield locks


def _given_up(lock: lockfast.Lock) -> float:
    """Seconds until it was not granted."""
    started = boot_now()
    with suppress(lockfast.BackendUnavailable):
        if lock.acquire() is not None:
            raise RuntimeError("the lock was not granted")
    return boot_now() - started


def _handed_over(holder: lockfast.Locks, waiter: lockfast.Locks, before_release: Callable[[], object]) -> float:
    """Seconds from a release until the one that waits has it."""
    held = holder.lock("x").acquire()
    granted: list[float] = []

    def take() -> None:
        with waiter.lock("x"):
            granted.append(boot_now())

    thread = Thread(target=take)
    thread.start()
    until(lambda: holder.inspect("x").waiters == 1, "one to wait")
    before_release()
    released = boot_now()
    if held is None or not held.release():
        raise RuntimeError("the lock was lost")
    join(thread)
    return granted[0] - released


# Servers that stand still, and wake-ups that are lost


def _stands_still(server: Server | PostgresServer, url: str) -> Try:
    def once() -> float:
        with _ready(url) as locks:
            server.pause()
            try:
                return _given_up(locks.lock("y", wait=WAIT_S)) - WAIT_S
            finally:
                server.go_on()

    return once


def _in_queue(server: Server | PostgresServer, url: str) -> Try:
    def once() -> float:
        with _ready(url) as locks, _ready(url) as holder, holder.lock("z"):
            taken: list[float] = []
            thread = Thread(target=lambda: taken.append(_given_up(locks.lock("z", wait=2 * WAIT_S))))
            thread.start()
            until(lambda: holder.inspect("z").waiters == 1, "one to wait")
            server.pause()
            join(thread)
            server.go_on()
            return taken[0] - 2 * WAIT_S

    return once


def _woken(direct: str, by_proxy: str, proxy: Proxy, lost: bytes = b"") -> Try:
    def once() -> float:
        with _ready(direct) as holder, _ready(by_proxy) as waiter:
            return _handed_over(holder, waiter, lambda: proxy.swallow(lost) if lost else None)

    return once


def _redis(tries: int) -> list[Finding]:
    with Server() as server, Proxy(server) as proxy:
        return [
            _best("Redis stands still: over `wait`", _stands_still(server, server.url), tries, 0.05),
            _best("Redis stands still: over `wait`, in the queue", _in_queue(server, server.url), tries, 0.05),
            _best("Redis: woken after", _woken(server.url, proxy.url, proxy), tries, 0.05),
            _best(
                "Redis: a lost wake-up costs", _woken(server.url, proxy.url, proxy, b"$7\r\nmessage\r\n"), tries, LATE
            ),
        ]


def _postgres(tries: int) -> list[Finding]:
    with PostgresServer() as server, Proxy(server) as proxy:  # type: ignore[arg-type]
        empty_table(server.url)
        by_proxy = f"postgresql://{USER}@{HOST}:{proxy.port}/postgres"
        return [
            _best("PostgreSQL stands still: over `wait`", _stands_still(server, server.url), tries, 0.05),
            _best("PostgreSQL stands still: over `wait`, in the queue", _in_queue(server, server.url), tries, 0.05),
            _best("PostgreSQL: woken after", _woken(server.url, by_proxy, proxy), tries, 0.05),
            _best(
                "PostgreSQL: a lost notification costs", _woken(server.url, by_proxy, proxy, b"lockfast_"), tries, LATE
            ),
        ]


def _quorum(tries: int) -> list[Finding]:
    """Two of five hang when they are connected to: that costs their time-out once, and both at the same time."""
    time_out = 1.0
    with Quorum(5) as quorum:
        url = quorum.url(f"rejoin=0&node_timeout={time_out}")
        first: list[float] = []
        later: list[float] = []
        for _ in range(tries):
            for proxy in (quorum.proxies[0], quorum.proxies[3]):
                proxy.black_hole()
            with lockfast.connect(url) as locks:
                first.append(_cycle(locks))
                later.append(min(_cycle(locks) for _ in range(10)))
            for proxy in (quorum.proxies[0], quorum.proxies[3]):
                proxy.heal()
    return [
        Finding("quorum: two of five that hang cost", min(first), "s", at_most=1.75 * time_out),
        Finding("quorum: two of five that hang cost, later on", min(later), "s", at_most=time_out / 10),
    ]


def _cycle(locks: lockfast.Locks) -> float:
    started = boot_now()
    with locks.lock("x"):
        pass
    return boot_now() - started


# Processes that die


def _processes(url: str, folder: Path, tries: int) -> list[Finding]:
    return [
        _best("a killed holder: its lock is free after", lambda: _after_death(url), tries, 2.0 + 0.5),
        _best("lockfast run: from the end of its command to its own", lambda: _after_command(url, folder), tries, 0.5),
    ]


def _after_death(url: str) -> float:
    """Seconds from SIGKILL until the next one has it: a ttl of 1, and as much again if it was renewed just then."""
    holder = Actor(url)
    try:
        holder.ask("acquire", name="x", ttl=1)
        with lockfast.connect(url) as locks:
            holder.signal(signal.SIGKILL)
            started = boot_now()
            lease = locks.lock("x", wait=LIMIT_S).acquire()
            taken = boot_now() - started
            if lease is not None:
                lease.release()
            return taken
    finally:
        holder.close()


def _queues_of_dead(sqlite: str, tries: int) -> list[Finding]:
    what, at_most = "a holder and six waiters killed: the seventh has it after", 1.0 + 1.0
    with Server() as redis, PostgresServer() as postgres:
        empty_table(postgres.url)
        stores = {"SQLite": sqlite, "Redis": redis.url, "PostgreSQL": postgres.url}
        return [
            _best(f"{name}: {what}", lambda url=url: _after_many_deaths(url), tries, at_most)  # type: ignore[misc]
            for name, url in stores.items()
        ]


def _after_many_deaths(url: str) -> float:
    """Seconds from SIGKILL until a waiter behind dead ones has it: its ttl of 1, and what they add to that."""
    doomed, last = [Actor(url) for _ in range(7)], Actor(url)
    try:
        with lockfast.connect(url) as locks:
            doomed[0].ask("acquire", name="x", ttl=1)
            for number, waiter in enumerate((*doomed[1:], last), 1):
                waiter.send("acquire", name="x")
                until(lambda number=number: locks.inspect("x").waiters == number, "one more to wait")  # type: ignore[misc]
        for actor in doomed:
            actor.signal(signal.SIGKILL)
        started = boot_now()
        last.expect()
        return boot_now() - started
    finally:
        for actor in (*doomed, last):
            actor.close()


def _after_command(url: str, folder: Path) -> float:
    """Seconds; its lease was broken, so that it ends its command with TERM and need not wait for its grace."""
    beats, script = folder / "beats", "while :; do date +%s.%N > beats.new; mv beats.new beats; sleep 0.01; done"
    words = [
        sys.executable,
        "-m",
        "lockfast",
        "run",
        "--ttl",
        "3",
        "--kill-after",
        "1.5",
        "x",
        "--",
        "sh",
        "-c",
        script,
    ]
    beats.unlink(missing_ok=True)
    running = subprocess.Popen(words, env={**os.environ, "LOCKFAST_URL": url}, cwd=folder, stderr=subprocess.DEVNULL)
    until(beats.exists, "the command")
    with lockfast.connect(url) as locks:
        locks.break_lock("x")
    running.wait(LIMIT_S)
    ended = float(subprocess.run(["date", "+%s.%N"], capture_output=True, text=True, check=True).stdout)
    return ended - float(beats.read_text())
