"""Simulated runs of the real engine, each decided by its seed: `python -m lockfast.testing.simulation 1234`.

Decides: who the clients are, and when a machine crashes, freezes or is cut off, or only its event loop is blocked.
Leaves to `simulation_plans` and `simulation_jobs`: what the clients do. Leaves to `simulated_network`: the fate of
messages. Leaves to `simulation_checks`, `simulation_observations` and `history`: the judgement.
"""

from __future__ import annotations

import sys
from asyncio import CancelledError
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from lockfast._model import PRESENCE_S
from lockfast.errors import LimitMismatch
from lockfast.observe.events import Event
from lockfast.testing.history import judge
from lockfast.testing.simulated import Simulation, Task
from lockfast.testing.simulated_client import SOUND, Client, Parts
from lockfast.testing.simulated_network import NO_FAULTS, Faults, Network
from lockfast.testing.simulation_checks import HAND_OVER_S, LogReader, Loss, kept_the_rest, needless_losses
from lockfast.testing.simulation_jobs import Jobs
from lockfast.testing.simulation_observations import (
    ObservationChecks,
    bookings,
    over_the_rate,
    terms_grow,
    uses_without_permit,
)
from lockfast.testing.simulation_plans import ABOUT, LONGEST_TTL_S, JobPlan, Subject, some_plan, some_rate, subjects
from lockfast.testing.simulation_record import Record

USUAL = Faults(
    lost_request=0.02, lost_reply=0.02, reset=0.02, late=0.01, repeated=0.02, slow=0.03, lost_wake=0.05, late_wake=0.1
)
HORIZON_S = 600.0  # virtual seconds in which every client must have done its work


class SimulationOutcome(NamedTuple):
    seed: int
    about: str  # "": a mutex and something else
    wrong: list[str]  # what must never be; empty if all is well
    counts: Counter[str]  # holds, losses, and faults of each kind
    trace: tuple[tuple[float, str, str], ...]  # when whose request of which kind arrived, to distinguish runs

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {dict(sorted(self.counts.items()))}", *self.wrong[:10]]
        if self.wrong:
            lines.append(f"replay with: python -m lockfast.testing.simulation {self.seed} {self.about}".rstrip())
        return "\n".join(lines)


class SimulatedWorker:
    """Does one job after another; when its machine crashes, a new one goes on with the rest."""

    def __init__(self, run: Run, jobs: int) -> None:
        self.run, self.jobs = run, jobs

    async def work(self, client: Client) -> None:
        run = self.run
        while self.jobs:
            self.jobs -= 1
            await client.world.pause(run.random.choice((0.0, 0.01, 0.3, 1.0)) * run.random.random())
            plan = run.plan(run.random.choice(run.subjects))
            task = client.world.task(run.jobs.do(client, plan), "job")
            task.cancel_after = plan.cancel_after
            if plan.cancel_in is not None:
                run.simulation.later(plan.cancel_in, task._cancel_now, client.world)
            await task.finished()
            run.job_done(client, task)


