"""What a service and the systemd that started it exchange, in systemd's own protocols and without its library.

See sd_notify(3), sd_watchdog_enabled(3) and sd_listen_fds(3). The program supplies its status. In a process that
systemd did not start, all of this does nothing.
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
"""The first descriptor that systemd passes; see sd_listen_fds(3)."""

NOTIFY_WITHIN_S = 1.0
"""How long to wait for a systemd whose queue is full: a notification is worth a wait, but the event loop stands still
meanwhile."""

LOOK_EVERY_S = 1.0
"""The interval of looks at the status: `systemctl status` shows what was true a second ago."""

STATUS_CHARACTERS_MAX = 500
"""The length of a status: a line to be read at a glance. systemd would take much more."""

PASSED = ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")
WATCHED = ("WATCHDOG_USEC", "WATCHDOG_PID")
NOTIFIED = "NOTIFY_SOCKET"


class SystemdNotifier:
    """The systemd that started this process, or none."""

    def __init__(self, environ: MutableMapping[str, str], pid: int) -> None:
        """Take systemd's variables out of `environ`: no child of this process, `pid`, may act in its place."""
        taken = {name: environ.pop(name, "") for name in (NOTIFIED, *WATCHED, *PASSED)}
        name = taken[NOTIFIED]
        # A name that begins with @ is in the abstract namespace, which the kernel writes with a null byte.
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        self._unreachable = False
        """A notification failed; that is logged once."""
        self._passed = _number(taken, "LISTEN_FDS") if _number(taken, "LISTEN_PID") == pid else 0
        self.watchdog_s: float | None = None
        """The seconds without a sign of life after which systemd kills this process; None: never."""
        if taken["WATCHDOG_PID"] in {"", str(pid)} and (microseconds := _number(taken, "WATCHDOG_USEC")):
            self.watchdog_s = microseconds / 1_000_000

    def notify(self, *assignments: str) -> None:
        """Send systemd assignments, such as `READY=1`, all in one message, which it takes in as a whole."""
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
        """Send signs of life until cancelled, twice in the time that the watchdog allows.

        They show that the event loop turns.
        """
        while self.watchdog_s is not None:
            self.notify("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_s / 2)

    async def keep_informed(self, status: Callable[[], str]) -> None:
        """Send systemd the result of `status` whenever that has changed, until cancelled."""
        sent = ""
        while self._address:
            if (now := status()) != sent:
                sent = now
                self.notify(status_of(now))
            await asyncio.sleep(LOOK_EVERY_S)

    def take_sockets(self) -> list[socket.socket]:
        """Return the sockets that systemd passed, by its socket unit; this process alone has them.

        A second call returns none. Raises `OSError` if one of them is no socket.
        """
        first, count, self._passed = FIRST_PASSED, self._passed, 0
        for descriptor in range(first, first + count):
            os.set_inheritable(descriptor, False)
        return [socket.socket(fileno=descriptor) for descriptor in range(first, first + count)]


def status_of(text: str) -> str:
    """Return the assignment for a text that `systemctl status` shows, in one line."""
    return f"STATUS={' '.join(text.split())[:STATUS_CHARACTERS_MAX]}"


def _number(values: Mapping[str, str], name: str) -> int:
    """Read a number that systemd wrote; any other text is not of systemd, and counts as 0."""
    with suppress(ValueError):
        return max(0, int(values[name]))
    return 0
