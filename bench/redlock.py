"""A quorum of three and of five servers: what does acquire + release cost, a dead minority, and contention?

It is asked twice. On one core, which client and servers share, a cycle is the work of all and nothing else. Apart,
the servers have a core of their own: then a client that asks them one after another waits for each of them, as
between hosts. There are two floors of two rounds on bare sockets, where a request is written to all, and then all
answers are read. The one that a bound is stated against sends what a lock without fence, queue and holder needs: SET
NX, and a script that deletes. The other sends our own scripts and parses what comes back, so that the rest is the
client. Peers use clients that are connected already.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from statistics import median
from threading import Thread
from typing import Any

import hiredis
from tests.servers.server import HOST, Server

import lockfast
from bench.harness import Finding, Setting, per_cycle, ratio, take_turns
from bench.peers import need
from bench.redis_floor import _DELETE_IF_OURS, _OURS, _connected, _packed
from bench.redis_peers import LEASE_S, Cycle, _taken, held, skip_peer
from bench.redis_server import one_core
from lockfast.backends.redis.io.resp import call, command
from lockfast.backends.redis.requests import script, source


def run(setting: Setting) -> list[Finding]:
    """Findings for `python -m bench --only redlock`."""
    findings: list[Finding] = []
    for size in (3, 5):
        for where, placed in {"on one core": one_core, "apart": _apart}.items():
            findings += _measure(size, where, placed, setting)
        findings += _contended(f"{size} servers", size, setting)
    return findings


@contextmanager
def _apart(pid: int) -> Iterator[None]:
    """This thread has a core for itself, and the servers share another one."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before, theirs = os.sched_getaffinity(0), os.sched_getaffinity(pid)
    os.sched_setaffinity(0, {max(theirs)})
    os.sched_setaffinity(pid, {min(theirs)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        os.sched_setaffinity(pid, theirs)


def _measure(
    size: int, where: str, placed: Callable[[int], AbstractContextManager[None]], setting: Setting
) -> list[Finding]:
    cycles, rounds = setting.scaled(50, 25), setting.scaled(101, 31)
    with ExitStack() as stack:
        servers = [stack.enter_context(Server()) for _ in range(size)]
        for server in servers:
            stack.enter_context(placed(server.pid))
        ports = [server.port for server in servers]
        whole = stack.enter_context(lockfast.connect(_url(ports)))
        maimed = stack.enter_context(lockfast.connect(_url([*ports[: size // 2 + 1], *_nobody(size - size // 2 - 1)])))
        peers = _peers(ports)
        contenders: dict[str, Cycle] = {
            "lockfast": held(whole.lock("bench")),
            "floor": _fan_out(ports),
            "same words": _same_words(ports),
            "minority dead": held(maimed.lock("bench:maimed")),
            **peers,
        }
        contenders["minority dead"]()  # the first time costs what it costs
        samples = take_turns(
            {name: lambda cycle=cycle: per_cycle(cycle, cycles) for name, cycle in contenders.items()},  # type: ignore[misc]
            rounds,
        )
    title = f"{size} servers {where}"
    return [
        ratio(f"{title}: acquire+release / bare fan-out", samples, "lockfast", "floor", at_most=1.6),
        ratio(f"{title}: acquire+release / bare fan-out of the same scripts", samples, "lockfast", "same words"),
        *[
            ratio(f"{title}: {peer} / acquire+release", samples, peer, "lockfast", at_least=_BOUNDS[peer])
            for peer in peers
        ],
        ratio(f"{title}: with a dead minority / without", samples, "minority dead", "lockfast"),
        Finding(f"{title}: acquire+release", median(samples["lockfast"]) * 1e6, "µs"),
        Finding(f"{title}: the bare fan-out", median(samples["floor"]) * 1e6, "µs"),
        Finding(f"{title}: the bare fan-out of the same scripts", median(samples["same words"]) * 1e6, "µs"),
    ]


def _contended(title: str, size: int, setting: Setting) -> list[Finding]:
    """32 threads of four clients that want one name all the time."""
    each = setting.scaled(20, 6)
    with ExitStack() as stack:
        ports = [stack.enter_context(Server()).port for _ in range(size)]
        clients = [stack.enter_context(lockfast.connect(_url(ports))) for _ in range(4)]
        waits: list[float] = []

        def work(locks: lockfast.Locks) -> None:
            for _ in range(each):
                asked = time.monotonic()
                with locks.lock("contended", ttl=LEASE_S):
                    waits.append(time.monotonic() - asked)

        threads = [Thread(target=work, args=(clients[number % 4],)) for number in range(32)]
        started = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.monotonic() - started
    return [
        Finding(f"{title}: 32 contenders", len(waits) / took, "hand-overs/s"),
        Finding(f"{title}: 32 contenders, the longest wait", max(waits), "s"),
    ]


_BOUNDS = {"redlock-ng": 3.0, "pottery": 6.0}


def _url(ports: list[int]) -> str:
    return f"redlock://{','.join(f'{HOST}:{port}' for port in ports)}/0?rejoin=0"


def _nobody(number: int) -> list[int]:
    """Ports at which no process listens."""
    taken = [socket.socket() for _ in range(number)]
    for one in taken:
        one.bind((HOST, 0))
    ports = [int(one.getsockname()[1]) for one in taken]
    for one in taken:
        one.close()
    return ports


def _fan_out(ports: list[int]) -> Cycle:
    lines = [_connected(port) for port in ports]
    sha = hashlib.sha1(_DELETE_IF_OURS, usedforsecurity=False).hexdigest().encode()
    for line in lines:
        line.sendall(_packed(b"SCRIPT", b"LOAD", _DELETE_IF_OURS))
        line.recv(4096)
    take = _packed(b"SET", b"bench:floor", _OURS, b"NX", b"PX", b"30000")
    give_back = _packed(b"EVALSHA", sha, b"1", b"bench:floor", _OURS)

    def cycle() -> None:
        for request, size in ((take, 5), (give_back, 4)):
            for line in lines:
                line.sendall(request)
            for line in lines:
                if len(line.recv(4096)) != size:
                    raise RuntimeError("the floor's lock was not free, or no longer its own")

    return cycle


def _same_words(ports: list[int]) -> Cycle:
    lines = [(_connected(port), hiredis.Reader()) for port in ports]
    for line, _ in lines:
        for name in ("redlock/vote_quick", "release_quick"):
            line.sendall(command("SCRIPT", "LOAD", source(name)))
            line.recv(4096)
    key, record, lives = "lockfast:{bench:same}:held", " 30000000 x 0 bench ", 30_000
    give_back = call(script("release_quick"), [key], [_OURS])
    fence = time.time_ns() // 1000

    def cycle() -> None:
        nonlocal fence
        fence += 1
        take = call(script("redlock/vote_quick"), [key], [_OURS, record, lives, fence])
        for request, wanted in ((take, b"%d" % fence), (give_back, 1)):
            for line, _ in lines:
                line.sendall(request)
            for line, reader in lines:
                reader.feed(line.recv(4096))
                if reader.gets() != wanted:
                    raise RuntimeError("the floor's lock was not free, or no longer its own")

    return cycle


def _peers(ports: list[int]) -> dict[str, Cycle]:
    peers: dict[str, Cycle] = {}
    for name, make in {"redlock-ng": _redlock_ng, "pottery": _pottery}.items():
        try:
            peers[name] = make(ports)
            peers[name]()
        except Exception as error:
            skip_peer(name, error)
            peers.pop(name, None)
    return peers


def _redlock_ng(ports: list[int]) -> Cycle:
    manager: Any = need("redlock").Redlock([f"redis://{HOST}:{port}/0" for port in ports])
    return lambda: manager.release(_taken(manager.acquire("bench:redlock-ng", LEASE_S * 1000)))


def _pottery(ports: list[int]) -> Cycle:
    clients = {need("redis").Redis(port=port) for port in ports}
    return held(need("pottery").Redlock(key="bench:pottery", masters=clients, auto_release_time=LEASE_S))
