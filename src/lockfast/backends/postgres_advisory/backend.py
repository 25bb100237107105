"""PostgreSQL's advisory locks: no schema, no rights, and no ttl at the server.

Decides: which statements answer each verb, and what happens to a hold when its session ends.
Leaves to `acquiring`: acquire and wait. Leaves to `renewals`: renew. Leaves to `silence`: which session is given up.
Leaves to `statements`: the SQL. Leaves to `holds`: which claims this `Locks` has. Leaves to the driver: connections,
and to notice their end.

One main session holds every lock that was free when it was asked for. A claim that has to wait is in PostgreSQL's own
queue, which is fair, in a session of its own, and holds the lock there. So does a claim that shares a name with another
one of this `Locks`. At most `waiting` sessions wait (16, see the URL), or one for each lock if these are more; in all
there are four times as many. A claim that finds none left waits in this process for the first that is given back.

A hold lasts as long as its session. The end of a session is noticed when it happens, and reported through `on_loss`.
The ttl is how long a holder believes without an answer from the server: a renewal is a round trip on the session. A
hold that its holder no longer believes in is abandoned by the engine, because the server would keep it.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from lockfast._model import EXCLUSIVE, Capabilities, Claim, LockInfo, Renewal
from lockfast._time import boot_now
from lockfast._worlds import Clock, World
from lockfast.backends.optional import WithoutChanges, WithoutValues
from lockfast.backends.postgres.io.endpoint import PostgresEndpoint
from lockfast.backends.postgres.io.one_query import identify
from lockfast.backends.postgres_advisory.acquiring import Acquiring
from lockfast.backends.postgres_advisory.holds import AdvisoryHold
from lockfast.backends.postgres_advisory.in_transaction import DatabaseIdentity, Taken, take
from lockfast.backends.postgres_advisory.inspection import info_of, infos_of
from lockfast.backends.postgres_advisory.io.session import AdvisorySession, PendingStatement, Rows
from lockfast.backends.postgres_advisory.io.user_connection import transaction_on
from lockfast.backends.postgres_advisory.keys import halves, key_of, name_of_integer
from lockfast.backends.postgres_advisory.renewals import renew
from lockfast.backends.postgres_advisory.statements import TERMINATED_WITHIN_S, read
from lockfast.errors import BackendUnavailable, LockError

MAX_TTL_S: Final = 20 * 86400.0  # no kernel can be set to keep a silent session for much longer


class PostgresAdvisoryBackend(Acquiring, WithoutValues, WithoutChanges):
    capabilities = Capabilities(
        max_ttl=MAX_TTL_S,
        metadata=False,
        observe=False,
        limiter=False,
        cell=False,
        limits=False,
        expires=False,
        reserves=False,
        breaks_alone=False,
    )

    def __init__(self, endpoint: PostgresEndpoint, world: World, clock: Clock | None) -> None:
        super().__init__(endpoint, world, clock)
        self._closed = False
        self._identity = DatabaseIdentity(endpoint, blocking=world.blocking)
        # Called with the ids and fences of claims that ended with their session, and the reason.
        self.on_loss: Callable[[Sequence[tuple[str, int]], str], None] | None = None

    def name_of_integer(self, key: int) -> str:
        return name_of_integer(key)

    # Keep and release

    async def renew(self, batch: Sequence[Renewal], *, within: float) -> builtins.list[bool | None]:
        return await renew(self._sessions, self._holds, batch, within)

    async def renew_from_outside(self, batch: Sequence[Renewal], *, within: float) -> Sequence[bool | None]:
        """On the very sessions that hold, since nothing else proves that the server still hears them."""
        from lockfast.backends.postgres_advisory.io.from_outside import SessionsFromOutside  # here: needs asyncio

        return await renew(SessionsFromOutside(), self._holds, batch, within)

    async def release(self, claim: Claim, *, linger: float, within: float, successor: str = "") -> bool:
        hold = self._holds.by_id.get(claim.id)
        if hold is None:
            return False
        until = boot_now() + within
        hold.unwanted = True
        if hold.freeing:
            await self._settle(hold, hold.session, until)
        if hold.state != "held":
            if hold.state == "ended":  # an interrupt came while it was being forgotten
                self._holds.leave(hold)
            return False
        name = b"lf_free_exclusive" if hold.mode == EXCLUSIVE else b"lf_free_shared"
        hold.freeing = True
        hold.unlock = statement = PendingStatement(name, hold.unlock_params, partial(self._freed, hold))
        statement.urgent = True
        try:
            rows = await self._sessions.execute(hold.session, statement, max(0.01, until - boot_now()))
        except BackendUnavailable:
            if statement.sent_at or self._holds.by_id.get(claim.id) is hold:
                raise
            return False  # it ended with its session before the unlock was sent
        finally:
            if not statement.sent_at:
                hold.freeing, hold.unlock = False, None
        return rows[0][0] == b"t"

    def _freed(self, hold: AdvisoryHold, statement: PendingStatement) -> None:
        hold.freeing, hold.unlock = False, None
        if statement.error is None and hold.state == "held":
            session, in_main = hold.session, hold.in_main
            self._holds.leave(hold)
            if in_main:
                self._own.wake_unqueued(hold.key.number)
                self._silence.close_if_unused(session)
            else:
                self._own.give_back(session)

    async def abandon(self, claim: Claim, *, within: float) -> None:
        hold = self._holds.by_id.get(claim.id)
        if hold is None:
            return
        until = boot_now() + within
        hold.unwanted = True
        if hold.state == "asked" or hold.freeing or (hold.state == "in_doubt" and hold.in_main):
            await self._settle(hold, hold.session, until)
        if hold.state == "held":
            await self.release(claim, linger=0.0, within=max(0.01, until - boot_now()))
        elif hold.state in ("waits", "in_doubt"):
            await self._own.dequeue(hold, until)
        if hold.state in ("new", "ended"):  # ended: an interrupt came while it was being forgotten
            self._holds.leave(hold)
            self._own.wake_unqueued(hold.key.number)

    # The end of a session

    def _ended(self, session: AdvisorySession) -> None:
        """Called by the driver when a session ends. Everything that the session held is gone."""
        lost: builtins.list[AdvisoryHold] = []
        for hold in self._holds.in_session(session):
            in_main = hold.in_main
            if hold.state == "ended":  # an interrupt came while it was being forgotten
                self._holds.leave(hold)
                continue
            if hold.state == "held":
                self._holds.leave(hold)
                if not (hold.unlock_sent and session.interrupted):  # else an interrupt here ended it, once it was sent
                    lost.append(hold)
            else:
                hold.reset()
                hold.wake()
            hold.freeing = False
            if not in_main:
                self._own.give_back(session)
        self._report_loss([hold for hold in lost if not hold.unlock_sent], "the session that held it has ended")
        # Nothing at the server shows whether the unlock was done before the session ended: a loss cannot be ruled out.
        self._report_loss(
            [hold for hold in lost if hold.unlock_sent], "its session ended before the release was answered"
        )

    def _report_loss(self, lost: Sequence[AdvisoryHold], reason: str) -> None:
        if lost and self.on_loss is not None and not self._closed:
            self.on_loss([(hold.claim.id, hold.fence) for hold in lost], reason)

    # Inspection

    async def inspect(self, key: str, *, within: float) -> LockInfo:
        number = key_of(key).number
        rows = await self._ask_main(b"lf_inspect", halves(number), boot_now() + within)
        return info_of(key, read(rows), self._holds.in_this_process)

    async def list(self, prefix: str, *, within: float) -> builtins.list[LockInfo]:
        seen = read(await self._ask_main(b"lf_list", (), boot_now() + within))
        return infos_of(prefix, seen, self._holds.in_this_process)

    async def _ask_main(self, name: bytes, params: Sequence[int], until: float) -> Rows:
        main = await self._sessions.main(max(0.01, until - boot_now()))
        return await self._execute(main, name, params, until)

    async def break_(self, key: str, *, within: float) -> LockInfo:
        """A hold of this `Locks` is unlocked. Another session can only be ended, with everything that it holds."""
        number, until = key_of(key).number, boot_now() + within
        seen = read(await self._ask_main(b"lf_inspect", halves(number), until))
        before = info_of(key, seen, self._holds.in_this_process)
        for one in seen:
            if one.granted and not one.has_session:
                raise LockError(
                    f"lock {key!r} could not be broken: it is held by {one.called}, which is no session that could be "
                    "ended; COMMIT PREPARED or ROLLBACK PREPARED ends it",
                    name=key,
                )
        for pid in {one.pid for one in seen if one.granted}:
            mine = [hold for hold in self._holds.in_pid(pid, number) if hold.state == "held"]
            for hold in mine:
                await self.release(hold.claim, linger=0.0, within=max(0.01, until - boot_now()))
            if not mine:
                await self._terminate(pid, key, until)
            elif self.on_loss is not None:
                self.on_loss([(hold.claim.id, hold.fence) for hold in mine], "it was broken")
        return before

    async def _terminate(self, pid: int, key: str, until: float) -> None:
        try:
            main = await self._sessions.main(max(0.01, until - boot_now()))
            statement = PendingStatement(b"lf_terminate", (pid,))
            statement.answer_within += TERMINATED_WITHIN_S
            rows = await self._sessions.execute(main, statement, max(0.01, until - boot_now()))
            ended = rows[0][0] == b"t" or all(
                one.pid != pid for one in read(await self._ask_main(b"lf_list", (), until))
            )
        except BackendUnavailable as error:
            raise LockError(f"lock {key!r} could not be broken: {error}", name=key) from error
        if not ended:
            raise LockError(f"lock {key!r} could not be broken: session {pid} was terminated, and goes on", name=key)

    async def in_transaction(self, connection: object, names: Mapping[str, str], wait: float | None) -> Taken:
        """On the user's own connection, until its transaction commits or rolls back; see `user_connection`."""
        taken = await take(transaction_on(connection, blocking=self._world.blocking), self._identity, names, wait)
        return taken if taken.missing is not None else taken._replace(fence=self._holds.fences.mint(taken.fence))

    async def close(self) -> None:
        self._closed = True
        await self._sessions.close()

    def before_fork(self) -> None:
        """The child forgets the connections; the parent goes on using them."""

    def after_fork(self, *, child: bool) -> None:
        if child:
            self._holds.after_fork()
            self._sessions.after_fork()

    @property
    def url(self) -> str:
        return self._endpoint.url

    async def identify(self, within: float) -> tuple[str, str]:
        return await identify(self._endpoint, within, blocking=self._world.blocking)

    @property
    def store_id(self) -> str:
        return self._endpoint.name

    def __repr__(self) -> str:
        return self._endpoint.name
