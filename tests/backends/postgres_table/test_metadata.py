"""Metadata at the lock table: a jsonb column gives back whatever may be said in JSON, and what others put there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import lockfast
from lockfast._records import MOST_READ, parsed
from lockfast.backends.postgres_table.requests import keepable, kept
from lockfast.primitives.names import metadata_text
from tests.servers.postgres_tables import table

pytestmark = pytest.mark.slow

# What jsonb or a careless reader of escapes stumbles over, more often than chance would bring it together.
PIECES = st.sampled_from(["\\", "\\u", "\0", "\ud83d", "\ude00", "\udc00", "😀", "d83d", "0000", "1e5", '"', "a"])
TEXTS = st.lists(PIECES).map("".join) | st.text(st.characters(codec=None))
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=10)


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(table().url(tmp_path_factory.mktemp("metadata")), autocommit=True) as connection:
        yield connection


@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")  # other threads' random numbers
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(VALUES)
@example("\\ud83d\ude00")
@example("\\\\ud83d\ude00")
@example("\\u0000")
@example({"lockfast:json": "1"})
@example(["a", "\\", 1e300, "]"])
@example([1e300, -0.0, 10**400])
def test_whatever_is_said_in_json_comes_back(connection: psycopg.Connection[Any], value: Any) -> None:
    text = metadata_text(value)
    asked = "SELECT (%(it)s::jsonb)::text, lockfast_metadata_fits(%(it)s)"
    found, fits = connection.execute(asked, {"it": keepable(text)}).fetchone() or (None, None)
    assert fits is not False
    meant = None if text is None else json.loads(text)
    back = kept(found)
    given_back = None if back is None else parsed(back, MOST_READ)
    assert given_back == meant
    assert repr(given_back).count(".") == repr(meant).count("."), "1.0 is not 1"


def test_plain_metadata_is_readable_by_every_client() -> None:
    for text in ('{"job": 7}', '"\\ud83d\\ude00"', '["\\u00e9", 1.5]', '"3e5"', '["\\"1e5\\\\", "1e5"]'):
        assert keepable(text) == text


@pytest.mark.parametrize(
    "metadata", ['{"lockfast:json": "no JSON"}', '{"lockfast:json": 7}', '{"lockfast:json": null}', '[1e5000, "a"]']
)
def test_metadata_of_other_clients_does_not_break_inspection(tmp_path: Any, metadata: str) -> None:
    url = table().url(tmp_path)
    with psycopg.connect(url, autocommit=True) as other, lockfast.connect(url) as locks:
        other.execute("SELECT acquire_lock('a', 'other', 60, %s)", (metadata,))
        (info,) = locks.list()
        assert info.holders[0].holder == "other"
        assert type(info.holders[0].fence) is int
        if "e5000" in metadata:
            assert info.damage == "the metadata of 'other' is not JSON that can be read"
        else:
            assert json.dumps(info.holders[0].metadata) == metadata