class Run:
    """One seed."""

    def __init__(self, seed: int, parts: Parts = SOUND, about: str = "") -> None:
        self.seed, self.parts, self.about = seed, parts, about
        self.simulation = Simulation(seed)
        self.random = self.simulation.random
        self.heat = self.random.choice((0.0, 0.5, 1.0, 1.0, 2.0))  # how bad things are; 0 is a run without faults
        self.network = Network(self.simulation, USUAL.times(self.heat), parts.server)
        self.subjects = subjects(self.random, about)
        self.rate = some_rate(self.random)
        self.record = Record()
        self.jobs = Jobs(self.simulation, self.record, self.rate)
        self.reader = LogReader(self.network.excused)
        self.disturbed_until: dict[str, float] = {}  # by client: when it was last frozen or cut off
        self.blocked_until: dict[str, float] = {}  # by client: when its event loop was last blocked
        self.lost_claims: set[str] = set()  # ids, of leases that never reached a caller too
        self.watching: list[Task] = []
        self.clients = [self._client(f"client{n}") for n in range(self.random.randint(2, 4))]
        self.workers = {
            SimulatedWorker(self, self.random.randint(3, 12)): client
            for client in self.clients
            for _ in range(self.random.randint(1, 3))
        }

    def _client(self, name: str) -> Client:
        return Client(self.network, name, self.parts, self.lost)

    def plan(self, subject: Subject) -> JobPlan:
        plan = some_plan(self.random, subject, self.heat, self.rate)
        return plan if self.heat or plan.style != "break" else plan._replace(style="with")

    # What is noticed on the way

    def _wrong(self, text: str) -> None:
        self.record.wrong.append(f"{self.simulation.time:.6f}: {text}")

    def lost(self, client: Client, event: Event) -> None:
        self.lost_claims.add(event.claim_id)
        belief = self.record.belief(event.claim_id)
        if belief is None:
            return
        if belief.end < self.simulation.time and event.claim_id in self.network.excused:
            return  # its release was under way for too long
        belief.over()
        lease = belief.lease
        for other in self.record.beliefs:
            if belief.together is not None and other.together is belief.together:
                other.over()
        if belief.together is not None and belief.together.held:
            self._wrong(f"{belief.together!r} is held without {lease!r}")
        deadline = client.world.true_time(lease._deadline)
        blocked_until = self.blocked_until.get(client.world.name, 0.0)
        now, renews, together = self.simulation.time, belief.plan.renew, belief.together
        rest = tuple(each.claim_id for each in together._leases if each is not lease) if together else ()
        self.record.losses.append(
            Loss(now, client.world.name, event.claim_id, lease.ttl, renews, deadline, event.detail, rest, blocked_until)
        )

    def job_done(self, client: Client, task: Task) -> None:
        ids = set(client.claims_of.pop(task, ()))
        if task.cancelled_at is not None:
            self.record.counts["cancelled"] += 1
            if not isinstance(task.error, CancelledError):
                self._wrong(f"the cancellation of {task!r} was swallowed")
        elif task.error is not None:
            self._wrong(f"{task!r} died of {task.error!r}")
        # What cannot be released at once on a slow network is released in the background.
        self.simulation.later(2 * HAND_OVER_S, lambda: self._left_behind(task, ids), client.world)

    def _left_behind(self, task: Task, ids: set[str]) -> None:
        ids = ids - self.network.excused - self.lost_claims
        for key, resource in self.network.server.store.resources.items():
            for id in ids & (resource.queue.keys() | resource.holders.keys()):
                if id in resource.queue or not resource.holders[id].ended:
                    self._wrong(f"{task!r} left {id} behind in {key!r}")

    # What goes wrong with machines

    def nemesis(self) -> None:
        """Every now and then something happens to a machine."""
        if not self.heat or not self._working():
            return
        self.simulation.later(self.random.expovariate(self.heat / 4.0), self.nemesis)
        client = self.random.choice([client for client in self.clients if not client.world.crashed])
        getattr(self, "_" + self.random.choice(("freeze", "freeze", "block", "block", "cut_off", "cut_off", "crash")))(
            client
        )

    def _freeze(self, client: Client) -> None:
        client.disturb("freeze")
        seconds = self.random.choice((0.5, LONGEST_TTL_S, 2 * LONGEST_TTL_S, PRESENCE_S + 5)) * self.random.random()
        client.freeze(seconds)
        self.blocked_until[client.world.name] = client.world.awake_at
        self._disturbed(client, seconds)

    def _block(self, client: Client) -> None:
        """No lease is lost by that, but its claims may be served late, and a loss is noticed late."""
        client.disturb("block")
        seconds = self.random.choice((LONGEST_TTL_S, 4 * LONGEST_TTL_S)) * self.random.random()
        client.block(seconds)
        self.blocked_until[client.world.name] = client.world.awake_at

    def _cut_off(self, client: Client) -> None:
        client.disturb("cut_off")
        seconds = self.random.choice((0.5, 2.0, 2 * LONGEST_TTL_S)) * self.random.random()
        client.cut_off(seconds)
        self._disturbed(client, seconds)

    def _crash(self, client: Client) -> None:
        client.disturb("crash")
        client.crash()
        successor = self._client(client.world.name + "+")
        self.clients.append(successor)
        for worker, machine in self.workers.items():
            if machine is client:
                self.workers[worker] = successor
        self.simulation.later(self.random.uniform(0.0, 2 * LONGEST_TTL_S), lambda: self._boot(successor))

    def _boot(self, client: Client) -> None:
        self._watch(client)
        for worker, machine in list(self.workers.items()):
            if machine is client:  # else this one has crashed too, and another goes on
                self._start(worker, client)

    def _disturbed(self, client: Client, seconds: float) -> None:
        before = self.disturbed_until.get(client.world.name, 0.0)
        self.disturbed_until[client.world.name] = max(before, self.simulation.time + seconds)

    # From start to end

    def _start(self, worker: SimulatedWorker, client: Client) -> None:
        client.world.task(self._finish(worker, client), "worker")

    async def _finish(self, worker: SimulatedWorker, client: Client) -> None:
        await worker.work(client)
        del self.workers[worker]

    def _working(self) -> bool:
        return bool(self.workers)

    def _watch(self, client: Client) -> None:
        for subject in self.subjects:
            if subject.kind == "election" and not client.world.crashed and self.random.random() < 0.6:
                self.watching.append(client.world.task(self.jobs.watch(client, self.plan(subject)), "watcher"))

    def go(self) -> SimulationOutcome:
        try:
            for worker, client in list(self.workers.items()):
                self._start(worker, client)
            for client in list(self.clients):
                self._watch(client)
            self.simulation.later(0.5, self.nemesis)
            while self._working() and self.simulation.time < HORIZON_S:
                self.simulation.run(self.simulation.time + 5.0)
            self._calm()
            trace = tuple((step.time, step.client, step.verb) for step in self.network.server.log)
            return SimulationOutcome(self.seed, self.about, [*self.record.wrong, *self._judge()], self._count(), trace)
        finally:
            self.simulation.close()
            for client in self.clients:
                client.engine.closed = True

    def _calm(self) -> None:
        """No new faults, and no new requests: time alone must clear away what is left."""
        self.network.faults = NO_FAULTS
        self.simulation.run(self.simulation.time + 1.1 * (1.5 * LONGEST_TTL_S + PRESENCE_S) + 10.0)
        for task in self.watching:
            task.cancel()
        self.simulation.run(self.simulation.time + 1.1 * PRESENCE_S if self.watching else self.simulation.time)

    def _judge(self) -> Iterator[str]:
        network, log, record = self.network, self.network.server.log, self.record
        breaks = [step for step in log if step.verb == "break_"]
        broken = {was.claim_id: step.time for step in reversed(breaks) for was in step.answer.holders}
        yield from judge(record.holds(broken))
        yield from judge(reign.hold(broken) for reign in record.reigns)
        yield from self.reader.read(log)
        yield from needless_losses(record.losses, network.record, broken, self._undisturbed)
        yield from kept_the_rest(record.losses, log, network.excused)
        yield from self._misled()
        booked = bookings(log)
        yield from over_the_rate(booked, self.rate)
        yield from uses_without_permit(record.uses, booked)
        yield from self.simulation.broken_tasks
        yield from self._left_over()
        for client in self.clients:
            if not client.world.crashed:
                yield from client.ledger.wrong()

    def _misled(self) -> Iterator[str]:
        log = self.network.server.log
        for name in [subject.name for subject in self.subjects if subject.kind == "election"]:
            yield from terms_grow(log, name)
            observations = ObservationChecks(log, name, self.network.excused)
            for watch in self.record.watches:
                yield from observations.check(watch)
                self.record.counts["watched" if not observations.silent(watch) else "silent_watches"] += 1

    def _undisturbed(self, client: str, since: float) -> bool:
        return self.disturbed_until.get(client, -1.0) < since

    def _left_over(self) -> Iterator[str]:
        for worker, client in self.workers.items():
            yield f"a worker of {client.world.name} hangs with {worker.jobs} jobs to go"
        server = self.network.server
        server.store.sweep(server.world.now())
        for key, resource in server.store.resources.items():
            yield f"{key!r} is still taken at the end: {[*resource.holders]}, waiting: {[*resource.queue]}"
        for client in self.clients:
            if not client.world.crashed and (client.backend.asking or client.engine.keeper.leases):
                yield f"{client.world.name} still keeps {client.engine.keeper.leases} or asks {client.backend.asking}"

    def _count(self) -> Counter[str]:
        log = self.network.server.log
        more = {
            "wakeups": sum(len(step.woken) for step in log),
            "handed_over": sum(len(step.handed_over) for step in log),
            "mismatches": sum(isinstance(step.answer, LimitMismatch) for step in log),
            "given_back": sum(step.verb == "unthrottle" for step in log),
            "successors": self.reader.successors,
            "renewed_outside": sum(client.outside.renewals for client in self.clients),
            "lost_together": sum(bool(loss.rest) for loss in self.record.losses),
        }
        return self.record.count() + self.network.count() + Counter(more)


def simulate(seed: int, parts: Parts = SOUND, about: str = "") -> SimulationOutcome:
    """One run. The same seed gives the same run."""
    return Run(seed, parts, about).go()


def main(words: list[str], print_line: Callable[[str], Any]) -> int:
    """`1234`, `0-999` or `0-999 election`: run these seeds, about that alone if given; 1 if anything was wrong."""
    first, _, last = (words[0] if words else "0-99").partition("-")
    about = words[1] if len(words) > 1 else ""
    if about and about not in ABOUT:
        print_line(f"a run is about one of {', '.join(ABOUT)}, not {about!r}")
        return 2
    failed, total = 0, Counter[str]()
    seeds = range(int(first), int(last or first) + 1)
    for seed in seeds:
        outcome = simulate(seed, about=about)
        total += outcome.counts
        if outcome.wrong:
            failed += 1
            print_line(str(outcome))
    print_line(f"{failed} of {len(seeds)} seeds failed; {dict(sorted(total.items()))}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], lambda line: sys.stdout.write(line + "\n") and None))
