"""What holds for every test: which are left out of the quick loop, and that signals mean what they usually mean."""

from __future__ import annotations

import signal

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: "tests/simulation" not in item.nodeid)  # the longest first: none is left at the end
    for item in items:
        story = getattr(item, "function", None)
        if "processes" in getattr(story, "needs", ()) or _is_told_again(item.nodeid):
            item.add_marker(pytest.mark.slow)


def _is_told_again(test: str) -> bool:
    """The quick loop hears each story once in threads and once in asyncio, on memory, but for those that take long.

    What SQLite and Redis answer to the verbs is held against the reference by a Hypothesis machine there, and a few
    seeds of the simulation are told as well.
    """
    chapter, _, told = test.partition("[")
    promise, _, story = chapter.rpartition("::")
    return promise.endswith(AGAIN) or told.startswith("simulated-") or story in LONG


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str) -> list[pytest.Item] | None:
    """What the quick loop leaves out by the thousand is not even collected there."""
    quick = collector.config.getoption("markexpr") == "not slow"
    return [] if quick and name.startswith("Test") and name.endswith(AGAIN) else None


AGAIN = ("_sqlite", "_redis", "_redis6", "_redis_here", "_redlock3", "_redlock5", "_postgres")
LONG = (
    "test_several_names_cancelled_at_any_moment_leave_nothing",
    "test_callers_with_opposite_orders_never_wait_for_each_other_for_ever",
    "test_blocking_without_a_limit_waits_for_as_long_as_it_takes",
    "test_what_was_under_way_while_it_closed_opens_nothing_again",
    "test_forgetting_closed_or_idle_locks_does_not_warn",
    "test_forgetting_all_locks_warns_and_releases_nothing",
    "test_forgetting_a_lock_or_a_lease_never_releases_it",
    "test_one_object_can_be_used_by_many_at_once",
    "test_its_memory_is_bounded",
    "test_it_keeps_no_locks_alive",
)


def pytest_configure(config: pytest.Config) -> None:
    """Start from the usual answers to signals: whoever runs us in the background may have switched some off."""
    for name in ("SIGINT", "SIGHUP", "SIGQUIT", "SIGTERM"):
        number = getattr(signal, name)
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL)
