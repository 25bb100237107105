"""Two connections that one thread makes at the same time: the one that is ready first counts."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from lockfast._time import boot_now
from lockfast.backends.connecting import second_tries
from lockfast.backends.connecting.second_tries import SecondTries
from lockfast.backends.postgres.io.refusals import Broken
from lockfast.backends.postgres.io.stepping import Late, run_first_ready
from lockfast.backends.postgres.io.wire import Steps
from tests.servers.waiting import LIMIT_S


class Dials:
    """Attempts that end when their server says how."""

    def __init__(self) -> None:
        self.ends = [socket.socketpair() for _ in range(3)]
        self.begun = 0
        self.closed: list[int] = []
        self.says: dict[int, list[tuple[int, bytes]]] = {}  # when that many have begun: what which server says

    def make(self) -> Steps:
        ours = self.ends[self.begun][0]
        number, self.begun = self.begun, self.begun + 1
        for server, word in self.says.get(self.begun, []):
            self.ends[server][1].sendall(word)
        try:
            yield ours.fileno(), "r"
            if ours.recv(1) == b"!":
                raise Broken(f"{number} is refused")
            yield ours.fileno(), "w"
            return number
        finally:
            self.closed.append(number)

    def close(self) -> None:
        for pair in self.ends:
            for end in pair:
                end.close()


@pytest.fixture
def dials(monkeypatch: pytest.MonkeyPatch) -> Iterator[Dials]:
    monkeypatch.setattr(second_tries, "SUSPECT_AFTER_S", 0.01)
    dials = Dials()
    yield dials
    dials.close()


def first_ready(dials: Dials, within: float = LIMIT_S) -> Any:
    return run_first_ready(SecondTries(), dials.make, boot_now() + within)


def test_a_connection_that_is_ready_at_once_is_the_only_one(dials: Dials) -> None:
    dials.says = {1: [(0, b".")]}
    assert first_ready(dials) == 0
    assert dials.closed == [0]


def test_the_second_counts_if_the_first_stays_silent(dials: Dials) -> None:
    dials.says = {2: [(1, b".")]}
    assert first_ready(dials) == 1
    assert sorted(dials.closed) == [0, 1]


def test_the_first_counts_if_it_answers_before_the_second(dials: Dials) -> None:
    dials.says = {2: [(0, b".")]}
    assert first_ready(dials) == 0
    assert sorted(dials.closed) == [0, 1]


def test_the_second_counts_if_the_first_is_refused_meanwhile(dials: Dials) -> None:
    dials.says = {2: [(0, b"!"), (1, b".")]}
    assert first_ready(dials) == 1


def test_the_first_goes_on_if_the_second_is_refused(dials: Dials) -> None:
    dials.says = {2: [(1, b"!")]}
    with pytest.raises(Late):
        first_ready(dials, 0.3)
    assert dials.begun == 2
    assert sorted(dials.closed) == [0, 1]


def test_both_are_refused(dials: Dials) -> None:
    dials.says = {2: [(0, b"!"), (1, b"!")]}
    with pytest.raises(Broken, match="is refused"):
        first_ready(dials)


def test_a_first_that_is_refused_at_once_gets_no_second(dials: Dials) -> None:
    dials.says = {1: [(0, b"!")]}
    with pytest.raises(Broken, match="0 is refused"):
        first_ready(dials)
    assert dials.begun == 1
