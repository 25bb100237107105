"""A KeyboardInterrupt at any instruction of a round of votes in threads leaves no request behind that never begins."""

from __future__ import annotations

import warnings
from itertools import count
from pathlib import Path

import pytest

import lockfast
from tests.engine.interrupting import Interrupt
from tests.servers.quorum import quorum

_FILES = ("/redlock/votes.py", "/redlock/backend.py", "/redlock/io/rounds.py", "/redlock/io/blocking.py")
# `return node.vote(…)`: Python looks for interrupts after a call of C code, which `Interrupt` takes this for.
_MAKES_ONE = ".verb"


def _ours(file: str) -> bool:
    return file.endswith(_FILES)


@pytest.mark.slow
def test_interrupted_at_any_instruction_of_a_vote_each_request_that_was_made_is_closed(tmp_path: Path) -> None:
    """Else Python prints for each that it was never awaited."""
    url = quorum(3).url(tmp_path)
    struck: list[str] = []
    left_behind: dict[str, list[str]] = {}
    with lockfast.connect(url) as other, other.lock("held", ttl=3600), lockfast.connect(url) as locks:
        for point in count(1):
            with warnings.catch_warnings(record=True) as caught, Interrupt(point, _ours) as interrupt:
                warnings.simplefilter("always")
                try:
                    assert locks.lock("held").acquire(blocking=False) is None
                except KeyboardInterrupt:
                    assert interrupt.struck
            if not interrupt.struck:
                break
            struck.append(interrupt.struck.partition(":")[0])
            requests = [str(one.message) for one in caught if "'RedisNode." in str(one.message)]
            if requests and not struck[-1].endswith(_MAKES_ONE):
                left_behind[interrupt.struck] = requests
    assert {"Round.__init__", "BlockingFanout.ask", "Round.start"} <= set(struck)
    assert left_behind == {}
