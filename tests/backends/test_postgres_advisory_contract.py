"""The contract on PostgreSQL's advisory locks, but for what such locks cannot do.

Decides: which stories are about something that advisory locks have not, and why. Whatever is not named here must pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.testing.contract import CHAPTERS, Promise
from tests.backends.told_in_part import told_in_part
from tests.servers.postgres_shared import advisory

WHOLE_CHAPTERS = {
    "Semaphores": "no limit to how many may share",
    "Elections": "changes are told to nobody",
    "ObservedElections": "changes are told to nobody",
    "RateLimits": "no values are kept",
    "WaitingForRateLimits": "no values are kept",
    "OptimisticCells": "no values are kept",
}
LEFT_OUT = {
    "the server ends no hold after a ttl: its own process lets go of it, behind the story's back": {
        "test_another_claim_ends_and_renews_nothing_at_the_store",
        "test_a_clock_that_may_drift_is_believed_for_less_than_the_ttl",
        "test_names_that_are_never_used_again_leave_nothing_in_the_store",
        "test_what_cannot_be_cleaned_up_ends_with_its_ttl",
        "test_a_failed_release_can_be_repeated",
        "test_a_release_that_failed_is_not_renewed_and_ends_with_its_ttl",
        "test_a_release_repeated_too_late_touches_nobody",
        "test_asking_again_renews_a_hold_that_was_granted_unheard",
        "test_a_failed_release_does_not_spoil_a_body_that_went_well_and_is_told",
        "test_the_store_never_brings_back_what_has_expired",
        "test_what_expired_and_is_asked_for_again_is_held_once",
        "test_who_finds_that_time_made_room_leaves_it_to_an_older_waiter",
        "test_the_first_waiter_comes_in_at_the_moment_of_expiry",
        "test_a_step_of_the_wall_clock_ends_no_hold_and_lengthens_none",
        "test_a_client_whose_clock_stands_still_cannot_keep_a_lock_for_ever",
        "test_a_client_whose_clock_runs_ahead_ends_nothing_but_its_own_belief",
        "test_expiry_counts_from_when_a_request_took_effect_at_the_store",
        "test_a_renewal_never_shortens_at_the_store",
        "test_fences_strictly_grow_through_every_way_to_end",
        "test_a_crashed_reader_keeps_writers_out_for_its_ttl_at_most",
        "test_a_downgrade_of_what_the_store_has_ended_touches_nobody",
    },
    "a name cannot stay taken when nobody holds it": {
        "test_a_name_stays_taken_until_min_hold_after_the_grant",
        "test_a_waiter_comes_in_when_min_hold_has_passed",
        "test_a_hold_longer_than_min_hold_is_freed_at_once",
        "test_a_name_that_lingers_is_not_held_renewed_or_taken_again_by_its_claim",
        "test_breaking_ends_min_hold_too",
        "test_a_name_that_lingers_takes_room_until_it_ends",
    },
    "a break ends the whole session of the holder, with all that it holds": {
        "test_a_lease_lost_from_a_batch_does_not_harm_the_others",
        "test_an_on_lost_that_fails_does_not_end_the_keeper",
        "test_the_loss_of_one_name_ends_the_others",
        "test_on_lost_is_told_though_the_others_cannot_be_released_just_now",
        "test_whoever_releases_while_a_loss_ends_the_others_spoils_nothing",
    },
    "no limit to how many may share": {
        "test_no_more_shared_claims_hold_than_the_limit",
        "test_a_place_is_made_by_expiry_and_by_breaking_too",
        "test_the_permit_of_a_dead_holder_comes_back",
        "test_a_release_wakes_as_many_as_there_is_room_for",
        "test_what_is_reserved_is_nobody_else_s",
        "test_a_downgrade_of_a_reader_or_a_permit_does_nothing",
        "test_who_holds_every_permit_may_wait_for_one_that_another_gives_back",
    },
    "a waiter is dead when its session is; there are no reservations that could lapse": {
        "test_a_grant_is_looked_for_again_after_waiting_and_never_assumed",
        "test_a_dead_waiter_holds_up_the_queue_for_a_short_grace_at_most",
        "test_a_dead_waiter_holds_up_the_queue_once_and_not_at_every_hand_over",
        "test_a_dead_waiter_holds_up_a_newcomer_for_a_short_grace_at_most",
        "test_a_dead_waiter_is_forgotten_after_a_while",
        "test_a_reservation_that_lapses_goes_to_the_next",
    },
}


LEFT_OUT_PARTS = {"a permit under a lock"}  # of stories that are told in several ways: no limit to how many may share


def _url(folder: Path) -> str:
    return advisory().url(folder).replace("postgresql:", "postgresql+advisory:")


def _on_advisory(chapter: type[Promise]) -> type[Promise]:
    def url(self: Any, tmp_path: Path) -> str:
        return _url(tmp_path)

    told: dict[str, Any] = {"url": url, "can": frozenset({"fork", "processes"}), "__module__": __name__}
    left_out = {story for stories in LEFT_OUT.values() for story in stories}
    return told_in_part(chapter, f"Test{chapter.__name__}_advisory", told, left_out, LEFT_OUT_PARTS)


for _chapter in CHAPTERS:
    if _chapter.__name__ not in WHOLE_CHAPTERS:
        globals()[f"Test{_chapter.__name__}_advisory"] = _on_advisory(_chapter)


def test_every_story_that_is_left_out_is_one_that_there_is() -> None:
    known = {story for chapter in CHAPTERS for story in dir(chapter)}
    assert {story for stories in LEFT_OUT.values() for story in stories} <= known
    assert set(WHOLE_CHAPTERS) <= {chapter.__name__ for chapter in CHAPTERS}
