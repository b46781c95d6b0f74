"""Sets TCP options that help sessions survive a lossy network."""

from __future__ import annotations

import contextlib
import socket

TCP_THIN_LINEAR_TIMEOUTS = 16
TCP_RTO_MAX_MS = 44
"""Options of linux/tcp.h that Python does not name. The second exists since Linux 6.15."""

CONGESTION = b"cubic"
"""The usual congestion control. With BBR, a thin stream that loses packets is silent for longer: with 30 % loss each
way and 200 ms of delay, twice as often for more than 5 s (measured)."""

RETRY_WITHIN_MS = 1_000
"""One heartbeat: TCP retransmits a lost packet before the next heartbeat is due, and not after 2, 4, 8 seconds."""


def retransmit_steadily(end: socket.socket) -> None:
    """Let TCP retransmit lost packets at a steady pace, without exponential backoff.

    The backoff protects a congested network from big transfers; our messages are some hundred bytes a second. Accepted
    connections inherit the options from their listener. An older kernel has fewer of them.
    """
    options: tuple[tuple[int, int | bytes], ...] = (
        (socket.TCP_CONGESTION, CONGESTION),
        (TCP_THIN_LINEAR_TIMEOUTS, 1),
        (TCP_RTO_MAX_MS, RETRY_WITHIN_MS),
    )
    for option, value in options:
        with contextlib.suppress(OSError):
            end.setsockopt(socket.IPPROTO_TCP, option, value)
