"""Simulated runs of the real engine, each decided by its seed: `python -m holdfast.testing.simulation 1234`.

Decides: what the clients do, and when a machine crashes, freezes or is cut off.
Leaves to `simulated_network`: the fate of messages. Leaves to `simulation_checks` and `history`: the judgement.
"""

from __future__ import annotations

import sys
from asyncio import CancelledError
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from holdfast._model import EXCLUSIVE, PRESENCE, SHARED
from holdfast.aio import AsyncLease, AsyncLock
from holdfast.errors import AcquireTimeout, BackendUnavailable, LeaseLost
from holdfast.observe.events import Event
from holdfast.testing.history import judge
from holdfast.testing.simulated import Simulation, Task
from holdfast.testing.simulated_client import SOUND, Belief, Client, Parts, Plan
from holdfast.testing.simulated_network import NO_FAULTS, Faults, Network
from holdfast.testing.simulation_checks import LogReader, Loss, needless_losses

USUAL = Faults(lost_request=0.02, lost_reply=0.02, reset=0.02, late=0.01, repeated=0.02, slow=0.03, lost_wake=0.05)
HORIZON = 600.0  # virtual seconds in which every client must have done its work
LONGEST_TTL = 5.0


class Outcome(NamedTuple):
    seed: int
    wrong: list[str]  # what must never be; empty if all is well
    counts: Counter[str]  # holds, losses, and faults of each kind
    trace: tuple[tuple[float, str, str], ...]  # when whose request of which kind arrived, to tell runs apart

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {dict(sorted(self.counts.items()))}", *self.wrong[:10]]
        if self.wrong:
            lines.append(f"replay with: python -m holdfast.testing.simulation {self.seed}")
        return "\n".join(lines)


class Worker:
    """Does one job after another; when its machine crashes, a new one goes on with the rest."""

    def __init__(self, run: Run, jobs: int) -> None:
        self.run, self.jobs = run, jobs

    async def work(self, client: Client) -> None:
        run = self.run
        while self.jobs:
            self.jobs -= 1
            await client.world.pause(run.random.choice((0.0, 0.01, 0.3, 1.0)) * run.random.random())
            plan = run.plan()
            task = client.world.task(run.job(client, plan), "job")
            task.cancel_after = plan.cancel_after
            await task.finished()
            run.job_done(client, task)


