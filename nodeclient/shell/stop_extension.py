"""Asks systemd for more time to stop, as long as a leaving node writes its state to the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from coordinatord.protocol.kept_state import PersistReport
from coordinatord.runtime.systemd import extension_of

LEAVE_MARGIN_S = 30.0
"""The time to request beyond the workers' time to end: for what they leave behind, their last output, and the first
bytes of kept state on the disk."""

WRITE_MARGIN_S = 45.0
"""The time to request whenever more is written. The coordinator releases a node that writes nothing for 40 s, and any
node after 120 s, so the requests end."""

POLL_EVERY_S = 5.0
"""The pause between two checks of the bytes written."""


class StopExtension:
    """Extends the stop of a systemd service, whose unit may allow less time than the stop takes."""

    def __init__(self, notify: Callable[..., None], stop_timeout_s: float) -> None:
        """Begin with a running service, whose workers have `stop_timeout_s` to end when it stops."""
        self._notify = notify
        self._first_s = stop_timeout_s + LEAVE_MARGIN_S
        self._stops = asyncio.Event()
        self._written: tuple[int, int, int] | None = None
        """The round, the step and the bytes written as of the last check."""

    def begin(self) -> None:
        """Begin the stop: ask for the time that a usual one takes."""
        self._stops.set()
        self._notify("STOPPING=1", extension_of(self._first_s))

    async def watch(self, report: Callable[[], PersistReport | None]) -> None:
        """Call `report` every few seconds, once the service stops, until cancelled."""
        await self._stops.wait()
        while True:
            self.record_progress(report())
            await asyncio.sleep(POLL_EVERY_S)

    def record_progress(self, report: PersistReport | None) -> None:
        """Ask for more time if the service stops and more is on the disk than at the last check."""
        before, self._written = self._written, None if report is None else (report.round, report.step, report.bytes)
        if self._stops.is_set() and self._written not in {None, before}:
            self._notify(extension_of(WRITE_MARGIN_S))
