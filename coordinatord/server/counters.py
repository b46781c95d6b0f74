"""Counts messages and commits, and measures how late the event loop is, for `metrics`.

Frequent events, such as heartbeats, are counted in plain integers, which cost less than Prometheus' counters. A scrape
reads them.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from prometheus_client import Histogram, disable_created_metrics

from coordinatord.protocol.messages import RefusalCode

MEASURE_EVERY_S = 1.0
"""How often the lateness of the event loop is measured: as often as a node sends heartbeats, whose
answers it delays."""

COMMIT_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds in seconds. A commit of records takes one to twenty milliseconds; after 1 s the store counts as
failed."""

LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds in seconds. Heartbeats come every second, and a node without an answer for 4 s looks for another
coordinator."""

# Otherwise each histogram would have one more series, with its time of creation.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Counters:
    """The counts since the start of the daemon."""

    def __init__(self) -> None:
        self.heartbeats = 0
        self.refused: Counter[RefusalCode] = Counter()
        """Messages that ended a session, by reason."""
        self.store_failures = 0
        """Failed attempts to write records."""
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


async def measure_lag(counters: Counters) -> None:
    """Measure every `MEASURE_EVERY_S` how late the event loop is, until cancelled."""
    while True:
        # uvloop reads its own clock only once an iteration, so that clock does not show how long an iteration takes.
        due = time.monotonic() + MEASURE_EVERY_S
        await asyncio.sleep(MEASURE_EVERY_S)
        counters.lag.observe(max(0.0, time.monotonic() - due))
