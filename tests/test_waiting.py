"""The helper with which tests wait: it returns what it saw, and a wait in vain says what was waited for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from tests.servers import waiting
from tests.servers.waiting import happens, join, until, until_async

Wait = Callable[..., Any]


def in_a_task(condition: Callable[[], Any], *words: Any, **options: Any) -> Any:
    return asyncio.run(until_async(condition, *words, **options))


@pytest.fixture(params=[until, in_a_task], ids=["threads", "asyncio"])
def wait(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LIMIT_S", 0.0)


def test_the_first_true_answer_is_returned(wait: Wait) -> None:
    numbers = count(-3)
    assert wait(lambda: next(numbers)) == -3
    numbers = count(0)
    assert wait(lambda: next(numbers)) == 1


def test_a_condition_may_be_awaitable() -> None:
    async def answer() -> str:
        return "yes"

    assert in_a_task(answer) == "yes"


@pytest.mark.usefixtures("hasty")
def test_a_wait_in_vain_says_what_was_waited_for_and_what_was_seen_last(wait: Wait) -> None:
    with pytest.raises(AssertionError, match=r"in vain for the moon; the last of 1 polls saw \[\]"):
        wait(list, "the moon")
    with pytest.raises(AssertionError, match=r"in vain for .*lambda: 1 > 2.*; the last of 1 polls saw False"):
        wait(lambda: 1 > 2)


@pytest.mark.usefixtures("hasty")
def test_an_expected_error_counts_as_not_yet_and_is_the_cause_in_the_end(wait: Wait) -> None:
    def fails() -> None:
        raise KeyError("no such")

    with pytest.raises(AssertionError, match="saw KeyError") as raised:
        wait(fails, despite=(KeyError,))
    assert isinstance(raised.value.__cause__, KeyError)
    with pytest.raises(KeyError):
        wait(fails, despite=(OSError,))


@pytest.mark.usefixtures("hasty")
def test_a_thread_that_does_not_end_is_shown_where_it_stands() -> None:
    go_on = threading.Event()
    stuck = threading.Thread(target=go_on.wait, name="stuck")
    stuck.start()
    with pytest.raises(AssertionError, match=r"(?s)stuck has not ended.*wait"):
        join(stuck)
    go_on.set()
    stuck.join()
    join(stuck)


@pytest.mark.usefixtures("hasty")
def test_an_event_that_does_not_happen_is_named() -> None:
    with pytest.raises(AssertionError, match="in vain for the bell"):
        happens(threading.Event(), "the bell")
