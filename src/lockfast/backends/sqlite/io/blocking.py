"""SQLite: one connection, one short transaction for each verb, and errors in our own words.

Decides: how a transaction begins under contention, when the file is reopened, what SQLite's errors mean.
Leaves to the backend: what is read and written. Leaves to the asyncio driver beside this one: which thread runs a
request, and when the log is checkpointed.
"""

from __future__ import annotations

import logging
import os
import random
import sqlite3
import time
from contextlib import closing, suppress
from functools import cached_property
from pathlib import Path
from traceback import clear_frames
from typing import Any, Final
from urllib.parse import quote

from lockfast._reentry import Mutex, critical_section, outside
from lockfast._refusals import closed_driver
from lockfast._time import boot_now
from lockfast._worlds import Clock
from lockfast.backends.sqlite.io import file as sqlite_file
from lockfast.backends.sqlite.io.datagrams import DatagramSender
from lockfast.backends.sqlite.io.driver import SqliteRequest, SqliteSchema, SqliteTransaction, Step, T, WakeUp
from lockfast.backends.sqlite.io.host import HostIdentity, this_host
from lockfast.backends.wakeups import Wakeups
from lockfast.errors import BackendUnavailable

TRIES_WITHOUT_PAUSE = 12  # for a file that is in use: most transactions end before a timer could fire
CHECK_FILE_EVERY_S = 0.02  # whether the open file is still the one in the folder
LOG_LIMIT_BYTES = 4 << 20  # to which the log is truncated after a checkpoint: it seldom needs more
CHECKPOINT_EVERY_S = 0.1  # at most: a reader may keep the log from being restarted for long

_logger = logging.getLogger("lockfast")


def _only_open(_: SqliteTransaction) -> None:
    """A step that does nothing: the request opens the file, and makes the tables of a new one."""


def _write_nothing_new(t: SqliteTransaction) -> None:
    """A commit that changes nothing, and is written to the log nevertheless."""
    version = t.execute("PRAGMA user_version").fetchone()[0]
    t.execute(f"PRAGMA user_version = {version}")


OPENING: Final[SqliteRequest] = (_only_open, (), None, True)


