"""Work that a quorum does at every server at once."""

from __future__ import annotations

import pytest

from lockfast.backends.redlock.io.connections import at_once


@pytest.mark.parametrize("broken", range(3))
def test_an_error_that_nobody_expects_is_raised_when_all_are_over(broken: int) -> None:
    done: list[int] = []

    def work(number: int) -> int:
        if number == broken:
            raise ZeroDivisionError(number)
        done.append(number)
        return number

    with pytest.raises(ZeroDivisionError, match=str(broken)):
        at_once([lambda number=number: work(number) for number in range(3)])  # type: ignore[misc]
    assert sorted(done) == [number for number in range(3) if number != broken]


def test_what_all_return_is_in_their_order() -> None:
    assert at_once([lambda: 1, lambda: 2, lambda: 3]) == [1, 2, 3]
