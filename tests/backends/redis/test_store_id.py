"""Which Redis store it is: equal for two endpoints of one store, whatever user logs in."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from lockfast.backends.redis.io.urls import endpoint_of_url


def store_id(url: str) -> str:
    return endpoint_of_url(urlsplit(url)).store_id


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("redis://h", "redis://ann:secret@h:6379/0?client_name=us"),
        ("unix:///run/x.sock?db=2", "unix://ann:secret@/run/x.sock?db=2"),
        ("redis+cluster://a:7000,b:7001", "redis+cluster://ann:secret@b:7001,a:7000"),
        ("redis+sentinel://a,b/locks/3", "redis+sentinel://ann:secret@b,a/locks/3"),
    ],
)
def test_one_store_has_one_id_whatever_the_login(one: str, other: str) -> None:
    assert store_id(one) == store_id(other)
    assert "secret" not in store_id(other)


def test_another_server_database_or_service_is_another_store() -> None:
    urls = [
        "redis://h",
        "redis://h/1",
        "redis://h:6380",
        "redis://i",
        "unix:///h",
        "redis+cluster://h",
        "redis+cluster://i",
    ]
    urls += ["redis+sentinel://h/a", "redis+sentinel://h/b", "redis+sentinel://h/a/1", "redis+sentinel://i/a"]
    assert len({store_id(url) for url in urls}) == len(urls)
