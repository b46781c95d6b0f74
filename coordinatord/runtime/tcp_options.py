"""Sets TCP options that help sessions survive a lossy network.

A node that is not heard for 5 s counts as lost, so a lost packet has to be sent again well within that time.
"""

from __future__ import annotations

import contextlib
import socket

TCP_THIN_LINEAR_TIMEOUTS = 16
TCP_RTO_MAX_MS = 44
"""Options of linux/tcp.h that Python does not name. The second exists since Linux 6.15."""

CONGESTION = b"cubic"
"""The usual congestion control. BBR is worse for a thin stream on a lossy network: with 30 % loss each way and 200 ms
of delay, gaps of more than 5 s are twice as frequent (measured)."""

RETRY_WITHIN_MS = 1_000
"""The interval of heartbeats. TCP retransmits a lost packet within it, instead of after 2, 4 or 8 seconds."""


def retransmit_steadily(end: socket.socket) -> None:
    """Let TCP retransmit lost packets at a steady pace, without exponential backoff.

    The backoff protects a congested network from big transfers; our messages have some hundred bytes a second. Accepted
    connections inherit the options of their listener. Options that an older kernel lacks are skipped.
    """
    options: tuple[tuple[int, int | bytes], ...] = (
        (socket.TCP_CONGESTION, CONGESTION),
        (TCP_THIN_LINEAR_TIMEOUTS, 1),
        (TCP_RTO_MAX_MS, RETRY_WITHIN_MS),
    )
    for option, value in options:
        with contextlib.suppress(OSError):
            end.setsockopt(socket.IPPROTO_TCP, option, value)
