"""A pattern stands for all names of one kind."""

from __future__ import annotations

import string
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lockfast
from lockfast._ids import new_claim_id
from lockfast.observe.patterns import MAX_REMEMBERED, pattern_of


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("nightly", "nightly"),
        ("order:42", "order:{n}"),
        ("user42/cart-7", "user{n}/cart-{n}"),
        ("2026-11-19T07:30", "{n}-{n}-{n}T{n}:{n}"),
        (f"job:{uuid.UUID(int=2**127 + 5)}", "job:{uuid}"),
        ("job:71041487-0639-4853-BE5C-52C2668622CC", "job:{uuid}"),
        ("commit 3f2a9bc", "commit {hash}"),
        ("commit_3f2a9bc", "commit_{hash}"),
        ("blob:" + "0123456789abcdef" * 4, "blob:{hash}"),
        ("12345678", "{n}"),
        ("facade", "facade"),  # no figure
        ("defaced", "defaced"),
        ("a1b2c3", "a{n}b{n}c{n}"),  # too short for a hash
        ("x3f2a9bcz", "x{n}f{n}a{n}bcz"),  # a part of a word
        ("{n}", "{n}"),
        ("lager-٤٢", "lager-{n}"),
    ],
)
def test_ids_are_replaced_and_words_stay(name: str, pattern: str) -> None:
    assert pattern_of(name) == pattern


@given(st.integers(min_value=0), st.uuids())
def test_names_that_differ_in_their_ids_have_one_pattern(number: int, id: uuid.UUID) -> None:
    assert pattern_of(f"order:{number}:{id}") == "order:{n}:{uuid}"


@given(st.text(alphabet=string.printable, max_size=60))
def test_a_pattern_is_its_own_pattern(name: str) -> None:
    assert pattern_of(pattern_of(name)) == pattern_of(name)


def test_the_ids_of_our_own_claims_are_replaced() -> None:
    assert {pattern_of(f"claim {new_claim_id()}") for _ in range(100)} == {"claim {hash}"}


def test_only_so_many_names_are_remembered() -> None:
    for number in range(MAX_REMEMBERED + 10):
        pattern_of(f"name:{number}")
    assert pattern_of.cache_info().currsize == MAX_REMEMBERED


def test_no_pattern_is_made_while_nobody_listens(locks: lockfast.Locks) -> None:
    before = pattern_of.cache_info()
    with locks.lock("order:4711"):
        pass
    assert pattern_of.cache_info() == before


def test_a_name_of_ours_or_of_a_decorator_takes_the_place_of_the_guess(
    locks: lockfast.Locks, received: list[lockfast.Event]
) -> None:
    @locks.locked("job:{job_id}")
    def work(job_id: int) -> None: ...

    @locks.singleton("cron:{job_id}", pattern="cron")
    def once(job_id: int) -> None: ...

    work(7)
    once(7)
    with locks.lock("order:7", pattern="order"):
        pass
    with locks.semaphore("seat:7", 2, pattern="seat"), locks.all("a7", "b7", pattern="both"):
        pass
    with locks.rwlock("page:7", pattern="page").read(), locks.election("lead:7", pattern="lead"):
        pass
    assert [event.pattern for event in received if event.kind == "granted"] == [
        "job:{job_id}",
        "cron",
        "order",
        "seat",
        "both",
        "both",
        "page",
        "lead",
    ]


def test_a_long_template_is_cut_and_not_refused(locks: lockfast.Locks) -> None:
    @locks.locked("{a:>1}" * 60)
    def work(a: str) -> None: ...

    work("x")


def test_a_pattern_that_makes_no_sense_is_refused(locks: lockfast.Locks) -> None:
    with pytest.raises(ValueError, match="a pattern must not be empty"):
        locks.lock("x", pattern="")
    with pytest.raises(ValueError, match="a pattern must be a string, not 7"):
        locks.lock("x", pattern=7)  # type: ignore[arg-type]
