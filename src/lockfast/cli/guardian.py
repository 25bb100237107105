"""A dead man's switch: ends the command's group when `lockfast run` itself no longer can.

Decides: that a command never runs on past its lease because its supervisor was killed (then at once) or stopped
(then when the agreed moment comes without news).
Leaves to the supervisor: everything while that runs; it acts first, and renews the plan.

The guardian is a fork without exec, in a session of its own, that holds nothing but one pipe. Its other end is only
in the supervisor, so the kernel itself reports when that is gone.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from lockfast._time import boot_now
from lockfast.cli.group import ask_to_end, lives, signal_group

NEVER: Final = float("inf")
_MAX_SLEEP_S = 0.5  # poll() does not count a suspended machine's time, so nothing sleeps longer than this
_POLL_EVERY_S = 0.03  # while the group is ending


class EndPlan(NamedTuple):
    """What is to happen without further news, on the boot clock."""

    term_at: float = NEVER
    kill_at: float = NEVER

    @property
    def armed(self) -> bool:
        return self.kill_at < NEVER


_PLAN = struct.Struct("!dd")


class Guardian:
    """The supervisor's end of the pipe."""

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid = pid
        self._pipe = pipe

    def agree(self, plan: EndPlan) -> None:
        """From now on this plan holds. From any thread; never waits."""
        try:
            os.write(self._pipe, _PLAN.pack(*plan))
        except OSError:
            return  # it was killed, or is stopped: then there is no second net, but the first is whole

    def dismiss(self) -> None:
        """The group needs no guardian any more. Afterwards it is gone, whatever state it was in."""
        self.agree(EndPlan())
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._pipe)


def fork(group: int, kill_after: float) -> Guardian:
    """Start guarding the group, as soon as a plan is agreed. Before any thread, connection or handler is there."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            pipe = _withdraw(read)
            _watch(pipe, group, kill_after)
        finally:
            os._exit(0)
    os.close(read)
    os.set_blocking(write, False)
    return Guardian(pid, write)


def _withdraw(pipe: int) -> int:
    """Away from the terminal, its signals and every file of the caller: a reader of our output must see its end."""
    os.setsid()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        if fd != pipe:
            os.dup2(nothing, fd)
    if pipe != 3:
        os.dup2(pipe, 3)
    for fd in _open_files():
        if fd > 3:
            with contextlib.suppress(OSError):
                os.close(fd)
    os.chdir("/")  # hold up no unmounting
    return 3


def _open_files() -> Iterable[int]:
    """Asked for rather than tried one by one: the highest possible number can be a billion."""
    try:
        return [int(name) for name in os.listdir("/dev/fd")]
    except OSError:
        return range(1024)


def _watch(pipe: int, group: int, kill_after: float) -> None:
    plan = EndPlan()
    while True:
        ready, _, _ = select.select([pipe], [], [], _sleep(plan))
        if ready:  # news first, however late it is read
            message = os.read(pipe, _PLAN.size)
            if len(message) < _PLAN.size:  # the supervisor is gone
                if plan.armed:
                    _end(group, min(plan.kill_at, boot_now() + kill_after))
                return
            plan = EndPlan(*_PLAN.unpack(message))
        elif boot_now() >= plan.kill_at:
            signal_group(group, signal.SIGKILL)
            plan = EndPlan()
        elif boot_now() >= plan.term_at:
            ask_to_end(group)
            plan = plan._replace(term_at=NEVER)


def _sleep(plan: EndPlan) -> float | None:
    if not plan.armed:
        return None
    return min(max(0.0, min(plan) - boot_now()), _MAX_SLEEP_S)


def _end(group: int, kill_at: float) -> None:
    """TERM, and KILL to what is left when the grace is over."""
    there = ask_to_end(group)
    while there and boot_now() < kill_at:
        select.select([], [], [], min(_POLL_EVERY_S, max(0.0, kill_at - boot_now())))
        there = lives(group)
    if there:
        signal_group(group, signal.SIGKILL)
