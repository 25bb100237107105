"""Who writes something that is no URL is asked what was meant, and nothing that could be a password is repeated."""

from __future__ import annotations

import pytest

import lockfast
from lockfast import _connect
from lockfast.backends.opening import ConnectOptions

MEANT = {
    "redis": "did you mean redis://localhost:6379?",
    "Valkey": "did you mean valkey://localhost:6379?",
    "postgres": "did you mean postgresql://localhost:5432?",
    "sqlite": "did you mean sqlite:///locks.db?",
    "memory": "did you mean memory://?",
    "memory:": "did you mean memory://?",
    "localhost:6379": "did you mean redis://localhost:6379?",
    "localhost:6379/2": "did you mean redis://localhost:6379/2?",
    "bob:s3cret@10.0.0.7:6379": "did you mean redis://bob@10.0.0.7:6379?",
    "redis:6379": "did you mean redis://redis:6379?",
    "db:5432": "did you mean postgresql://db:5432?",
    "[::1]:5432/app": "did you mean postgresql://[::1]:5432/app?",
    "sentinel-1:26379": "did you mean redis+sentinel://sentinel-1:26379/SERVICE?",
    "localhost": "did you mean redis://localhost:6379 or postgresql://localhost:5432?",
    "cache.example.org:7777": "did you mean redis://cache.example.org:7777 or postgresql://cache.example.org:7777?",
    "redlock": "did you mean redlock://HOST1,HOST2,HOST3?",
    "h1,h2,h3": "did you mean redlock://h1,h2,h3 or redis+cluster://h1,h2,h3?",
    "u:s3cret@h1:6379,h2:6379": "did you mean redlock://u@h1:6379,h2:6379 or redis+cluster://u@h1:6379,h2:6379?",
    "h1:26379,h2:26379": "did you mean redis+sentinel://h1:26379,h2:26379/SERVICE?",
    "h1:7000,h2:7000": "did you mean redis+cluster://h1:7000,h2:7000?",
    "locks.db": "did you mean sqlite:///locks.db?",
    "/var/lib/app/locks.sqlite3": "did you mean sqlite:////var/lib/app/locks.sqlite3?",
    "sqlite:locks.db": "did you mean sqlite:///locks.db?",
    "./locks": "did you mean sqlite:///./locks?",
    "postgress://bob:s3cret@db/app": "unknown scheme 'postgress'; did you mean postgresql://?",
    "postgresql+nosuch://bob:s3cret@db/app": "did you mean postgresql://?",
    "reddis://localhost": "did you mean redis://?",
    "redis+senitnel://h/s": "did you mean redis+sentinel://?",
    "redis+ssl://h": "did you mean rediss://?",
    "sqlite3:///x.db": "did you mean sqlite://?",
    "file:///x.db": "did you mean sqlite://?",
    "memmory://": "did you mean memory://?",
}


@pytest.mark.parametrize("text", MEANT)
def test_what_is_no_url_is_answered_with_the_one_that_was_meant(text: str) -> None:
    with pytest.raises(ValueError, match="did you mean") as caught:
        lockfast.connect(text)
    message = str(caught.value)
    assert message.endswith(MEANT[text])
    assert "s3cret" not in message


@pytest.mark.parametrize("text", ["", "zookeeper://x", "some words", "s3cret"])
def test_where_nothing_comes_to_mind_each_backend_is_named_once(text: str) -> None:
    with pytest.raises(ValueError, match="known are memory://, ") as caught:
        lockfast.connect(text) if text else _connect.factory_of(" ", ConnectOptions())
    message = str(caught.value)
    assert len(message) < 200
    assert "s3cret" not in message


def test_what_is_named_is_known() -> None:
    named = {word.partition("://")[0] for word in _connect._known().replace(",", "").split() if "://" in word}
    assert named <= set(_connect.SCHEMES)
    assert len(named) == 8
