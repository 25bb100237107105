"""Judge a run by its journals. Pure: lines in, findings out.

Decides: which findings there are beside those of `lockfast.testing.history`: errors that are not part of the game, what
is left at the end, and whether the run was long and hard enough to count.

Advisory locks end with their session, and their holder learns of it a moment later: as their page says, two may believe
until then. So there a hold is judged as the server had it: it ends with the first fault in it that ends sessions. How
many more overlaps and fences there are if it is judged as its holder believed is counted beside that.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from lockfast._time import FOREVER
from lockfast.testing.history import Hold, judge
from tests.torture.actors import LONG
from tests.torture.jobs import LONG_STYLES
from tests.torture.journal import Believed, Entry, believed, read

ENOUGH_PER_MINUTE = 100  # holds
MAX_AHEAD_S = 60.0  # all clocks here are one, so a fence that is further ahead of it has run away


class Evidence(NamedTuple):
    """What a run has left: the lines of each worker and of the supervisor."""

    workers: dict[str, list[Entry]]  # by the file of their journal
    supervisor: list[Entry]
    stderr: dict[str, str] = {}  # noqa: RUF012 - never changed

    def of(self, *events: str) -> list[Entry]:
        return [line for line in self.supervisor if line["event"] in events]

    def of_workers(self, *events: str) -> Iterator[tuple[str, Entry]]:
        return ((file, line) for file, lines in self.workers.items() for line in lines if line["event"] in events)


class Findings(NamedTuple):
    holds: Counter[str]  # by style
    faults: Counter[str]
    violations: list[str]
    documented: int  # more overlaps and fences, which the page names as the consequence of an ended session
    unexpected: list[str]
    left: list[str]  # after the end
    refused: Counter[str]  # by error
    losses: int
    longest_wait: float
    longest_calm_wait: float
    fairness: float  # Jain's index
    ahead: float  # seconds by which a fence was ahead of the clock
    connections: list[int]
    threads: tuple[int, int]  # of a worker: at first, and at most
    files: tuple[int, int]
    vacuous: list[str]


def gather(folder: Path) -> Evidence:
    files = sorted(folder.glob("worker-*.jsonl"))
    errors = {file.name: file.read_text(errors="replace") for file in sorted(folder.glob("worker-*.err"))}
    return Evidence({file.name: list(read(file)) for file in files}, list(read(folder / "supervisor.jsonl")), errors)


def judged(evidence: Evidence, minutes: float, kinds: Iterable[str], *, by_session: bool = False) -> Findings:
    """`kinds` are the names of the faults that the run had to have; `by_session` is true of advisory locks."""
    died = {line["file"]: float(line["at"]) for line in evidence.of("killed")}
    holds = [
        hold for file, lines in evidence.workers.items() for hold in believed(lines, file, died.get(file, FOREVER))
    ]
    faults = Counter(str(line["name"]) for line in evidence.of("fault"))
    lines = judge(each.hold for each in holds)
    documented = 0
    if by_session:
        as_believed, lines = lines, judge(_ended_with_session(holds, evidence.of("fault")))
        documented = len(as_believed) - len(lines)
    ahead = _ahead(evidence, holds)
    if ahead > MAX_AHEAD_S:
        lines.append(f"fences ran away: one was {ahead:.0f} s ahead of the clock")
    styles = Counter(each.style for each in holds)
    waits = _waits(evidence, holds)
    return Findings(
        styles,
        faults,
        lines,
        documented,
        list(_unexpected(evidence)),
        [f"{line['name']}: {line['info']}" for line in evidence.of("left")],
        Counter(str(line["error"]) for _, line in evidence.of_workers("refused")),
        sum(1 for _ in evidence.of_workers("lost")),
        max((end - start for start, end in waits), default=0.0),
        _longest_calm_wait(waits, evidence.of("calm")),
        _fairness(evidence, holds),
        ahead,
        [int(line["number"]) for line in evidence.of("connections")],
        _growth(evidence, "threads"),
        _growth(evidence, "files"),
        list(_too_little(styles, faults, minutes, kinds)),
    )


def _ended_with_session(holds: Iterable[Believed], faults: Sequence[Entry]) -> Iterator[Hold]:
    spans = sorted((float(one["began"]), float(one["begun"])) for one in faults if one["ends_sessions"])
    ended = [end for _, end in spans]
    for each in holds:
        hold, place = each.hold, bisect_left(ended, each.hold.start)
        end = max(spans[place][0], hold.start) if place < len(spans) else FOREVER
        yield hold._replace(end=min(hold.end, end))


def _unexpected(evidence: Evidence) -> Iterator[str]:
    for file, line in evidence.of_workers("unexpected"):
        yield f"{file}: {line['style']}: {line['error']}\n{line['trace']}"
    for file, line in evidence.of_workers("ended"):
        if line["threads"]:
            yield f"{file}: threads are left at the end: {line['threads']}"
    for line in evidence.of("crashed", "stuck"):
        yield f"{line['file']}: {line['event']} {line.get('code', '')}"
    for file, text in evidence.stderr.items():
        if text.strip():
            yield f"{file}:\n{text}"


def _waits(evidence: Evidence, holds: Iterable[Believed]) -> list[tuple[float, float]]:
    """From asking to the grant, or to giving up; not for what is held for long."""
    granted = [(each.asked_at, each.hold.start) for each in holds if each.hold.name not in LONG]
    lines = [line for _, line in evidence.of_workers("refused") if line["style"] not in LONG_STYLES]
    refused = [(float(line["asked"]), float(line["at"])) for line in lines]
    return granted + [wait for wait in refused if wait[0] < wait[1]]


def _longest_calm_wait(waits: Iterable[tuple[float, float]], calms: Sequence[Entry]) -> float:
    """The longest part of a wait that falls into one calm."""
    spans = sorted((float(calm["began"]), float(calm["at"])) for calm in calms)
    starts = [start for start, _ in spans]
    longest = 0.0
    for asked, end in waits:
        for start, stop in spans[max(0, bisect_left(starts, asked) - 1) :]:
            if start >= end:
                break
            longest = max(longest, min(end, stop) - max(asked, start))
    return longest


def _fairness(evidence: Evidence, holds: Iterable[Believed]) -> float:
    """Jain's index: 1 if all workers of both worlds got as many holds in a second, 1/n if one got all."""
    seconds: defaultdict[str, float] = defaultdict(float)
    got: Counter[str] = Counter()
    for file, lines in evidence.workers.items():
        if lines:
            seconds[_slot(file)] += float(lines[-1]["at"]) - float(lines[0]["at"])
    for each in holds:
        got[_slot(each.worker)] += 1
    rates = [got[slot] / lived for slot, lived in seconds.items() if lived > 0]
    return sum(rates) ** 2 / (len(rates) * sum(rate * rate for rate in rates)) if any(rates) else 0.0


def _ahead(evidence: Evidence, holds: Iterable[Believed]) -> float:
    """Every backend counts fences from the microseconds of a clock."""
    offsets = [float(entry["wall"]) - float(entry["at"]) for _, entry in evidence.of_workers("began")]
    if not offsets:
        return 0.0
    return max((each.hold.fence / 1e6 - each.hold.start - offsets[0] for each in holds), default=0.0)


def _slot(file: str) -> str:
    return file.rpartition("-")[0]


def _growth(evidence: Evidence, what: str) -> tuple[int, int]:
    """Of those workers that lived longest: about the first minute, and all the time."""
    samples = [[int(line[what]) for line in lines if line["event"] == "sample"] for lines in evidence.workers.values()]
    longest = max(map(len, samples), default=0)
    lasting = [of for of in samples if len(of) == longest and of]
    return max((max(of[:30]) for of in lasting), default=0), max((max(of) for of in lasting), default=0)


def _too_little(styles: Counter[str], faults: Counter[str], minutes: float, kinds: Iterable[str]) -> Iterator[str]:
    if styles.total() < ENOUGH_PER_MINUTE * minutes:
        yield f"only {styles.total()} holds"
    yield from (f"no fault {kind!r}" for kind in kinds if not faults[kind])
