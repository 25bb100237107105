"""The parts of the command line that decide without acting."""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from lockfast.cli import child, exits, group
from lockfast.cli.demo import judge, missing, seen
from lockfast.cli.demo.judge import Report, ReportedHold
from lockfast.cli.demo.story import NAMES, Story
from lockfast.cli.guardian import EndPlan, Guardian
from lockfast.cli.inspection import span
from lockfast.cli.options import seconds
from lockfast.cli.run import _parser, _split
from lockfast.cli.signals import SignalQueue
from lockfast.cli.supervisor import Grace, Supervisor
from lockfast.errors import AcquireTimeout, BackendUnavailable, LeaseLost, LockError
from tests.servers.processes import has_ended
from tests.servers.waiting import until


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("30", 30),
        ("1.5", 1.5),
        ("200ms", 0.2),
        ("5s", 5),
        ("2m", 120),
        ("1h", 3600),
        ("1d", 86400),
        ("1h30m", 5400),
        ("1m0.5s", 60.5),
        ("1d12h", 129600),
    ],
)
def test_times_are_written_as_people_write_them(text: str, value: float) -> None:
    assert seconds(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "s", "soon", "5 apples", "5sm", "1:30", "1h30", "1.2.3s", "h30m"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a time"):
        seconds(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-1, "0.0s"),
        (0.44, "0.4s"),
        (12.4, "12s"),
        (59.4, "59s"),
        (59.6, "1m00s"),
        (185, "3m05s"),
        (3599.6, "1h00m"),
        (7800, "2h10m"),
        (86400 * 5 + 3600 * 3, "5d03h"),
    ],
)
def test_lengths_of_time_are_written_as_people_write_them(value: float, text: str) -> None:
    assert span(value) == text


def test_the_guardian_acts_later_than_the_supervisor_and_earlier_than_the_deadline() -> None:
    grace = Grace(kill_after=5.0, margin=0.5)
    plan = grace.plan(deadline=100.0)
    assert 100.0 - grace.lead < plan.term_at
    assert 100.0 - grace.margin < plan.kill_at < 100.0
    assert plan.armed
    assert not EndPlan().armed


class _Guardian(Guardian):
    def __init__(self) -> None:
        self.plans: list[EndPlan] = []

    def agree(self, plan: EndPlan) -> None:
        self.plans.append(plan)


def test_an_end_that_is_due_is_not_put_off_by_a_late_renewal() -> None:
    """We were stopped, the guardian has begun to end the group, and then a renewal comes through after all."""
    lease, guardian = SimpleNamespace(lost=False, remaining=30.0), _Guardian()
    supervisor = Supervisor(child.Child(0, -1), lease, guardian, SignalQueue(), None, Grace(kill_after=1.0, margin=0.1))
    supervisor.reassure()
    lease.remaining = 1.0
    supervisor.reassure()
    assert len(guardian.plans) == 2, "while it is not due it may be put off, or be brought forward"
    lease.remaining = 30.0
    supervisor.reassure()
    assert len(guardian.plans) == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (exits.CommandError(127, "x"), 127),
        (AcquireTimeout("x"), 75),
        (LeaseLost("x"), 74),
        (BackendUnavailable("x"), 69),
        (ValueError("x"), 64),
        (LockError("x"), 70),
        (OSError("x"), 70),
    ],
)
def test_each_error_has_its_exit_code(error: Exception, code: int) -> None:
    assert exits.meaning(error) == (code, "x")


def test_exit_codes_of_commands_are_those_of_a_shell() -> None:
    assert child.exit_code(7 << 8) == 7
    assert child.exit_code(15) == 143


def test_a_group_whose_last_process_waits_to_be_reaped_does_not_live() -> None:
    """Or in a container whose first process reaps no children we would wait for zombies."""
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, process_group=0)
    assert process.stdin is not None
    assert group.lives(process.pid)
    process.stdin.close()
    until(lambda: has_ended(process.pid), "the end of cat")
    assert group.signal_group(process.pid, 0), "it is still to be reaped"
    assert not group.lives(process.pid)
    process.wait()
    assert not group.signal_group(process.pid, 0)
    assert not group.lives(process.pid)


# The judge of the demo


def _hold(who: str, fence: int, start: float, end: float) -> Iterator[Report]:
    yield Report(start, who, "granted", {"fence": fence, "until": start + 100})
    yield Report(end, who, "releasing", {"fence": fence})


def test_the_judge_sees_holds_in_order() -> None:
    reports = [*_hold("b", 2, 3.0, 4.0), *_hold("a", 1, 1.0, 2.0)]
    found = judge.holds(reports)
    assert found == [ReportedHold("a", 1, 1.0, 2.0), ReportedHold("b", 2, 3.0, 4.0)]
    assert judge.overlaps(found) == []
    assert judge.fences_only_grow(found)
    assert judge.median_hand_over(found) == 1.0


def test_the_judge_finds_two_holders_at_once() -> None:
    found = judge.holds([*_hold("a", 1, 1.0, 3.0), *_hold("b", 2, 2.0, 4.0)])
    assert judge.overlaps(found) == [(found[0], found[1])]


