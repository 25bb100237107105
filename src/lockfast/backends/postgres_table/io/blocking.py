"""PostgreSQL, blocking: threads share a few connections, and one sends for all that came meanwhile.

Decides: how threads carry out the steps of the dispatcher, and wake each other.
Leaves to `dispatcher`: which step is next. Leaves to `batching`: how requests become one statement.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol
from uuid import uuid4

from lockfast._model import Claim
from lockfast._time import boot_now
from lockfast._worlds import Clock, World
from lockfast.backends.postgres.io.endpoint import PostgresEndpoint
from lockfast.backends.postgres.io.refusals import Broken, RolledBack, no_connection, unavailable
from lockfast.backends.postgres.io.resolver import Names
from lockfast.backends.postgres.io.stepping import Late, run
from lockfast.backends.postgres_table.io.batching import (
    CLEAN_UP_WITHIN_S,
    LISTEN_WITHIN_S,
    MAX_TRIES,
    STUCK_AFTER_S,
    Many,
    TableRequest,
    statement_for,
)
from lockfast.backends.postgres_table.io.connections import (
    BlockingTableConnection,
    PostgresTableWakeups,
    TableSubscription,
    arrives,
    open_session,
    seconds_until,
)
from lockfast.backends.postgres_table.io.dispatcher import Dispatcher, DispatchStep, PendingRequest
from lockfast.backends.postgres_table.io.session import ECHO_WITHIN_S, TableSession, echo, listen, register
from lockfast.backends.wakeups import Wakeups
from lockfast.backends.wakeups.turns import in_turn
from lockfast.errors import BackendUnavailable


class PostgresDriver(Protocol):
    """What the backend asks of either world's driver."""

    endpoint: PostgresEndpoint
    now: Callable[[], float] | None  # a test's clock, passed to the server

    @property
    def wakeups(self) -> Wakeups: ...

    @property
    def cannot_listen(self) -> bool:
        """No wake-up arrives here, so waiters poll."""
        ...

    async def ask(self, request: TableRequest, within: float) -> Any:
        """The reply, from JSON. Raises BackendUnavailable."""
        ...

    async def expect(self, claim: Claim, within: float) -> str:
        """As `wakeups.expect`, but makes the connection that wake-ups arrive by, if there is none."""
        ...

    @property
    def blocking(self) -> bool: ...

    async def close(self) -> None: ...
    def after_fork(self) -> None: ...


