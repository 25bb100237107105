"""The judge of histories: what it must find, and what it must let pass."""

from __future__ import annotations

import time

from lockfast._model import EXCLUSIVE, SHARED
from lockfast.testing.history import Hold, judge


def hold(start: float, end: float, fence: int, mode: str = EXCLUSIVE, limit: int | None = None) -> Hold:
    return Hold("a", f"holder{fence}", fence, start, end, SHARED if mode == SHARED else EXCLUSIVE, limit)


def test_holds_one_after_the_other_are_fine() -> None:
    assert judge([hold(3, 4, 3), hold(0, 1, 1), hold(1, 2, 2)]) == []


def test_two_believers_at_once_are_found() -> None:
    (line,) = judge([hold(0, 2, 1), hold(1, 3, 2)])
    assert line.startswith("held together")


def test_an_overlap_with_an_earlier_longer_hold_is_found() -> None:
    assert len(judge([hold(0, 10, 1), hold(1, 2, 2), hold(3, 4, 3)])) == 2


def test_different_names_do_not_meet() -> None:
    assert judge([hold(0, 2, 1), hold(1, 3, 2)._replace(name="b")]) == []


def test_a_fence_that_goes_back_or_is_given_twice_is_found() -> None:
    assert judge([hold(0, 1, 2), hold(1, 2, 1)])[0].startswith("fence went back")
    assert judge([hold(0, 1, 2), hold(1, 2, 2)])[0].startswith("one fence twice")


def test_a_hold_that_was_over_before_it_began_does_not_count() -> None:
    assert judge([hold(0, 2, 2), hold(1, 1, 1)]) == []


def test_as_many_share_as_the_limit_allows() -> None:
    two = [hold(0, 2, 1, SHARED, 2), hold(1, 3, 2, SHARED, 2)]
    assert judge(two) == []
    assert judge([*two, hold(1.5, 2.5, 3, SHARED, 2)])[0].startswith("held together")
    assert judge([*two, hold(2, 2.5, 3, SHARED, 2)]) == []


def test_no_reader_beside_a_writer() -> None:
    assert judge([hold(0, 2, 1, SHARED), hold(1, 3, 2)])[0].startswith("held together")
    assert judge([hold(0, 2, 1), hold(1, 3, 2, SHARED)])[0].startswith("held together")


def test_readers_may_receive_their_grants_in_another_order_than_they_were_made() -> None:
    assert judge([hold(0, 2, 2, SHARED), hold(1, 3, 1, SHARED)]) == []
    assert judge([hold(0, 1, 3), hold(1, 3, 2, SHARED)])[0].startswith("fence went back")


def downgraded(start: float, at: float, end: float, fence: int) -> list[Hold]:
    before = hold(start, at, fence)._replace(claim_id=f"claim{fence}")
    return [before, before._replace(start=at, end=end, mode=SHARED)]


def test_a_writer_that_became_a_reader_goes_on_under_its_fence() -> None:
    writer = downgraded(0, 2, 4, 1)
    assert judge([*writer, hold(2.5, 3, 2, SHARED)]) == []
    assert judge([*writer, hold(4, 5, 2)]) == []


def test_nobody_comes_between_a_writer_and_the_reader_that_it_became() -> None:
    writer = downgraded(0, 2, 4, 1)
    assert judge([*writer, hold(1, 3, 2, SHARED)])[0].startswith("held together")
    assert judge([*writer, hold(2, 3, 2)])[0].startswith("held together")


def test_a_reader_with_the_fence_of_another_writer_is_found() -> None:
    writer, reader = downgraded(0, 2, 4, 1)
    assert judge([writer, reader._replace(claim_id="another")])[0].startswith("one fence twice")


def test_a_hundred_thousand_holds_are_judged_in_no_time() -> None:
    started = time.monotonic()
    assert judge(hold(n, n + 1, n) for n in range(100_000)) == []
    assert time.monotonic() - started < 10
