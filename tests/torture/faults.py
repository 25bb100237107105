"""Faults that every kind of store has: of the workers' wires to its servers.

Decides: what happens on a wire, and that each fault can be taken back.
Leaves to `supervisor`: when, for how long and how often. Leaves to each store: what happens to its servers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import NamedTuple

from tests.servers.proxy import Proxy

Heal = Callable[[], None]
ANY = b""  # matches the next piece that passes


def nothing() -> None:
    """There is nothing to take back."""


class Fault(NamedTuple):
    """`begin` lets it happen and returns what takes it back, after a while between `least` and `most` seconds."""

    name: str
    begin: Callable[[Random], Heal]
    least: float = 0.0
    most: float = 0.0
    ends_sessions: bool = False  # at the server, so that its clients learn of it a moment later


Choose = Callable[[Random], Sequence[Proxy]]  # the wires that a fault is about


def wire_faults(choose: Choose) -> Iterator[Fault]:
    def fault(name: str, act: Callable[[Proxy, Random], None], most: float = 0.0, ends: bool = False) -> Fault:
        def begin(random: Random) -> Heal:
            proxies = choose(random)
            for proxy in proxies:
                act(proxy, random)

            def heal() -> None:
                for proxy in proxies:
                    proxy.disarm()
                    proxy.heal()
                    proxy.let_pass()

            return heal

        return Fault(name, begin, most / 10, most, ends)

    yield fault("cut", lambda proxy, _: proxy.cut(), ends=True)
    yield fault("refuse", lambda proxy, _: proxy.refuse(), 3.0, ends=True)
    yield fault("black hole", lambda proxy, _: proxy.black_hole(), 4.0)
    yield fault("delay", _delay, 4.0)
    yield fault("half-open", lambda proxy, _: proxy.forsake())
    yield fault("lost reply", _lose_replies, 1.0)
    yield fault("cut for reply", _cut_for_replies, 0.2, ends=True)
    yield fault("lost request", lambda proxy, _: _several(proxy.lose), 1.0)
    yield fault("late request", lambda proxy, _: _several(proxy.keep_back), 2.0)


def _delay(proxy: Proxy, random: Random) -> None:
    proxy.delay = 0.3 * random.random()


def _lose_replies(proxy: Proxy, random: Random) -> None:
    _several(random.choice((proxy.swallow_reply, proxy.break_off_reply)))


def _cut_for_replies(proxy: Proxy, random: Random) -> None:
    """At once, if there are requests: so it is known when sessions ended."""
    for _ in range(3):
        proxy.cut_instead_of_reply(ANY).wait(0.3)


def _several(trigger: Callable[[bytes], object]) -> None:
    for _ in range(3):
        trigger(ANY)
