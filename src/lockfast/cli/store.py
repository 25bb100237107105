"""Where a command finds its locks, and what it prints while they cannot be reached.

Decides: which URL is meant by the options that all commands share, where the one store of a host is, and whether this
user can use it. Leaves to `_connect`: what a URL means.

The store of the host is a file in a folder that root has made for a group. The folder is never made here: a store that
only its first user can open would exclude no other user, and one that every user can write could be replaced by any.
"""

from __future__ import annotations

import os
import stat
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

from lockfast._connect import default_url
from lockfast.backends.sqlite.open import file_of
from lockfast.cli import exits
from lockfast.cli.options import complain
from lockfast.engine.outage import REPORT_AFTER_S
from lockfast.observe.events import Event
from lockfast.sync import Locks


def add_store_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("where the locks are")
    where = group.add_mutually_exclusive_group()
    where.add_argument(
        "--url", help="default: $LOCKFAST_URL, else SQLite in your own state folder, which other users do not share"
    )
    where.add_argument("--system", action="store_true", help="the one store of this host, for the users of a group")
    group.add_argument("--namespace", default="lockfast", help="keeps the names of two applications apart")


def url_of(args: Namespace) -> str:
    """The URL that the options mean. Raises CommandError if it is the store of the host and this user cannot use it."""
    if args.system:
        url = system_url()
        file = file_of(url)
        if file is not None:
            _must_be_usable(file)
        return url
    return default_url() if args.url is None else str(args.url)


def url_of_existing(args: Namespace) -> str:
    """`url_of` for a command that only reads: raises CommandError if there is no such file, and none is made."""
    url = url_of(args)
    file = file_of(url)
    try:
        if file is not None:
            file.stat()
    except (FileNotFoundError, NotADirectoryError):
        text = f"there is no lock store {str(file)!r}: no lock was ever acquired there, or its name is mistyped"
        assert file is not None
        raise _NoStore(text, _why_none_is_made(file)) from None
    except OSError:  # it may be there; opening it reports what is wrong
        return url
    return url


def url_to_inspect(args: Namespace) -> str:
    """`url_of_existing`, or that of an empty store in place of a default one that was never used but can be: no user
    wrote the name of that, so it is not mistyped."""
    try:
        return url_of_existing(args)
    except _NoStore as none:
        chosen = os.environ.get("LOCKFAST_SYSTEM_URL" if args.system else "LOCKFAST_URL")
        if args.url is not None or chosen or none.why:
            raise
        return "memory://never-used"


class _NoStore(exits.CommandError):
    """There is no such file."""

    def __init__(self, text: str, why: str) -> None:
        super().__init__(exits.UNAVAILABLE, f"{text}; {why}" if why else text)
        self.why = why  # none can be made either


def _why_none_is_made(file: Path) -> str:
    """The reason why no lock can be acquired there; empty if there is none."""
    there = next(folder for folder in file.parents if os.path.lexists(folder))
    if not there.is_dir():
        return f"{there} is no folder"
    return "" if _may_write(there) else _belongs_to_others(there)


def system_url() -> str:
    """What `--system` means."""
    folder = "/Library/Application%20Support" if sys.platform == "darwin" else "/var/lib"
    return os.environ.get("LOCKFAST_SYSTEM_URL") or f"sqlite:///{folder}/lockfast/locks.db"


def report_outages(locks: Locks) -> None:
    """Print to stderr when the store cannot be reached, and when it can be used again."""
    locks.events.listen(_report)


@contextmanager
def reports_silence() -> Iterator[None]:
    """Print to stderr that an answer takes longer than a second, where no `Locks` would."""
    timer = Timer(REPORT_AFTER_S, complain, (f"no answer for {REPORT_AFTER_S:g}s; waiting for it",))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _report(event: Event) -> None:
    if event.kind in ("unreachable", "reachable"):
        complain(event.detail)


# The store of the host


def _must_be_usable(file: Path) -> None:
    from shlex import quote  # here: most commands do not need it

    folder = quote(str(file.parent))
    share = f"root can make it for the members of a group: install -d -m 2770 -g GROUP {folder}"
    try:
        mode = file.parent.stat().st_mode
    except FileNotFoundError:
        raise exits.CommandError(exits.UNAVAILABLE, f"this host has no store for all users yet; {share}") from None
    if mode & stat.S_IWOTH:
        raise exits.CommandError(
            exits.UNAVAILABLE, f"any user could put another file into {folder}: {share} && chmod o-rwx {folder}"
        )
    if not _may_write(file.parent):
        how = f"root can add a user: usermod -aG {_group(file.parent)} {_user()}" if mode & stat.S_IWGRP else share
        raise _not_yours(file.parent, how)
    for one in (file, Path(f"{file}-wal"), Path(f"{file}-shm")):
        if one.exists() and not os.access(one, os.R_OK | os.W_OK, effective_ids=_EFFECTIVE):
            files = f"{quote(str(file))}*"
            raise _not_yours(one, f"its owner can share it: chgrp {_group(file.parent)} {files} && chmod g+rw {files}")


_EFFECTIVE = os.access in os.supports_effective_ids


def _may_write(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK, effective_ids=_EFFECTIVE)


def _not_yours(path: Path, how: str) -> exits.CommandError:
    return exits.CommandError(exits.UNAVAILABLE, f"{_belongs_to_others(path)}; {how}")


def _belongs_to_others(path: Path) -> str:
    found = path.stat()
    whose = f"it belongs to {_name_of(found.st_uid)}:{_group(path)} with mode {stat.S_IMODE(found.st_mode):o}"
    return f"user {_user()} may not write {path}: {whose}"


def _group(path: Path) -> str:
    try:
        return path.group()
    except KeyError:  # a number without a name
        return str(path.stat().st_gid)


def _user() -> str:
    return _name_of(os.geteuid())


def _name_of(uid: int) -> str:
    import pwd  # here: most commands do not need it

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
