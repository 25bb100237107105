"""A request whose parts were packed before is what it would be if it were packed as a whole."""

from __future__ import annotations

import pytest

import lockfast
from lockfast._ids import CLAIM_ID_CHARS, new_claim_id
from lockfast._model import Terms
from lockfast.backends.redis import requests
from lockfast.backends.redis.backend import RedisBackend
from lockfast.backends.redis.io.resp import call
from lockfast.testing import FakeClock

TERMS = Terms("job", "job", "us", 30.0)


IDS = {
    "as ours": "a" * CLAIM_ID_CHARS,
    "short": "short",
    "as many characters and more bytes": "é" * CLAIM_ID_CHARS,
    "as many bytes": "é" * (CLAIM_ID_CHARS // 2),
    "empty": "",
}


@pytest.mark.parametrize("which", IDS)
@pytest.mark.parametrize("clock", [None, FakeClock()], ids=["the server's clock", "a test's clock"])
def test_the_words_of_a_request_do_not_depend_on_the_length_of_the_claim_s_id(
    clock: FakeClock | None, which: str
) -> None:
    id = IDS[which]
    backend = lockfast.connect("redis://127.0.0.1:1", clock=clock)._logic.engine.backend
    assert isinstance(backend, RedisBackend)
    keys = requests.keys_of("job")
    now = () if clock is None else (b"%d" % requests.micros(clock.now()),)
    quick = call(requests.script("release_quick"), keys[:1], (id, *now))
    assert backend._request(requests.quick_release("job"), id) == quick
    whole = call(requests.script("release"), keys, (5, "other", id, *now))
    assert backend._request(requests.release("job", 5, "other", False), id) == whole


def test_an_id_of_ours_has_the_usual_length() -> None:
    assert len(new_claim_id().encode()) == CLAIM_ID_CHARS
