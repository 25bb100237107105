"""A quorum of three and of five servers: what does acquire + release cost, and with a dead minority?

It is asked twice. On one core, which client and servers share, a cycle is the work of all and nothing else. Apart,
the servers have a core of their own: then a client that asks them one after another waits for each of them, as
between hosts. There are two floors of two rounds on bare sockets, where a request is written to all, and then all
answers are read. The one that a bound is stated against sends what a lock without fence, queue and holder needs: SET
NX, and a script that deletes. The other sends our own scripts and parses what comes back, so that the rest is the
client. Peers use clients that are connected already.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from statistics import median

import hiredis
from tests.servers.server import HOST, Server

import lockfast
from bench import redlock_ng
from bench.harness import Finding, Setting, per_cycle, ratio, take_turns, work_of
from bench.peers import need
from bench.redis_floor import DELETE_IF_OURS, OURS, connected, packed, script_sha
from bench.redis_peers import LEASE_S, Cycle, held
from bench.redis_server import one_core
from lockfast.backends.redis.io.resp import call, command
from lockfast.backends.redis.requests import script, source


def run(setting: Setting) -> list[Finding]:
    """Findings for `python -m bench --only redlock`."""
    findings: list[Finding] = []
    for size in (3, 5):
        for where, placed in {"on one core": one_core, "apart": _apart}.items():
            findings += _measure(size, where, placed, setting)
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
        whole = stack.enter_context(lockfast.connect(url_of(ports)))
        maimed = stack.enter_context(
            lockfast.connect(url_of([*ports[: size // 2 + 1], *_nobody(size - size // 2 - 1)]))
        )
        apart = stack.enter_context(redlock_ng.redlock_ng(ports))
        contenders: dict[str, Cycle] = {
            "lockfast": held(whole.lock("bench")),
            "floor": _fan_out(ports),
            "same words": _same_words(ports),
            "minority dead": held(maimed.lock("bench:maimed")),
            "pottery": _pottery(ports),
        }
        contenders["minority dead"]()  # the first time costs what it costs
        turns = {name: lambda cycle=cycle: per_cycle(cycle, cycles) for name, cycle in contenders.items()}
        samples = take_turns({**turns, redlock_ng.NAME: lambda: apart(cycles)}, rounds)
    title = f"{size} servers {where}"
    work = work_of(f"Redlock, {title}, acquire + release", samples, floor="floor", peers=_BOUNDS)
    return [
        ratio(f"{title}: acquire+release / bare fan-out", samples, "lockfast", "floor", at_most=1.6, work=work),
        ratio(f"{title}: acquire+release / bare fan-out of the same scripts", samples, "lockfast", "same words"),
        *[
            ratio(f"{title}: {peer} / acquire+release", samples, peer, "lockfast", at_least=_BOUNDS[peer], work=work)
            for peer in _BOUNDS
        ],
        ratio(f"{title}: with a dead minority / without", samples, "minority dead", "lockfast"),
        Finding(f"{title}: acquire+release", median(samples["lockfast"]) * 1e6, "µs"),
        Finding(f"{title}: the bare fan-out", median(samples["floor"]) * 1e6, "µs"),
        Finding(f"{title}: the bare fan-out of the same scripts", median(samples["same words"]) * 1e6, "µs"),
    ]


_BOUNDS = {redlock_ng.NAME: 3.0, "pottery": 6.0}


def url_of(ports: list[int]) -> str:
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
    lines = [connected(port) for port in ports]
    sha = script_sha(DELETE_IF_OURS)
    for line in lines:
        line.sendall(packed(b"SCRIPT", b"LOAD", DELETE_IF_OURS))
        line.recv(4096)
    take = packed(b"SET", b"bench:floor", OURS, b"NX", b"PX", b"30000")
    give_back = packed(b"EVALSHA", sha, b"1", b"bench:floor", OURS)

    def cycle() -> None:
        for request, size in ((take, 5), (give_back, 4)):
            for line in lines:
                line.sendall(request)
            for line in lines:
                if len(line.recv(4096)) != size:
                    raise RuntimeError("the floor's lock was not free, or no longer its own")

    return cycle


def _same_words(ports: list[int]) -> Cycle:
    lines = [(connected(port), hiredis.Reader()) for port in ports]
    for line, _ in lines:
        for name in ("redlock/vote_quick", "release_quick"):
            line.sendall(command("SCRIPT", "LOAD", source(name)))
            line.recv(4096)
    key, record, lives = "lockfast:{bench:same}:held", " 30000000 x 0 bench ", 30_000
    give_back = call(script("release_quick"), [key], [OURS])
    fence = time.time_ns() // 1000

    def cycle() -> None:
        nonlocal fence
        fence += 1
        take = call(script("redlock/vote_quick"), [key], [OURS, record, lives, fence])
        for request, wanted in ((take, b"%d" % fence), (give_back, 1)):
            for line, _ in lines:
                line.sendall(request)
            for line, reader in lines:
                reader.feed(line.recv(4096))
                if reader.gets() != wanted:
                    raise RuntimeError("the floor's lock was not free, or no longer its own")

    return cycle


def _pottery(ports: list[int]) -> Cycle:
    clients = {need("redis").Redis(port=port) for port in ports}
    return held(need("pottery").Redlock(key="bench:pottery", masters=clients, auto_release_time=LEASE_S))
