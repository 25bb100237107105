"""The scripts that a lock needs are read when its client is made: nobody waits behind a request that reads files."""

from __future__ import annotations

import pytest

import lockfast
from lockfast.backends.redis import requests


@pytest.mark.parametrize("name", ["acquire_quick", "release_quick", "acquire", "release"])
def test_the_first_request_reads_no_file(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for read in (requests.source, requests.script):
        read.cache_clear()
    with lockfast.connect("redis://127.0.0.1:1/0"):  # nothing is sent
        monkeypatch.setattr(requests, "_scripts", None)
        assert requests.script(name).text
