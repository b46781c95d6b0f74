"""The events of a world, as lines for a person: the last few are kept, for the report of a failure."""

from __future__ import annotations

import hashlib
import sys
from collections import deque
from collections.abc import Iterable
from typing import Any

from coordinatord.core.rounds.values.records import Record, RoundEnded, RoundFormed
from tests.sim.event_queue import EventQueue

LINES_KEPT = 40
"""A screen: the cause is most often in the last ten."""


class Trace:
    """The history of one world. Lines are formatted only when they are shown."""

    is_loud = False
    """Whether each line is printed at once: set by programs, for all worlds."""
    is_digested = False
    """Whether a digest is made of all lines: set in the same way."""

    def __init__(self, queue: EventQueue) -> None:
        self._queue = queue
        self._digest = hashlib.sha256() if self.is_digested else None
        self._lines: deque[tuple[float, str, tuple[Any, ...]]] = deque(maxlen=LINES_KEPT)

    def note(self, text: str, *arguments: Any) -> None:
        """Write a line: a format with its arguments, which must not change later."""
        line = (self._queue.time, text, arguments)
        self._lines.append(line)
        if self.is_loud:
            sys.stdout.write(f"{_line(line)}\n")
        if self._digest is not None:
            self._digest.update(_line(line).encode())

    def records(self, label: str, records: Iterable[Record]) -> None:
        """Write a line for each record, after a label."""
        for record in records:
            self.note("%s: %s", label, _RecordText(record))

    @property
    def digest(self) -> str:
        """A digest of all lines so far."""
        return self._digest.hexdigest() if self._digest is not None else ""

    def __str__(self) -> str:
        return "\n".join(_line(line) for line in self._lines)


class _RecordText:
    """The text of a record, which is made only if it is read."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def __str__(self) -> str:
        record = self._record
        about = [record.KIND, record.run]
        about += [f"round {number}" for number in [getattr(record, "round", None)] if number is not None]
        about += [node for node in [getattr(record, "node", None)] if node is not None]
        if isinstance(record, RoundFormed):
            about.append("of " + " ".join(ranks.node for ranks in record.nodes[:8]))
        if isinstance(record, RoundEnded):
            about.append(f"{'charged' if record.charged else 'free'}, {record.restarts_used} used")
        return f"{', '.join(about)}: {record.reason}"


def _line(line: tuple[float, str, tuple[Any, ...]]) -> str:
    at, text, arguments = line
    return f"{at:12.4f}  {text % arguments if arguments else text}"
