"""The identity of this host, its boot and its boot clock.

Decides: what distinguishes one boot of one machine from every other, and how to read its clock so that all processes of
the host agree, in any container or time namespace.
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
    boot: str  # differs after a reboot
    booted_at: float  # wall clock
    now: Callable[[], float]  # seconds since boot, the same in every process of the host


def this_host() -> HostIdentity:
    """Raises Unsupported on a platform without a boot id."""
    now = _host_clock()
    return HostIdentity(_machine(), _boot_id(), time.time() - now(), now)


def fingerprint(machine: str) -> str:
    """What is stored of a machine id: systemd asks programs to keep the id itself confidential."""
    from hashlib import sha256  # slow to import, and needed once for a file and a boot

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
        import subprocess  # slow to import, and not needed on Linux

        command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        text = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    if not text:
        raise Unsupported("SQLite locks need a boot id to notice a reboot, and this platform has none")
    return text


def _host_clock() -> Callable[[], float]:
    """The boot clock, without the offset of a time namespace."""
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
