"""A process that carries out commands, one line at a time: `python -m tests.adversity.actor URL [async]`.

It reads commands as JSON lines from standard input and answers each with one JSON line, so a test knows in which state
it kills or stops the process. `Actor` is the test's end of it.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import lockfast
from lockfast._time import boot_now
from tests.servers.waiting import LIMIT_S


class Actor:
    """A process of its own, driven step by step."""

    def __init__(self, url: str, *how: str, prefix: tuple[str, ...] = ()) -> None:
        command = [*prefix, sys.executable, "-m", "tests.adversity.actor", url, *how]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.expect()["pid"]

    def send(self, command: str, **arguments: Any) -> None:
        """Say what to do next; `expect` gets the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
        self.process.stdin.flush()

    def expect(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the actor ended with {self.process.wait()}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        self.send(command, **arguments)
        return self.expect()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def end(self) -> int:
        """Let it end by itself, as a program does that comes to its last line."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(LIMIT_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None and not stream.closed:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue
        self.process.wait()


class Stage:
    """What the process remembers between two commands."""

    def __init__(self, locks: lockfast.Locks) -> None:
        self.locks = locks
        self.lease: lockfast.Lease | None = None
        self.lost = 0
        self.asked = 0  # requests for a lock
        backend = locks._logic.engine.backend
        ask = backend.acquire

        def counted(*args: Any, **options: Any) -> Any:
            self.asked += 1
            return ask(*args, **options)

        backend.acquire = counted  # type: ignore[method-assign]

    def acquire(self, name: str, ttl: float = 30, wait: float | None = None, renew: bool = True) -> dict[str, Any]:
        lock = self.locks.lock(name, ttl=ttl, wait=wait, renew=renew, on_lost=self._count_loss)
        self.lease = lock.acquire()
        return {"fence": self.lease.fence if self.lease else None, "at": boot_now(), "asked": self.asked}

    def _count_loss(self, lease: object) -> None:
        self.lost += 1

    def state(self) -> dict[str, Any]:
        assert self.lease is not None
        try:
            self.lease.check()
            checked = "held"
        except lockfast.LockError as error:
            checked = type(error).__name__
        return {"held": self.lease.held, "lost": self.lease.lost, "check": checked, "reported": self.lost}

    def release(self) -> dict[str, Any]:
        assert self.lease is not None
        at = boot_now()
        return {"released": self.lease.release(), "at": at}

    def inspect(self, name: str) -> dict[str, Any]:
        return self.locks.inspect(name).as_dict()

    def never_poll(self) -> dict[str, Any]:
        """From now on it gets what it waits for by a wake-up, or not at all."""
        import pytest  # not for every actor: it takes longer than all the rest

        from tests.polling import never_poll

        never_poll(pytest.MonkeyPatch())
        return {}

    def renew(self) -> dict[str, Any]:
        """Return once one more renewal has come through."""
        from tests.renewals import renew

        assert self.lease is not None
        renew(self.lease)
        return {}

    def fork(self) -> dict[str, Any]:
        """What the child of a fork finds in the lease of its parent."""
        assert self.lease is not None
        here, there = os.pipe()
        pid = os.fork()
        if pid == 0:
            seen: dict[str, Any] = {**self.state(), "released": self.lease.release(), "holder": self.locks.holder}
            with self.locks.lock("the child's own", ttl=60, wait=LIMIT_S) as own:
                seen["own_holder"] = self.locks.inspect("the child's own").holders[0].holder
                seen["own_fence"] = own.fence
            os.write(there, json.dumps(seen).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        answer: dict[str, Any] = json.loads(os.read(here, 65536))
        os.close(here)
        os.close(there)
        return answer

    def stall(self, seconds: float) -> dict[str, Any]:
        """Keep the interpreter to ourselves for so long: no other thread of the process runs, the keeper's neither."""
        sleep = ctypes.PyDLL(None).usleep  # unlike a function of ctypes.CDLL, it is called with the GIL held
        sleep(round(seconds * 1e6))
        return self.state()

    def fill(self) -> dict[str, Any]:
        """Fill the disk that the store lies on."""
        with open(self.folder / "ballast", "wb", buffering=0) as ballast:
            try:
                while ballast.write(b"x" * 1024):
                    continue
            except OSError as error:
                return {"full": str(error)}
        return {}

    def empty(self) -> dict[str, Any]:
        (self.folder / "ballast").unlink()
        return {}

    def shut(self) -> dict[str, Any]:
        """Close the file without releasing the lock, so that the disk can be made read-only."""
        self.locks._logic.engine.backend.before_fork()
        self.locks._logic.engine.backend.after_fork(child=False)
        return {}

    def remount(self) -> dict[str, Any]:
        subprocess.run(["mount", "-o", "remount,ro", str(self.folder)], check=True)
        return {}

    @property
    def folder(self) -> Path:
        return Path(urlsplit(sys.argv[1]).path[1:]).parent

    def increment(self, name: str, path: str, times: int) -> dict[str, Any]:
        """Read, add one and write a file, under the lock and without any care of its own."""
        lock = self.locks.lock(name)
        holds = []
        for _ in range(times):
            with lock as lease:
                start = boot_now()
                with open(path, "r+") as file:
                    number = int(file.read())
                    file.seek(0)
                    file.write(str(number + 1))
                holds.append((lease.fence, start, boot_now()))
        return {"holds": holds}


def act(stage: Stage) -> None:
    print_line = _print_line
    print_line({"pid": os.getpid()})
    for line in sys.stdin:
        message = json.loads(line)
        command: Callable[..., dict[str, Any]] = getattr(stage, message.pop("command"))
        try:
            print_line(command(**message))
        except lockfast.LockError as error:
            print_line(
                {"error": type(error).__name__, "text": str(error), "transient": getattr(error, "transient", None)}
            )


def _print_line(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


async def hold_and_forget(url: str) -> None:
    """An asyncio program that ends without a release."""
    locks = lockfast.aio.connect(url)
    lease = await locks.lock("forgotten", ttl=60).acquire()
    assert lease is not None
    _print_line({"pid": os.getpid()})
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if sys.argv[2:] == ["async"]:
        asyncio.run(hold_and_forget(sys.argv[1]))
    else:
        act(Stage(lockfast.connect(sys.argv[1])))
