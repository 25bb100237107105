"""Sessions that fall silent: the server does not answer, and no end arrives either.

Decides: which session is given up, and when.
Leaves to the driver: how long an answer may take. Leaves to `backend`: what happens when a session ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockfast._time import boot_now
from lockfast.backends.postgres_advisory.holds import AdvisoryHold, Holds
from lockfast.backends.postgres_advisory.io.driver import Sessions
from lockfast.backends.postgres_advisory.io.session import ANSWER_WITHIN_S, AdvisorySession
from lockfast.backends.postgres_advisory.statements import PgLock


class Silence:
    def __init__(self, sessions: Sessions, holds: Holds) -> None:
        self._sessions = sessions
        self._holds = holds

    def on_silent(self, session: AdvisorySession) -> None:
        """It has not answered for too long: new claims are asked for in another session.

        What a holder relies on stays where it is, and may be renewed there until its time is over. Then, or if there
        is no such hold, the session is ended with all that is in it: this is called whenever it is used.
        """
        self._sessions.retire(session)
        if not any(hold.believed for hold in self._holds.in_session(session)):
            self._sessions.drop(session)

    def close_if_unused(self, session: AdvisorySession) -> None:
        """It may be a main session that was silent, was replaced, and answers again."""
        if session.retired and session.alive and not self._holds.in_session(session):
            self._sessions.drop(session)

    def drop_if_unanswered(self, hold: AdvisoryHold, seen: Sequence[PgLock]) -> None:
        """The server shows that its session waits no more, and nothing of that has arrived here.

        The server has ended the session, or granted the lock there. Once that has lasted, the session is ended here
        too, and the claim joins the queue again. The session of a waiter is not answered for as long as it waits.
        """
        session = hold.session
        if hold.state != "waits" or any(one.pid == session.pid and not one.granted for one in seen):
            hold.unanswered_since = 0.0
        elif not hold.unanswered_since:
            hold.unanswered_since = boot_now()
        elif boot_now() - hold.unanswered_since > ANSWER_WITHIN_S:
            hold.unanswered_since = 0.0
            self._sessions.drop(session)
