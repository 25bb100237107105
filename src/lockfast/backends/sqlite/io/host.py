"""Which host this is, since when it runs, and its boot clock.

Decides: what tells one boot of one machine from every other, and how to read its clock so that all processes of the
host agree, in whatever container or time namespace they run.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from lockfast._time import boot_now
from lockfast.errors import Unsupported


class HostIdentity(NamedTuple):
    machine: str  # the same after a reboot; confidential, see `fingerprint`
    boot: str  # another after a reboot
    booted_at: float  # wall clock
    now: Callable[[], float]  # seconds since boot, the same in every process of the host


def this_host() -> HostIdentity:
    """Raises Unsupported on a platform that cannot tell one boot from the next."""
    now = _host_clock()
    return HostIdentity(_machine(), _boot_id(), time.time() - now(), now)


def fingerprint(machine: str) -> str:
    """What may be stored of a machine's id: systemd asks not to show the id itself, which other programs build on."""
    from hashlib import sha256  # takes long to import, and is needed once for a file and a boot

    return "sha256:" + sha256(f"lockfast {machine}".encode()).hexdigest()[:32]


def _machine() -> str:
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        text = _read(path)
        if text:
            return text
    return os.uname().nodename


def _boot_id() -> str:
    text = _read("/proc/sys/kernel/random/boot_id")
    if not text and sys.platform == "darwin":
        import subprocess  # takes long to import, and Linux does not need it

        command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        text = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    if not text:
        raise Unsupported("SQLite locks need a boot id to tell a reboot, and this platform shows none")
    return text


def _host_clock() -> Callable[[], float]:
    """The boot clock, less what a time namespace has added to it."""
    for line in _read("/proc/self/timens_offsets").splitlines():
        clock, seconds, nanoseconds = line.split()
        offset = int(seconds) + int(nanoseconds) / 1e9
        if clock == "boottime" and offset:
            return lambda: boot_now() - offset
    return boot_now


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