class Run:
    """One seed."""

    def __init__(self, seed: int, parts: Parts = SOUND) -> None:
        self.seed, self.parts = seed, parts
        self.simulation = Simulation(seed)
        self.random = self.simulation.random
        self.heat = self.random.choice((0.0, 0.5, 1.0, 1.0, 2.0))  # how bad things are; 0 is a run without faults
        self.network = Network(self.simulation, USUAL.times(self.heat), parts.server)
        self.names = self._names()
        self.beliefs: list[Belief] = []
        self.losses: list[Loss] = []
        self.disturbed_until: dict[str, float] = {}  # by client: when it was last frozen or cut off
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()
        self.clients = [self._client(f"client{n}") for n in range(self.random.randint(2, 4))]
        self.workers = {
            Worker(self, self.random.randint(3, 12)): client
            for client in self.clients
            for _ in range(self.random.randint(1, 3))
        }

    def _client(self, name: str) -> Client:
        return Client(self.network, name, self.parts, self.lost)

    def _names(self) -> list[tuple[str, int | None]]:
        kinds = [("mutex", None), ("semaphore", self.random.randint(2, 3)), ("rwlock", None), ("mixed", 2)]
        return [kinds[0], *self.random.sample(kinds, self.random.randint(0, 1))]

    def plan(self) -> Plan:
        pick = self.random.choice
        name, limit = pick(self.names)
        shared = name == "semaphore" or (name != "mutex" and self.random.random() < 0.6)
        ttl = pick((1.0, 2.0, 3.0, LONGEST_TTL))
        return Plan(
            name,
            SHARED if shared else EXCLUSIVE,
            limit if shared else None,
            ttl,
            wait=pick((None, None, 0.0, 0.2, 2.0, 20.0)),
            renew=self.random.random() < 0.8,
            min_hold=pick((0.0, 0.0, 0.0, 0.5)),
            body=pick((0.0, 0.01, 0.2, ttl / 2, ttl * 2)) * self.random.random(),
            style=pick(("with",) * 6 + ("acquire", "acquire", "extend", "break")),
            cancel_after=self.random.randint(1, 10) if self.random.random() < 0.15 * self.heat else None,
        )

    # What a job does

    async def job(self, client: Client, plan: Plan) -> None:
        lock = client.lock(plan)
        try:
            if plan.style == "break" and self.heat:
                await client.backend.break_(plan.name)
            elif plan.style == "acquire":
                await self._by_hand(client, plan, lock)
            else:
                await self._with(client, plan, lock)
        except (AcquireTimeout, BackendUnavailable, LeaseLost) as error:
            self.counts[type(error).__name__] += 1

    async def _with(self, client: Client, plan: Plan, lock: AsyncLock) -> None:
        async with lock as lease:
            belief = self._believe(client, lease, plan)
            try:
                await client.world.pause(plan.body / 2)
                if plan.style == "extend":
                    await lease.extend(plan.ttl * 1.5)
                await client.world.pause(plan.body / 2)
            finally:
                belief.over()
        if lease.lost:
            self.wrong.append(f"{self.simulation.time:.6f}: a `with` ended well although {lease!r} was lost")

    async def _by_hand(self, client: Client, plan: Plan, lock: AsyncLock) -> None:
        lease = await lock.acquire()
        if lease is not None:
            belief = self._believe(client, lease, plan)
            try:
                await client.world.pause(plan.body)
            finally:
                belief.over()
                with suppress(BackendUnavailable):  # else it would take the place of a cancellation
                    await lease.release()

    def _believe(self, client: Client, lease: AsyncLease, plan: Plan) -> Belief:
        belief = Belief(client, lease, plan)
        self.beliefs.append(belief)
        return belief

    def lost(self, client: Client, event: Event) -> None:
        for belief in reversed(self.beliefs):
            if belief.lease.claim_id == event.claim_id:
                if belief.end < self.simulation.time and event.claim_id in self.network.excused:
                    return  # its release was under way for too long
                belief.over()
                deadline = client.world.true_time(belief.lease._deadline)
                now, ttl, renews = self.simulation.time, belief.lease.ttl, belief.plan.renew
                self.losses.append(Loss(now, client.world.name, event.claim_id, ttl, renews, deadline, event.detail))
                return

    def job_done(self, client: Client, task: Task) -> None:
        id = client.claim_of.pop(task, "")
        if task.cancelled_at is not None:
            self.counts["cancelled"] += 1
            if not isinstance(task.error, CancelledError):
                self.wrong.append(f"{self.simulation.time:.6f}: the cancellation of {task!r} was swallowed")
        elif task.error is not None:
            self.wrong.append(f"{self.simulation.time:.6f}: {task!r} died of {task.error!r}")
        lost = any(loss.claim_id == id for loss in self.losses)
        if not lost and id not in self.network.excused:
            for key, resource in self.network.server.store.resources.items():
                holder = resource.holders.get(id)
                if id in resource.queue or (holder is not None and not holder.ended):
                    self.wrong.append(f"{self.simulation.time:.6f}: {task!r} left {id} behind in {key!r}")

    # What goes wrong with machines

    def nemesis(self) -> None:
        """Every now and then something happens to a machine."""
        if not self.heat or not self._working():
            return
        self.simulation.later(self.random.expovariate(self.heat / 4.0), self.nemesis)
        client = self.random.choice([client for client in self.clients if not client.world.crashed])
        getattr(self, "_" + self.random.choice(("freeze", "freeze", "cut_off", "cut_off", "crash")))(client)

    def _freeze(self, client: Client) -> None:
        client.disturb("freeze")
        seconds = self.random.choice((0.5, LONGEST_TTL, 2 * LONGEST_TTL, PRESENCE + 5)) * self.random.random()
        client.world.freeze(seconds)
        self._disturbed(client, seconds)

    def _cut_off(self, client: Client) -> None:
        client.disturb("cut_off")
        seconds = self.random.choice((0.5, 2.0, 2 * LONGEST_TTL)) * self.random.random()
        client.backend.cut_off_until = self.simulation.time + seconds
        self._disturbed(client, seconds)

    def _crash(self, client: Client) -> None:
        client.disturb("crash")
        client.world.crash()
        successor = self._client(client.world.name + "+")
        self.clients.append(successor)
        for worker, machine in self.workers.items():
            if machine is client:
                self.workers[worker] = successor
        self.simulation.later(self.random.uniform(0.0, 2 * LONGEST_TTL), lambda: self._boot(successor))

    def _boot(self, client: Client) -> None:
        for worker, machine in list(self.workers.items()):
            if machine is client:  # else this one has crashed too, and another goes on
                self._start(worker, client)

    def _disturbed(self, client: Client, seconds: float) -> None:
        before = self.disturbed_until.get(client.world.name, 0.0)
        self.disturbed_until[client.world.name] = max(before, self.simulation.time + seconds)

    # From start to end

    def _start(self, worker: Worker, client: Client) -> None:
        client.world.task(self._finish(worker, client), "worker")

    async def _finish(self, worker: Worker, client: Client) -> None:
        await worker.work(client)
        del self.workers[worker]

    def _working(self) -> bool:
        return bool(self.workers)

    def go(self) -> Outcome:
        try:
            for worker, client in list(self.workers.items()):
                self._start(worker, client)
            self.simulation.later(0.5, self.nemesis)
            while self._working() and self.simulation.time < HORIZON:
                self.simulation.run(self.simulation.time + 5.0)
            self._calm()
            trace = tuple((step.time, step.client, step.verb) for step in self.network.server.log)
            return Outcome(self.seed, [*self.wrong, *self._judge()], self._count(), trace)
        finally:
            self.simulation.close()
            for client in self.clients:
                client.engine.closed = True

    def _calm(self) -> None:
        """No new faults, and nobody asks for anything: time alone must clear away what is left."""
        self.network.faults = NO_FAULTS
        self.simulation.run(self.simulation.time + 1.1 * (1.5 * LONGEST_TTL + PRESENCE) + 10.0)

    def _judge(self) -> Iterator[str]:
        network, server = self.network, self.network.server
        breaks = [step for step in server.log if step.verb == "break_"]
        broken = {was.claim_id: step.time for step in reversed(breaks) for was in step.answer.holders}
        yield from judge(belief.hold(broken) for belief in self.beliefs)
        yield from LogReader(network.excused).read(server.log)
        yield from needless_losses(self.losses, network.record, broken, self._undisturbed)
        yield from self.simulation.broken_tasks
        yield from self._left_over()

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
        handed_over = sum(len(step.woken) for step in self.network.server.log)
        more = {"holds": len(self.beliefs), "losses": len(self.losses), "wakes": handed_over}
        return self.counts + self.network.count() + Counter(more)


def simulate(seed: int, parts: Parts = SOUND) -> Outcome:
    """One run. The same seed gives the same run."""
    return Run(seed, parts).go()


def main(words: list[str], say: Callable[[str], Any]) -> int:
    """`1234` or `0-999`: run these seeds; 1 if anything was wrong."""
    first, _, last = (words[0] if words else "0-99").partition("-")
    failed, total = 0, Counter[str]()
    seeds = range(int(first), int(last or first) + 1)
    for seed in seeds:
        outcome = simulate(seed)
        total += outcome.counts
        if outcome.wrong:
            failed += 1
            say(str(outcome))
    say(f"{failed} of {len(seeds)} seeds failed; {dict(sorted(total.items()))}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], lambda line: sys.stdout.write(line + "\n") and None))
