"""What one thread does for all is done by one at a time, and an interrupt at any instruction leaves the turn free."""

from __future__ import annotations

import threading
from itertools import count
from pathlib import Path

import pytest

import lockfast.backends
from lockfast.backends.connecting.turns import in_turn
from tests.engine.interrupting import Interrupt
from tests.servers.waiting import join, until

BACKENDS = Path(lockfast.backends.__file__).parent


def _is_free(turn: threading.RLock) -> bool:
    taken: list[bool] = []

    def take() -> None:
        taken.append(turn.acquire(blocking=False))
        if taken[0]:
            turn.release()

    thread = threading.Thread(target=take)
    thread.start()
    join(thread)
    return taken[0]


@pytest.mark.parametrize("outer", [False, True])
def test_interrupted_at_any_instruction_the_turn_is_given_back(outer: bool) -> None:
    turn = threading.RLock()

    def report() -> None:
        assert in_turn(turn, 10, lambda: True)

    for point in count(1):
        with Interrupt(point, lambda file: file.endswith("/backends/connecting/turns.py")) as interrupt:
            try:
                if outer:
                    in_turn(turn, 10, report)
                else:
                    report()
            except KeyboardInterrupt:
                assert interrupt.struck
        assert _is_free(turn), interrupt.struck
        if not interrupt.struck:
            break
    assert point > 3


def test_a_turn_that_does_not_come_in_time_is_not_waited_for_longer() -> None:
    turn, taken, over = threading.RLock(), threading.Event(), threading.Event()

    def have_it() -> bool:
        taken.set()
        return over.wait()

    thread = threading.Thread(target=in_turn, args=(turn, 10, have_it))
    thread.start()
    until(taken.is_set)
    assert in_turn(turn, 0.01, lambda: True) is None
    over.set()
    join(thread)
    assert in_turn(turn, 10, lambda: True)


def test_no_driver_takes_a_turn_in_another_way() -> None:
    """Between `acquire(timeout=…)` and the `try` that minds it an interrupt leaves it taken for ever."""
    texts = {file: file.read_text() for file in BACKENDS.rglob("*.py")}
    assert any("in_turn(self._opening" in text for text in texts.values())  # it is still called that
    for file, text in texts.items():
        assert "_opening.acquire" not in text, file
