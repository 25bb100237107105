"""How advisory locks are renewed: one round trip for each session, on all sessions at once.

Decides: what is sent, and what an answer or its absence means for the holds of a session.
Leaves to the driver: to send everything before it reads the first answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from lockfast._model import Renewal
from lockfast.backends.postgres.io.refusals import unavailable
from lockfast.backends.postgres_advisory.holds import AdvisoryHold, Holds
from lockfast.backends.postgres_advisory.io.session import AdvisorySession, PendingStatement, keeping, kept_for
from lockfast.errors import BackendUnavailable


class PingsSessions(Protocol):
    """The sessions, as the loop or a thread uses them."""

    async def execute_each(self, statements: Mapping[AdvisorySession, PendingStatement], within: float) -> None: ...
    def lives(self, session: AdvisorySession) -> bool: ...


async def renew(sessions: PingsSessions, holds: Holds, batch: Sequence[Renewal], within: float) -> list[bool | None]:
    """For each: whether it is held, None if that is not known. Raises BackendUnavailable if nothing is known of any."""
    found = [_held(holds, renewal) for renewal in batch]
    longest: dict[AdvisorySession, float] = {}
    for hold, renewal in zip(found, batch, strict=True):
        if hold is not None:
            longest[hold.session] = max(renewal.ttl, longest.get(hold.session, 0.0))
    statements = {session: _renewal(session, ttl) for session, ttl in longest.items()}
    await sessions.execute_each(statements, within)
    outcomes = {session: _outcome(sessions, session, statement) for session, statement in statements.items()}
    answers = [outcomes.get(hold.session, False) if hold is not None else False for hold in found]
    errors = [answer for answer in answers if isinstance(answer, BackendUnavailable)]
    if errors and len(errors) == len(answers):
        raise errors[0]
    for hold, renewal, answer in zip(found, batch, answers, strict=True):
        if hold is not None and answer is True:
            hold.renewed(renewal.ttl)
    return [None if isinstance(answer, BackendUnavailable) else answer for answer in answers]


def _held(holds: Holds, renewal: Renewal) -> AdvisoryHold | None:
    hold = holds.by_id.get(renewal.claim.id)
    return hold if hold is not None and hold.state == "held" and hold.fence == renewal.fence else None


def _renewal(session: AdvisorySession, ttl: float) -> PendingStatement:
    """The round trip that renews all holds of a session, of which `ttl` is the longest."""
    statement = keep_for(session, ttl) if ttl > session.longest_ttl else PendingStatement(b"lf_ping")
    statement.urgent = True
    return statement


def _outcome(
    sessions: PingsSessions, session: AdvisorySession, statement: PendingStatement
) -> bool | BackendUnavailable:
    if not sessions.lives(session):
        return False
    if statement.finished and statement.error is None:
        return True
    return statement.error or unavailable(session.name, "did not answer in time")


def keep_for(session: AdvisorySession, ttl: float) -> PendingStatement:
    """The statement that makes the server keep the session long enough for that ttl."""
    settings = keeping(seconds := kept_for(ttl))

    def kept(statement: PendingStatement) -> None:
        if statement.error is None:
            session.keeps(max(seconds, session.kept))

    return PendingStatement(b"lf_keep", (settings["tcp_user_timeout"], settings["tcp_keepalives_interval"]), kept)
