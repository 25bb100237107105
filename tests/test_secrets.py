"""No message shows a password: not of a URL that was understood, not of one that was not, and not in a cause."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

import lockfast
from lockfast import BackendUnavailable, _connect, aio
from lockfast._secrets import hide, secrets_in, shown_url
from lockfast.backends.redis.io.urls import endpoint_of_url
from tests.servers.waiting import LIMIT_S

SECRET = "s3cret"
SCHEMES = (*_connect.SCHEMES, "nosuch")
# A password where it belongs, with something else amiss; as an option; and with a character that is not encoded.
RESTS = (
    f"u:{SECRET}@h",
    f"u:{SECRET}@h/x/y",
    f"u:{SECRET}@h:port/1",
    f"u:{SECRET}@h:0/1",
    f"u:{SECRET}@[h",
    f"u:{SECRET}\u2100@h/0",
    f"u:{SECRET}@h1,v:{SECRET}@h2/s",
    f"h?password={SECRET}",
    f"h/0?password={SECRET}&nosuch=1",
    f"h/0?passwd={SECRET}",
    f"h/s?sentinel_password={SECRET}&db=x",
    f"h/0?ssl_password={SECRET}&db=x",
    f"u:a/{SECRET}@h/1",
    f"u:{SECRET}/a@h/1",
    f"u:1#{SECRET}@h/1",
    f"u:1?{SECRET}@h/1",
    f"u:1?{SECRET}=x@h/1",
    f"h1,u:{SECRET}/a@h2/s",
    f"h1,h2:{SECRET},h3/s",
)
NO_URLS = (f"u:{SECRET}@h/x.db", f"/u:{SECRET}@h", f"sqlite:u:{SECRET}@h/x.db", f"u:{SECRET}@h:6379/a/b", f"u:{SECRET}")
WAYS: dict[str, Callable[[str], object]] = {
    "connect": lockfast.connect,
    "aio.connect": aio.connect,
    "a list": lambda url: lockfast.connect([url, "redis://h1", "redis://h2"]),
    "migrate": _connect.migration,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_url_that_is_refused_is_refused_without_its_password(way: str, scheme: str) -> None:
    assert not [url for url in (f"{scheme}://{rest}" for rest in RESTS) if SECRET in _refusal(way, url)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("text", NO_URLS)
def test_what_is_no_url_is_refused_without_its_password(way: str, text: str) -> None:
    refusal = _refusal(way, text)
    assert refusal
    assert SECRET not in refusal


def _refusal(way: str, url: str) -> str:
    """All that a traceback shows of it; empty if it is taken."""
    try:
        WAYS[way](url)
    except ValueError as error:
        return "".join(traceback.format_exception(error, limit=0))
    return ""


@pytest.mark.parametrize("scheme", ["redlock", "redlocks"])
@pytest.mark.parametrize("option", ["password", "sentinel_password"])
def test_the_url_of_a_quorum_shows_no_secret_option(scheme: str, option: str) -> None:
    with lockfast.connect(f"{scheme}://h1,h2,h3/1?{option}={SECRET}&rejoin=60") as locks:
        assert locks._logic.engine.backend.url == f"{scheme}://h1,h2,h3/1?rejoin=60"  # type: ignore[attr-defined]
    with lockfast.connect(f"redlocks://h1,h2,h3/1?ssl_password={SECRET}") as locks:
        assert locks._logic.engine.backend.url == "redlocks://h1,h2,h3/1"  # type: ignore[attr-defined]


def test_no_secret_of_libpq_is_shown() -> None:
    secrets = "&".join(f"{name}={SECRET}" for name in ("password", "sslpassword", "oauth_client_secret"))
    assert _connect.migration(f"postgresql://h/db?{secrets}").url == "postgresql://h/db"


SHOWN = {
    "redis://host": "redis://host",
    "redis://user:pw@host:6379/1": "redis://host:6379/1",
    "redis://:pw@[::1]:6379,h2/s?db=1": "redis://[::1]:6379,h2/s?…",
    "sqlite:////var/lib/x.db": "sqlite:////var/lib/x.db",
    "memory://": "memory://",
    "redis://user:pw": "redis://…",
    "redis://u:p/w@host": "redis://…",
    "redis://u:p@w@host": "redis://…",
    "redis://host#pw": "redis://…",
    "redis://host/?password=p@w": "redis://…",
    "pw": "…",
    "p w://host": "…",
}


@pytest.mark.parametrize("url", SHOWN)
def test_a_url_is_shown_only_as_far_as_it_is_understood(url: str) -> None:
    assert shown_url(url) == SHOWN[url]


@pytest.mark.parametrize("world", ["threads", "asyncio"])
def test_the_cause_shows_no_password_of_a_sentinel(world: str) -> None:
    url = f"rediss+sentinel://127.0.0.1:1/main?sentinel_password={SECRET}&ssl_password={SECRET}'2&password={SECRET}3"
    place = endpoint_of_url(urlsplit(url))
    with pytest.raises(BackendUnavailable) as caught:
        place.dial(None, LIMIT_S) if world == "threads" else asyncio.run(place.dial_async(None, LIMIT_S))
    shown = "".join(traceback.format_exception(caught.value))
    assert "no primary of 'main' was found" in shown
    assert SECRET not in shown


def test_a_message_of_a_server_is_shown_without_secrets() -> None:
    secrets = secrets_in({"username": "ann", "password": b"one"}, {"ssl_password": "it's\\two", "password": ""})
    assert secrets == ["one", "it's\\two"]
    assert hide(f"ann, one, it's\\two, {secrets[1]!r}", secrets) == 'ann, ***, ***, "***"'
    assert hide("ab", ("a", "ab")) == "***"
    assert hide("ERR unknown command 'AUTH', with args beginning with: 'ann' 'x' ", ()).endswith("with: ***")
