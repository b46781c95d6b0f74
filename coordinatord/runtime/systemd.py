"""Implements systemd's protocols for services: notifications, the watchdog and passed sockets.

See sd_notify(3), sd_watchdog_enabled(3) and sd_listen_fds(3). In a process that systemd has not started, nothing here
has an effect.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress

from coordinatord.runtime.logs import fields

log = logging.getLogger(__name__)

FIRST_PASSED = 3
"""The first descriptor that systemd passes; the others follow it."""

NOTIFY_WITHIN_S = 1.0
"""How long to wait if systemd's queue is full. The wait blocks the event loop."""

STATUS_EVERY_S = 1.0
"""The interval of status updates, and so the longest delay of `systemctl status`."""

STATUS_CHARACTERS_MAX = 500
"""The limit of a status line for people; systemd would accept much more."""

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")
"""The environment variables of the three protocols."""


class SystemdNotifier:
    """The connection to the systemd that has started this process, if any."""

    def __init__(self, environ: MutableMapping[str, str], pid: int) -> None:
        """Read systemd's variables, and remove them from `environ`, since they are only for this process, `pid`."""
        taken = {name: environ.pop(name, "") for name in VARIABLES}
        name = taken["NOTIFY_SOCKET"]
        # A name that begins with @ is in the abstract namespace, where the kernel has a null byte instead.
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        self._unreachable = False
        """Whether a notification has failed, which is logged once."""
        self._passed = _number(taken, "LISTEN_FDS") if _number(taken, "LISTEN_PID") == pid else 0
        self.watchdog_s: float | None = None
        """The seconds without a sign of life until systemd kills this process; None: never."""
        if taken["WATCHDOG_PID"] in {"", str(pid)} and (microseconds := _number(taken, "WATCHDOG_USEC")):
            self.watchdog_s = microseconds / 1_000_000

    def notify(self, *assignments: str) -> None:
        """Send systemd assignments, such as `READY=1`, in one message."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
                connection.settimeout(NOTIFY_WITHIN_S)
                connection.sendto("\n".join(assignments).encode(errors="replace"), self._address)
        except OSError as error:
            if not self._unreachable:
                names = fields("systemd_unreachable")
                log.warning("cannot send %s to systemd at NOTIFY_SOCKET: %s", assignments[0], error, extra=names)
            self._unreachable = True

    async def keep_alive(self) -> None:
        """Send two signs of life per timeout of the watchdog, until cancelled: they show that the event loop runs."""
        while self.watchdog_s is not None:
            self.notify("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_s / 2)

    async def report_status(self, status: Callable[[], str]) -> None:
        """Send systemd the result of `status` whenever it has changed, until cancelled."""
        sent = ""
        while self._address:
            if (now := status()) != sent:
                sent = now
                self.notify(status_of(now))
            await asyncio.sleep(STATUS_EVERY_S)

    def take_sockets(self) -> list[socket.socket]:
        """Return the sockets that systemd has passed, only at the first call. Raises `OSError` if one is no socket."""
        first, count, self._passed = FIRST_PASSED, self._passed, 0
        for descriptor in range(first, first + count):
            os.set_inheritable(descriptor, False)
        return [socket.socket(fileno=descriptor) for descriptor in range(first, first + count)]


def status_of(text: str) -> str:
    """Return the assignment for `notify` that shows a text in `systemctl status`."""
    return f"STATUS={' '.join(text.split())[:STATUS_CHARACTERS_MAX]}"


def extension_of(seconds: float) -> str:
    """Return the assignment for `notify` that lets a start or stop take at least so many seconds from now on."""
    return f"EXTEND_TIMEOUT_USEC={seconds * 1_000_000:.0f}"


def _number(values: Mapping[str, str], name: str) -> int:
    """Parse a number from systemd; any other text counts as 0."""
    with suppress(ValueError):
        return max(0, int(values[name]))
    return 0