class BlockingSqlite:
    """The one connection. Its methods run to their end in the caller's thread."""

    def __init__(
        self,
        path: Path,
        schema: SqliteSchema,
        wakeups: Wakeups,
        clock: Clock | None,
        host: HostIdentity | None = None,
        *,
        checkpoints: bool = True,
    ) -> None:
        """Without `checkpoints` hardly any commit waits for the disk, and the caller checkpoints: see `log_is_long`."""
        self.path = path
        self.wakeups = wakeups
        self._name = str(path)  # a plain string is quicker to look up than a Path
        self._schema = schema
        self._clock = clock
        self._checkpoints = checkpoints
        if host is not None:
            self.host = host
        self._sender = DatagramSender()
        self._reset()

    def _reset(self) -> None:
        self._mutex = Mutex()  # one transaction at a time on the one connection
        self._closed = False  # for good: a request in flight must not reopen the file
        self._db: sqlite3.Connection | None = None
        self._readable = False  # all tables are there
        self._writable = False  # and the counter is above all fences that can have been given out
        self._log = ""  # where SQLite keeps the log of the file that is open
        self._files: tuple[object, ...] = ()  # device and inode of the open file and its log
        self._checked_at = 0.0  # when these were last seen to be the ones in the folder
        self._log_bytes = 0  # how long the log was then
        self._checkpoint_at = 0.0  # not before that
        self._warning = ""  # logged as soon as the mutex is free

    async def transact(self, request: SqliteRequest, within: float) -> tuple[Any, list[WakeUp]]:
        return self.run(request, boot_now() + within)

    def run(self, request: SqliteRequest, until: float) -> tuple[Any, list[WakeUp]]:
        """Retry while another process has the file."""
        tries = 0
        while True:
            answer = self.attempt(request, until)
            if answer is not None:
                return answer
            tries += 1
            _pause(tries)  # the mutex is free meanwhile

    def attempt(self, request: SqliteRequest, until: float) -> tuple[Any, list[WakeUp]] | None:
        """Try once, and wait for nothing but the disk. None if another process has the file before `until`."""
        try:
            # Not `acquire(timeout=…)`: only `with` cannot be interrupted between taking the mutex and guarding it.
            with critical_section(self._mutex):
                answer, wakeups = self._answer(*request)
        except sqlite3.Error as error:
            if _is_busy(error) and boot_now() < until:
                return None
            raise self._translate(error) from error
        except OSError as error:
            raise self._unavailable(f"cannot be used: {_reason(error)}", transient=False) from error
        if self._warning:
            text, self._warning = self._warning, ""
            with outside():
                _logger.warning(text)
        return answer, [wake for wake in wakeups if not self._deliver(wake)] if wakeups else wakeups

    def _answer(
        self, step: Step[T], args: tuple[Any, ...], quick: Step[T | None] | None, reads: bool
    ) -> tuple[T, list[WakeUp]]:
        db = self._open()
        try:
            if not self._writable and not (reads and self._readable):
                self._transact(db, self._schema.prepare, ())
                self._readable = self._writable = True
            if reads:
                return self._transact(db, step, args, "BEGIN")
            if quick is not None:
                done = self._try(db, quick, args)
                if done is not None:
                    return done, []
            return self._transact(db, step, args)
        except BaseException as error:
            # Code that keeps the error keeps its frames, and with them a query that was not read to its end. That query
            # would keep the connection at an old state of the file, from which nothing can be written.
            clear_frames(error.__traceback__)
            raise

    def _try(self, db: sqlite3.Connection, quick: Step[T | None], args: tuple[Any, ...]) -> T | None:
        try:
            return quick(SqliteTransaction(db.execute, self.host, self.wakeups), *args)
        except sqlite3.OperationalError as error:
            if _is_busy(error):
                return None
            raise

    def _transact(
        self, db: sqlite3.Connection, step: Step[T], args: tuple[Any, ...], begin: str = "BEGIN IMMEDIATE"
    ) -> tuple[T, list[WakeUp]]:
        try:
            return self._transact_once(db, step, args, begin)
        except sqlite3.OperationalError as error:
            if not _is_undecodable(error):
                raise
            db.text_factory = _decoded  # for the rest of this connection, at the cost of a call for each text
        return self._transact_once(db, step, args, begin)

    def _transact_once(
        self, db: sqlite3.Connection, step: Step[T], args: tuple[Any, ...], begin: str
    ) -> tuple[T, list[WakeUp]]:
        execute = db.execute
        try:
            execute(begin)
            transaction = SqliteTransaction(execute, self.host, self.wakeups)
            answer = step(transaction, *args)
            execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                execute("ROLLBACK")
            raise
        return answer, transaction.wakeups

    def _deliver(self, wake: WakeUp) -> bool:
        if wake.address == self.wakeups.address:
            self.wakeups.wake(wake.text)
            return True
        return self._sender.send(wake.address, wake.text)

    @property
    def url(self) -> str:
        return f"sqlite:///{quote(self._name)}"

    # Opening

    @cached_property
    def host(self) -> HostIdentity:
        host = this_host()
        return host if self._clock is None else host._replace(now=self._clock.now)

    def _open(self) -> sqlite3.Connection:
        """The connection, reopened if the file was deleted or replaced."""
        db, now = self._db, boot_now()
        if db is not None:
            if self._is_current(now):
                if db.in_transaction:  # left by a request that was interrupted more than once
                    db.rollback()
                return db
            db.close()
            self._db = None
        if self._closed:
            raise self.closed_error()
        file = sqlite_file.follow(self.path)
        why_not = sqlite_file.refusal(self.path, file)
        if why_not:
            raise self._unavailable(why_not, transient=False)
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        sqlite_file.make(file)
        self._refuse_foreign(file)
        db = sqlite3.connect(file, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            self._set_up(db)
            self._log = f"{file}-wal"
            self._files = self._identify()
            self._checked_at = now
        except BaseException:
            db.close()
            raise
        self._db = db
        self._warning = sqlite_file.warning(file)
        return db

    def is_open(self, now: float) -> bool:
        """Whether a request finds the file open. Else the next request opens it, or raises why it cannot."""
        with critical_section(self._mutex), suppress(OSError):
            return self._db is not None and self._is_current(now)
        return False

    def _is_current(self, now: float) -> bool:
        return now - self._checked_at < CHECK_FILE_EVERY_S or self._is_same()

    def _is_same(self) -> bool:
        try:
            same = self._identify() == self._files
        except FileNotFoundError:
            return False  # deleted: the next process to open it makes a new one, and so do we
        self._checked_at = boot_now()
        return same

    def _identify(self) -> tuple[object, ...]:
        file, log = os.stat(self._name), os.stat(self._log)
        self._log_bytes = log.st_size
        return file.st_dev, file.st_ino, log.st_ino

    def _refuse_foreign(self, file: Path) -> None:
        """The file of another program stays as it is: nothing is written, created beside it or rolled back.

        An immutable connection does not see everything, such as the log. So only a refusal counts here.
        """
        with suppress(sqlite3.Error):
            uri = f"file:{quote(os.fsencode(file))}?immutable=1"
            with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
                self._transact(db, self._schema.is_current, (), "BEGIN")

    def _set_up(self, db: sqlite3.Connection) -> None:
        mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise self._unavailable("is on a file system where SQLite has no write-ahead log", transient=False)
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute(f"PRAGMA journal_size_limit = {LOG_LIMIT_BYTES}")
        if not self._checkpoints:
            db.execute("PRAGMA wal_autocheckpoint = 0")
        self._readable, _ = self._transact(db, self._schema.is_current, (), "BEGIN")
        self._writable = False

    def _translate(self, error: sqlite3.Error) -> BackendUnavailable:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        folder = sqlite_file.follow(self.path).parent
        if code == sqlite3.SQLITE_CANTOPEN and not os.access(folder, os.W_OK):
            code = sqlite3.SQLITE_READONLY  # SQLite does not say which
        text, transient = _ERRORS.get(code, (f"failed: {error}", False))
        return self._unavailable(text, transient=transient)

    def closed_error(self) -> BackendUnavailable:
        return closed_driver(f"the lock store {str(self.path)!r}")

    def _unavailable(self, what: str, *, transient: bool) -> BackendUnavailable:
        return BackendUnavailable(f"the lock store {str(self.path)!r} {what}", transient=transient)

    # The log

    def log_is_long(self, now: float) -> bool:
        """Whether a checkpoint is due: the log is longer than a checkpoint leaves it.

        So it has grown since it was last restarted, by any process. Call this after a request, which may have restarted
        and truncated it.
        """
        if self._log_bytes <= LOG_LIMIT_BYTES or now < self._checkpoint_at:
            return False
        with suppress(OSError):  # deleted: the next check of the file notices that
            self._log_bytes = os.stat(self._log).st_size
        return self._log_bytes > LOG_LIMIT_BYTES

    def checkpoint(self) -> None:
        """Copy the log into the file, as far as no reader needs it, and restart it.

        Waits for the disk, and delays no other process. If it fails, the log goes on growing.
        """
        with critical_section(self._mutex):
            if self._db is not None:
                with suppress(sqlite3.Error):
                    self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                    # This restarts the log: this commit waits for the disk instead of the next request.
                    self._transact(self._db, _write_nothing_new, ())
            self._checkpoint_at = boot_now() + CHECKPOINT_EVERY_S

    # Ending

    async def close(self) -> None:
        self.shut()

    def shut(self) -> None:
        with self._mutex:
            self._closed = True
            if self._db is not None:
                self._db.close()
                self._db = None
        self.wakeups.close()
        self._sender.close()

    def before_fork(self) -> None:
        """A SQLite connection must not be carried through a fork, so it is closed, and stays closed during the fork."""
        if self._mutex.acquire(timeout=1.0) and self._db is not None:
            self._db.close()
            self._db = None

    def after_fork(self, *, child: bool) -> None:
        with suppress(RuntimeError):  # `before_fork` did not get it
            self._mutex.release()  # in the child too: as long as it is held, this thread counts as inside a request
        if child:
            self._reset()
            self.wakeups.after_fork()
            self._sender = DatagramSender()

    def __repr__(self) -> str:
        return f"sqlite:///{self.path}"


def _pause(tries: int) -> None:
    """Before the next try: short, random, and no longer than the last pause.

    SQLite's own busy handler sleeps longer after each failure, which lets newcomers overtake and starves old requests.
    """
    if tries <= TRIES_WITHOUT_PAUSE:
        os.sched_yield()
    else:
        time.sleep(random.uniform(0.00002, 0.0004))


def _reason(error: OSError) -> str:
    """In words, without the error number and the path, which the message has already."""
    return error.strerror.lower() if error.strerror else str(error)


def _is_undecodable(error: sqlite3.Error) -> bool:
    """A text in the file is not UTF-8. Python's module raises it, so there is no error code of SQLite."""
    return "decode to UTF-8" in str(error)


def _decoded(text: bytes) -> str:
    return text.decode(errors="replace")


def _is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


_ERRORS = {
    sqlite3.SQLITE_BUSY: ("stayed locked by another process", True),
    sqlite3.SQLITE_LOCKED: ("stayed locked by another process", True),
    sqlite3.SQLITE_READONLY: ("is read-only; locks need a file and a folder that can be written", False),
    sqlite3.SQLITE_FULL: ("cannot be written: the disk is full", False),
    sqlite3.SQLITE_IOERR: ("cannot be read or written: the disk is full or failing", False),
    sqlite3.SQLITE_CORRUPT: ("is corrupt; move it away, and a new one is made", False),
    sqlite3.SQLITE_NOTADB: ("is not an SQLite file, or is corrupt; move it away, and a new one is made", False),
    sqlite3.SQLITE_CANTOPEN: ("cannot be opened; check that its folder exists and can be written", False),
}
