"""What a thread that asked a quorum leaves behind: answers that are still to come, servers that are gone.

Decides: when a server that is gone is connected to again, and what it is told then. A thread of its own sees to it, as
long as there is something to see to, so that a server which is gone costs whoever asks its time but once.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from lockfast._reentry import outside, start_thread
from lockfast._time import boot_now
from lockfast.backends.redlock.io.connections import BlockingNodeConnection
from lockfast.backends.redlock.io.fanout import Verb
from lockfast.backends.redlock.io.members import Member
from lockfast.errors import BackendUnavailable

_RARE: Final = 60.0  # seconds without a question after which nobody looks for servers that are gone
_CLEAN_UPS: Final = 1000  # that are kept for a server that is gone


class Stragglers:
    def __init__(
        self,
        members: Sequence[Member],
        node_timeout: float,
        mark_in_doubt: Callable[[int, str], None],
        run_verb: Callable[[BlockingNodeConnection, Verb], bool],
    ) -> None:
        self._members = members
        self._patience = max(1.0, node_timeout)
        self._mark_in_doubt = mark_in_doubt
        self._run_verb = run_verb  # lets one verb run on that connection; False if it is gone again
        self._mutex = threading.Lock()
        self._worker: object = None  # there is one while a thread does this
        self._spare: list[list[BlockingNodeConnection]] = [[] for _ in members]
        self._straggling: list[BlockingNodeConnection] = []
        self._clean_ups: list[dict[str, tuple[Callable[[], Verb], float]]] = [{} for _ in members]
        self.asked_at = 0.0  # when somebody last wanted to know anything
        self._closed = False

    def line_to(self, node: int, within: float) -> BlockingNodeConnection | None:
        """One that there is, or a new one, unless that is known to take long: then it is seen to in the background."""
        with suppress(IndexError):
            return self._spare[node].pop()
        member = self._members[node]
        if not member.absent:
            try:
                return BlockingNodeConnection(node, member, within)
            except BackendUnavailable:
                member.failed()
        self.see_to()
        return None

    def leave(self, line: BlockingNodeConnection) -> None:
        """Its answer is still to come."""
        self._members[line.node].failed()
        self._straggling.append(line)

    def later(self, node: int, claim: str, ask: Callable[[], Verb], until: float) -> None:
        left = self._clean_ups[node]
        with self._mutex:
            if len(left) >= _CLEAN_UPS:
                del left[next(iter(left))]
            left[claim] = ask, until
        self.see_to()

    def see_to(self) -> None:
        with self._mutex:
            if self._worker is not None or self._closed:
                return
            worker = self._worker = object()
            try:
                start_thread("lockfast-nodes", self._work, worker)
            except BaseException as error:
                self._worker = None  # should the thread run all the same, it finds that it is not wanted
                if not isinstance(error, RuntimeError):  # the system has no thread left; tried again
                    raise

    def _work(self, worker: object) -> None:
        with self._mutex:
            if self._worker is not worker:
                return
        try:
            while not self._is_done():
                self._hear_stragglers()
                for node, member in enumerate(self._members):
                    if (member.absent or self._clean_ups[node]) and member.is_due():
                        self._reach(node, member)
                if not self._straggling:
                    with outside():
                        time.sleep(0.02)
        except BaseException:
            self._worker = None  # whoever has something to see to starts another
            raise

    def _is_done(self) -> bool:
        with self._mutex:
            idle = boot_now() - self.asked_at > _RARE
            missing = any(member.absent for member in self._members) or any(self._clean_ups)
            if not self._closed and (self._straggling or (missing and not idle)):
                return False
            self._worker = None
            return True

    def _hear_stragglers(self) -> None:
        straggling = list(self._straggling)
        poll = select.poll()
        for line in straggling:
            poll.register(line.number, select.POLLIN)
        ready = {number for number, _ in poll.poll(10)} if straggling else set()
        for line in straggling:
            alive = line.number not in ready or line.hear()
            late = bool(line.owed) and line.owed[0].since + self._patience < boot_now()
            if alive and line.owed and not late:
                continue
            self._straggling.remove(line)
            if alive and not line.owed:
                self._members[line.node].answered()
                self._spare[line.node].append(line)
            else:
                self._members[line.node].failed()
                line.end("did not answer in time", self._mark_in_doubt)

    def _reach(self, node: int, member: Member) -> None:
        try:
            line = (
                self._spare[node].pop() if self._spare[node] else BlockingNodeConnection(node, member, self._patience)
            )
        except BackendUnavailable:
            member.failed()
            return
        except Exception:
            member.failed()
            raise
        member.answered()
        if self._clean_up(line):
            self._spare[node].append(line)
        if self._closed:
            line.close()

    def _clean_up(self, line: BlockingNodeConnection) -> bool:
        """Say what could not be said while it was gone; False if it is gone again."""
        left = self._clean_ups[line.node]
        while True:
            with self._mutex:
                if not left:
                    return True
                claim, (ask, until) = left.popitem()
            if until > boot_now() and not self._run_verb(line, ask()):
                with self._mutex:
                    left.setdefault(claim, (ask, until))
                return False

    def close(self) -> None:
        self._closed = True
        for spare in self._spare:
            while spare:
                spare.pop().close()

    def abandon(self) -> None:
        """Of a parent: close only our copies."""
        for line in [*(line for spare in self._spare for line in spare), *self._straggling]:
            line.socket.close()
