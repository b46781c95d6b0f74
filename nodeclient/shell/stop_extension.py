"""Asks systemd for the time that a leaving node needs, as long as it writes more of its state to the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from coordinatord.protocol.kept_state import PersistReport

LEAVE_MARGIN_S = 30.0
"""The time to request beyond the workers' time to save: for the coordinator's decision, for leftovers of the workers,
for their last output, and until the first bytes of kept state are on the disk."""

WRITE_MARGIN_S = 45.0
"""The time to request whenever more is written. The coordinator lets a node go that writes nothing for 40 s, and any
node after 120 s, so the requests come to an end."""

LOOK_EVERY_S = 5.0
"""The pause between two checks of the bytes written."""


class StopExtension:
    """Extends the end of a service whose unit may allow less time than it takes."""

    def __init__(self, notify: Callable[..., None], save_s: float) -> None:
        """Begin with a service that goes on; its workers have `save_s` seconds to save in the end."""
        self._notify = notify
        self._first_s = save_s + LEAVE_MARGIN_S
        self._stops = asyncio.Event()
        self._written: tuple[int, int, int] | None = None
        """The round, the step and the bytes written as of the last check."""

    def begin(self) -> None:
        """Ask for the time of a usual end."""
        self._stops.set()
        self._notify("STOPPING=1", _extension(self._first_s))

    async def watch(self, look: Callable[[], PersistReport | None]) -> None:
        """Check the bytes written every few seconds, once the service ends."""
        await self._stops.wait()
        while True:
            self.note(look())
            await asyncio.sleep(LOOK_EVERY_S)

    def note(self, report: PersistReport | None) -> None:
        """Ask for more time if the service ends and more is on the disk than at the last check."""
        before, self._written = self._written, None if report is None else (report.round, report.step, report.bytes)
        if self._stops.is_set() and self._written not in {None, before}:
            self._notify(_extension(WRITE_MARGIN_S))


def _extension(seconds: float) -> str:
    return f"EXTEND_TIMEOUT_USEC={seconds * 1_000_000:.0f}"
