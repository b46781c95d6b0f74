"""The counts that are made where something happens: messages, commits, and how late the event loop is.

A heartbeat must not become measurably slower by counting, so what happens often is counted in plain numbers, which a
scrape reads. Figures of a job are not here: they are read from the machine.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from prometheus_client import Histogram, disable_created_metrics

from coordinatord.protocol.messages import RefusalCode

LOOK_EVERY_S = 1.0
"""The interval between two measurements of how late the event loop is: a heartbeat, which a late loop would delay."""

COMMIT_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds in seconds. A commit takes one to twenty milliseconds; after 1 s the driver treats it as failed."""

LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds in seconds. A heartbeat is due every second, and a node without an answer for 5 s looks for the
coordinator."""

# `process_start_time_seconds` shows when a histogram was made; otherwise each would have one more series.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Counters:
    """The counts of one life of the daemon."""

    def __init__(self) -> None:
        self.heartbeats = 0
        self.refused: Counter[RefusalCode] = Counter()
        self.store_failures = 0
        """Attempts to make records durable that failed."""
        self.commits = Histogram(
            "coordinatord_store_commit_seconds",
            "How long an attempt to make a group of records durable took.",
            buckets=COMMIT_BUCKETS,
            registry=None,
        )
        self.lag = Histogram(
            "coordinatord_event_loop_lag_seconds",
            "How late the event loop came to a timer that is due every second.",
            buckets=LAG_BUCKETS,
            registry=None,
        )


class LagProbe:
    """Measures once a second how late the event loop is; in between it costs nothing."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to measure, on the running event loop."""
        self._due = time.monotonic() + LOOK_EVERY_S
        self._timer = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look)

    def close(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        # The loop's own clock, which uvloop reads once an iteration, does not show how long an iteration takes.
        self._counters.lag.observe(max(0.0, time.monotonic() - self._due))
        self.start()
