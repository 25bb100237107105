"""What a job of a simulated client does, and what it sees of that.

Decides: how each primitive is used, in its several styles, and what is wrong at first sight.
Leaves to `simulation_plans`: which of them, and with what. Leaves to the checks: all that only a whole run can show.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import count

from lockfast._facades.primitives import AsyncElection, AsyncMultiLease
from lockfast._model import PRESENCE_S
from lockfast._values import Rate
from lockfast.aio import AsyncLease, AsyncLock
from lockfast.errors import AcquireTimeout, BackendUnavailable, LeaseLost, LimitMismatch, LockError
from lockfast.primitives.election import LeadershipObserver
from lockfast.testing.simulated import Simulation
from lockfast.testing.simulated_client import Client
from lockfast.testing.simulation_checks import HAND_OVER_S
from lockfast.testing.simulation_plans import JobPlan
from lockfast.testing.simulation_record import Belief, ElectionWatch, ReceivedChange, Record, Reign, Use


class Jobs:
    """Everything that clients of one run do."""

    def __init__(self, simulation: Simulation, record: Record, rate: Rate) -> None:
        self._simulation = simulation
        self._random = simulation.random
        self._record = record
        self._rate = rate
        self._candidates = count()

    async def do(self, client: Client, plan: JobPlan) -> None:
        work = {"lock": self._lock, "several": self._several, "election": self._election, "limiter": self._limiter}
        try:
            if plan.style == "break":
                await client.backend.break_(plan.name, within=5.0)
            else:
                await work[plan.kind](client, plan)
        except (AcquireTimeout, BackendUnavailable, LeaseLost, LimitMismatch) as error:
            self._record.counts[type(error).__name__] += 1

    def _wrong(self, text: str) -> None:
        self._record.wrong.append(f"{self._simulation.time:.6f}: {text}")

    # One name

    async def _lock(self, client: Client, plan: JobPlan) -> None:
        lock = client.lock(plan)
        await (self._by_hand if plan.style == "acquire" else self._with)(client, plan, lock)

    async def _with(self, client: Client, plan: JobPlan, lock: AsyncLock) -> None:
        async with lock as lease:
            belief = self._believe(client, lease, plan)
            try:
                await client.world.pause(plan.body / 2)
                if plan.style == "extend":
                    await lease.extend(plan.ttl * 1.5)
                elif plan.style == "downgrade":
                    await self._downgrade(belief)
                await client.world.pause(plan.body / 2)
            finally:
                belief.over()
        if lease.lost:
            self._wrong(f"a `with` ended well although {lease!r} was lost")

    async def _downgrade(self, belief: Belief) -> None:
        belief.downgrades()
        fence = belief.lease.fence
        await belief.lease.downgrade()
        self._record.counts["downgrades"] += 1
        if belief.lease.fence != fence:
            self._wrong(f"a downgrade made fence {fence} into {belief.lease.fence}")

    async def _by_hand(self, client: Client, plan: JobPlan, lock: AsyncLock) -> None:
        lease = await lock.acquire()
        if lease is not None:
            belief = self._believe(client, lease, plan)
            try:
                await client.world.pause(plan.body)
            finally:
                belief.over()
                with suppress(BackendUnavailable):  # else it would take the place of a cancellation
                    await lease.release()

    def _believe(self, client: Client, lease: AsyncLease, plan: JobPlan) -> Belief:
        self._not_too_long(client, lease)
        belief = Belief(client, lease, plan)
        self._record.beliefs.append(belief)
        self._record.counts[f"{plan.name}_{plan.mode}"] += 1
        return belief

    def _not_too_long(self, client: Client, lease: AsyncLease) -> None:
        """A new lease ends before the server can grant again."""
        server = client.network.server
        resource = server.store.resources.get(lease.name)
        hold = resource.holders.get(lease.claim_id) if resource is not None else None
        if hold is None or hold.fence != lease.fence:
            return  # it was ended meanwhile
        late = client.world.true_time(lease._deadline) - server.world.true_time(hold.expires_at)
        if late > 1e-6:
            self._wrong(f"{lease!r} of {client.world.name} is believed for {late:.3f}s longer than the server keeps it")

    # Several names

    async def _several(self, client: Client, plan: JobPlan) -> None:
        lock, started = client.all(plan), self._simulation.time
        try:
            if plan.style == "acquire":
                multi = await lock.acquire()
                self._in_time(client, plan, started)
                if multi is None:
                    self._record.counts["several_given_up"] += 1
                else:
                    try:
                        await self._hold_all(client, plan, multi)
                    finally:
                        with suppress(BackendUnavailable):
                            await multi.release()
                return
            async with lock as multi:
                self._in_time(client, plan, started)
                await self._hold_all(client, plan, multi)
        except AcquireTimeout:
            self._in_time(client, plan, started)
            self._record.counts["several_given_up"] += 1
            raise
        if any(lease._state == "lost" for lease in multi._leases):
            self._wrong(f"a `with` ended well although {multi!r} was lost")

    def _in_time(self, client: Client, plan: JobPlan, started: float) -> None:
        """`wait` is for all names together, and not for each of them."""
        task, took = self._simulation.running, self._simulation.time - started
        if task is None or plan.wait is None or took <= 1.01 * plan.wait + HAND_OVER_S:
            return
        claims, machine = client.claims_of[task], client.world.name
        stood = [fault.time for fault in client.network.record if fault.client == machine and not fault.verb]
        if not client.network.excused.intersection(claims) and max(stood, default=-60.0) < started - 2 * PRESENCE_S:
            self._wrong(f"{plan.names} were waited for for {took:.3f}s, not {plan.wait:g}s together")

    async def _hold_all(self, client: Client, plan: JobPlan, multi: AsyncMultiLease) -> None:
        self._record.counts["several"] += len(plan.names) > 1
        if set(multi.fence) != set(plan.names):
            self._wrong(f"asked for {plan.names} and got {multi!r}")
        for lease in multi.leases.values():
            self._not_too_long(client, lease)  # type: ignore[arg-type]
        beliefs = [Belief(client, lease, plan, multi) for lease in multi.leases.values()]  # type: ignore[arg-type]
        self._record.beliefs += beliefs
        try:
            await client.world.pause(plan.body / 2)
            if plan.style == "extend":
                await multi.extend(plan.ttl * 1.5)
            await client.world.pause(plan.body / 2)
        finally:
            for belief in beliefs:
                belief.over()

    # Elections

    async def _election(self, client: Client, plan: JobPlan) -> None:
        candidate = f"{client.world.name}#{next(self._candidates)}"
        election = client.election(plan, candidate)
        if plan.style == "with":
            async with election as lease:
                await self._lead(client, plan, election, candidate, lease)
        elif plan.style == "run":
            await election.run(lambda lease: self._lead(client, plan, election, candidate, lease))
        else:
            elected = await election.campaign()
            if elected is not None:
                try:
                    await self._lead(client, plan, election, candidate, elected)
                    if plan.style == "hand_over":
                        await self._hand_over(election)
                finally:
                    with suppress(BackendUnavailable):
                        await election.resign()

    async def _lead(
        self, client: Client, plan: JobPlan, election: AsyncElection, candidate: str, lease: AsyncLease
    ) -> None:
        self._not_too_long(client, lease)
        belief, reign = Belief(client, lease, plan._replace(renew=True)), Reign(client, candidate, lease)
        self._record.beliefs.append(belief)
        self._record.reigns.append(reign)
        until = client.world.now() + plan.body
        try:
            while election.is_leader:
                reign.checked()
                if election.term != lease.fence:
                    self._wrong(f"{candidate} leads in term {lease.fence}, but says {election.term}")
                left = until - client.world.now()
                if left <= 0.0:
                    break
                await client.world.pause(min(left, 0.4 * self._random.random()))
        finally:
            belief.over()

    async def _hand_over(self, election: AsyncElection) -> None:
        waiting = await election.candidates()
        if waiting:
            try:
                await election.hand_over(self._random.choice(waiting))
                self._record.counts["hand_overs"] += 1
            except BackendUnavailable:
                raise
            except LockError:  # that one gave up in between, or our time ran out
                self._record.counts["no_hand_over"] += 1

    async def watch(self, client: Client, plan: JobPlan) -> None:
        """Observe an election until cancelled, now and then too busy to listen."""
        observer: LeadershipObserver = client.election(plan, client.world.name)._logic.observer()
        watch = ElectionWatch(client, plan.name, observer._claim.id)
        self._record.watches.append(watch)
        busy = self._random.random() < 0.5
        try:
            while True:
                asked_at = self._simulation.time
                with suppress(BackendUnavailable):
                    change = await observer.next()
                    assert change is not None, "the observer ended by itself"
                    watch.received.append(ReceivedChange(self._simulation.time, asked_at, change))
                if busy:
                    await client.world.pause(self._random.choice((0.0, 0.5, 3.0)) * self._random.random())
        finally:
            await observer.close()

    # Limiters

    async def _limiter(self, client: Client, plan: JobPlan) -> None:
        limiter = client.limiter(plan.name, self._rate)
        if plan.style == "try":
            answer = await limiter.try_acquire(plan.cost)
        else:
            answer = await limiter.acquire(plan.cost, timeout=plan.wait)
        if answer.allowed:
            self._record.uses.append(Use(self._simulation.time, client.world.name, plan.cost))
        else:
            self._record.counts["permits_refused"] += 1