class BlockingPostgres:
    blocking = True

    def __init__(self, endpoint: PostgresEndpoint, clock: Clock | None, many: Many, version: int) -> None:
        self.endpoint = endpoint
        self.now = clock.now if clock is not None else None
        self._many = many
        self._version = version
        self._wakeups = PostgresTableWakeups(clock, None)
        self._reset()

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._opening = threading.RLock()
        self._names = Names()
        self._channel = f"lockfast_{uuid4().hex}"
        self._unchecked = self._version  # of the schema; 0 once it was seen to be there
        self._dispatcher = Dispatcher(self.endpoint, self._many, blocking=True)

    @property
    def wakeups(self) -> PostgresTableWakeups:
        return self._wakeups

    async def ask(self, request: TableRequest, within: float) -> Any:
        return self._ask(request, within)

    def _ask(self, request: TableRequest, within: float) -> Any:
        until = boot_now() + (min(within, CLEAN_UP_WITHIN_S) if self._dispatcher.closed else within)
        for _ in range(MAX_TRIES):
            answer = self._answer(PendingRequest(request, until, []))
            if not isinstance(answer, Exception):
                return answer
            self._dispatcher.retry(request, answer, boot_now(), until)
        raise self._dispatcher.rolled_back_error()

    def _answer(self, caller: PendingRequest) -> Any:
        """A reply, or an error."""
        try:
            with self._mutex:
                if self._dispatcher.submit(caller):
                    self._go_on()
                self._close_gate(caller)
            while not caller.answer:
                if caller.step is None:
                    self._sleep(caller)
                elif caller.step.connection is None:
                    self._dial(caller, caller.step)
                else:
                    self._send(caller, caller.step)
            return caller.answer[0]
        finally:
            if caller.step is not None or not caller.answer:
                self._give_up(caller)

    # Sleeping

    def _close_gate(self, caller: PendingRequest) -> None:
        if caller.gate is None and caller.step is None and not caller.answer:
            caller.gate = threading.Lock()
            caller.gate.acquire()

    def _sleep(self, caller: PendingRequest) -> None:
        left = seconds_until(caller.until)
        if caller.gate.acquire(timeout=min(left, STUCK_AFTER_S)):
            return
        with self._mutex:
            self._go_on()  # a connection may be stuck
            if left <= STUCK_AFTER_S and caller.step is None and not caller.answer:
                raise self._dispatcher.late_error()

    # Steps. A caller has its step until the dispatcher knows how it ended, so that an interrupt loses no connection.

    def _go_on(self) -> None:
        """Each step is carried out by the thread of its leader."""
        while self._dispatcher.waiting and (step := self._dispatcher.next(boot_now())) is not None:
            gate = step.batch[0].gate
            if gate is not None and gate.locked():
                gate.release()

    def _send(self, caller: PendingRequest, step: DispatchStep) -> None:
        answer, usable = None, False
        try:
            with self._mutex:
                batch = self._dispatcher.batch(step)
            steps = step.connection.session.execute(*statement_for(batch, self._many))
            answer, usable = step.connection.run(steps, caller.until), True
        except (RolledBack, BackendUnavailable) as error:
            answer, usable = error, True
        except Late:
            answer = unavailable(self.endpoint.name, "did not answer in time")
        except Broken as broken:
            answer = broken
        finally:
            self._end(caller, step, answer, usable=usable)

    def _dial(self, caller: PendingRequest, step: DispatchStep) -> None:
        error = connection = None
        try:
            session = open_session(self.endpoint, self._names, caller.until, self._unchecked)
            connection = BlockingTableConnection(session)
            self._unchecked = 0
            with self._mutex:
                self._dispatcher.connected(step, connection, boot_now())
        except BackendUnavailable as reason:
            error = reason
        finally:
            if step.connection is None:
                if connection is not None:
                    connection.close()
                self._end(caller, step, error)

    def _end(self, caller: PendingRequest, step: DispatchStep, answer: Any, *, usable: bool = False) -> None:
        if answer is None and not usable:
            answer = unavailable(self.endpoint.name, "was asked by a thread that was interrupted")
        if step.connection is not None:
            self._deliver(self._dispatcher.results(step.connection, answer))
        with self._mutex:
            if step.connection is None:
                self._deliver(self._dispatcher.not_connected(step, answer, boot_now()))
            else:
                self._dispatcher.finished(step.connection, usable=usable)
            caller.step = None
            self._go_on()
            self._close_gate(caller)

    def _deliver(self, results: list[tuple[PendingRequest, Any]]) -> None:
        for one, value in results:
            one.answer.append(value)
            if one.gate is not None and one.gate.locked():
                one.gate.release()

    def _give_up(self, caller: PendingRequest) -> None:
        with self._mutex:
            self._dispatcher.withdraw(caller)  # it is given no step from now on
        if caller.step is not None:
            self._end(caller, caller.step, None)

    # Wake-ups

    @property
    def cannot_listen(self) -> bool:
        return not self._wakeups.address

    def _should_listen(self) -> bool:
        return self.cannot_listen and self._dispatcher.should_listen(boot_now())

    async def expect(self, claim: Claim, within: float) -> str:
        if self._should_listen():
            try:
                self._listen_in_turn(boot_now() + min(LISTEN_WITHIN_S, within / 2))
            except BackendUnavailable as error:
                with self._mutex:
                    self._dispatcher.cannot_listen_for_now(error, boot_now())
        return self._wakeups.expect(claim)

    def _listen_in_turn(self, until: float) -> None:
        """One thread connects, and the others wait for that."""

        def listen() -> bool:
            if self._should_listen():
                self._listen(until)
            return True

        if not in_turn(self._opening, seconds_until(until), listen):
            raise no_connection(self.endpoint, sent=False)

    def _listen(self, until: float) -> None:
        if self._dispatcher.closed:
            raise self._dispatcher.closed_error()
        session = open_session(self.endpoint, self._names, until, 0)
        try:
            run(session.simple_query(listen(self._channel)), until)
            receives = not session.pooled or self._receives_echo(session, until)
            if receives:
                run(session.simple_query(register(self.endpoint, self._channel)), until)
                self._wakeups.attach(TableSubscription(session, self._channel))
            else:
                session.close()
        except Late:
            session.close()
            raise unavailable(self.endpoint.name, "did not answer in time") from None
        except Broken as broken:
            session.close()
            raise unavailable(self.endpoint.name, broken.message) from broken
        except BaseException:
            session.close()
            raise
        self._dispatcher.listens(receives=receives)
        if self._dispatcher.closed:  # meanwhile
            self._wakeups.close()

    def _receives_echo(self, session: TableSession, until: float) -> bool:
        """A notification sent by another connection arrives, unless a pooler gives each statement to another one."""
        self._ask(TableRequest(*echo(self._channel)), until - boot_now())
        return arrives(session, min(ECHO_WITHIN_S, seconds_until(until) / 2))

    # The end

    async def close(self) -> None:
        with self._mutex:
            self._dispatcher.close()
        self._wakeups.close()

    def after_fork(self) -> None:
        """The connections are the parent's; `wire` has closed our copies of them."""
        self._wakeups.after_fork()
        self._reset()

    def __repr__(self) -> str:
        return self.endpoint.name


def open_driver(
    endpoint: PostgresEndpoint, world: World, clock: Clock | None, many: Many, version: int
) -> PostgresDriver:
    """The driver for that world. Nothing is opened yet."""
    if world.blocking:
        return BlockingPostgres(endpoint, clock, many, version)
    from lockfast.backends.postgres_table.io.asyncio_ import AsyncioPostgres

    return AsyncioPostgres(endpoint, clock, many, version)