def test_the_judge_finds_a_fence_that_did_not_grow() -> None:
    assert not judge.fences_only_grow(judge.holds([*_hold("a", 2, 1.0, 2.0), *_hold("b", 2, 3.0, 4.0)]))


def test_a_killed_holder_holds_until_the_blow_and_a_stopped_one_until_its_deadline() -> None:
    granted = Report(1.0, "a", "granted", {"fence": 1, "until": 2.0})
    renewed = Report(1.5, "a", "renewed", {"fence": 1, "until": 2.5})
    assert judge.holds([granted, renewed, Report(1.7, "a", "killed")]) == [ReportedHold("a", 1, 1.0, 1.7)]
    assert judge.holds([granted, renewed, Report(1.7, "a", "stopped")]) == [ReportedHold("a", 1, 1.0, 2.5)]
    assert judge.holds([granted, renewed, Report(9.0, "a", "learned")]) == [ReportedHold("a", 1, 1.0, 2.5)]


def _story() -> Story:
    """One in which all went well."""
    story = Story.__new__(Story)
    story.reports = [
        report for turn, who in enumerate([*NAMES, *NAMES], start=1) for report in _hold(who, turn, turn, turn + 0.5)
    ]
    story.reports += [Report(20.0, "dora", kind, {"fence": 4}) for kind in ("learned", "refused", "raised")]
    story.killed = Report(2.2, "bert", "killed", {"fence": 2})
    story.stopped = Report(4.2, "dora", "stopped", {"fence": 4})
    story.ended, story.took, story.written = True, 6.0, [1, 3, 5]
    story.exit_codes = {who: -9 if who == "bert" else 0 for who in NAMES}
    return story


def test_a_story_in_which_all_went_well_lacks_nothing() -> None:
    story = _story()
    assert list(missing(story)) == []
    text = "\n".join(seen(story))
    assert "8 grants to 4 workers" in text
    assert "never two holders at once" in text
    assert "bert was killed while holding; cleo took over 800ms later" in text


@pytest.mark.parametrize(
    ("change", "lacks"),
    [
        ({"ended": False}, "an end within"),
        ({"written": [3, 1]}, "writes in the order"),
        ({"killed": None}, "a takeover from a killed holder"),
        ({"stopped": None}, "a takeover from a stopped holder"),
        ({"exit_codes": {"anna": 1}}, "a good end of anna (exit code 1)"),
        ({"reports": [*_hold("anna", 1, 1, 3), *_hold("bert", 2, 2, 4)]}, "one holder at a time"),
        ({"reports": [*_hold("anna", 2, 1, 2), *_hold("bert", 1, 3, 4)]}, "growing fences"),
        ({"reports": []}, "a grant to cleo"),
        ({"reports": []}, "late write refused"),
    ],
)
def test_a_story_that_lacks_something_says_what(change: dict[str, object], lacks: str) -> None:
    story = _story()
    vars(story).update(change)
    assert any(lacks in line for line in missing(story))


# Where the command of `run` begins


@pytest.mark.parametrize(
    ("line", "ours", "command"),
    [
        ("job ./x", "job", "./x"),
        ("job -- ./x", "job", "./x"),
        ("job ./x -- -v", "job", "./x -- -v"),
        ("job ./x --wait 0 -n", "job", "./x --wait 0 -n"),
        ("job --wait 0 ./x", "job --wait 0", "./x"),
        ("--wait 0 job -v ./x -v", "--wait 0 job -v", "./x -v"),
        ("--wait=0 job ./x", "--wait=0 job", "./x"),
        ("-w0 job ./x", "-w0 job", "./x"),
        ("-nv job ./x", "-nv job", "./x"),
        ("-vw 5 job ./x", "-vw 5 job", "./x"),
        ("-vw5 job ./x", "-vw5 job", "./x"),
        ("--ttl -1 job ./x", "--ttl -1 job", "./x"),
        ("--metadata -- job ./x", "--metadata -- job", "./x"),
        ("--system job ./x", "--system job", "./x"),
        ("-- -x -- ./x", "-- -x", "./x"),
        ("-n -- -x -- ./x -y", "-n -- -x", "./x -y"),
        ("--unknown job ./x", "--unknown job", "./x"),
        ("job --unknown ./x", "job --unknown", "./x"),
        ("job - x", "job", "- x"),
        ("job", "job", ""),
        ("job --", "job", ""),
        ("", "", ""),
    ],
)
def test_the_command_begins_after_the_name_as_it_does_for_flock(line: str, ours: str, command: str) -> None:
    assert _split(_parser(), line.split()) == (ours.split(), command.split())


@pytest.mark.parametrize("line", ["-- ./report.sh now", "-- true", "-n -- env A=1 ./x", "-- grep -- x", "-- -x", "--"])
def test_a_command_without_a_name_is_never_taken_for_the_name(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        _split(_parser(), line.split())
    assert end.value.code == exits.USAGE
    assert "which lock? Write its name before --" in capsys.readouterr().err
