"""The options with which both ends of a session make TCP cope with a bad network."""

from __future__ import annotations

import contextlib
import socket

TCP_THIN_LINEAR_TIMEOUTS = 16
TCP_RTO_MAX_MS = 44
"""Both values are in linux/tcp.h; Python has no names for them. The second is there since Linux 6.15."""

CONGESTION = b"cubic"
"""The usual congestion control. Where BBR is the default, a thin stream that loses packets is silent for longer: with
30 % lost each way and 200 ms of delay, twice as often for more than 5 s (measured)."""

RETRY_WITHIN_MS = 1_000
"""One heartbeat: a lost packet is sent again before the next heartbeat is due, and not after 2, 4, 8 seconds."""


def keep_trying(end: socket.socket) -> None:
    """Let TCP repeat lost packets at a steady pace, instead of waiting twice as long after each loss.

    The longer waits protect a congested network from big transfers; our messages are some hundred bytes a second.
    Accepted connections inherit the options from their listener. An older kernel has fewer of them.
    """
    options: tuple[tuple[int, int | bytes], ...] = (
        (socket.TCP_CONGESTION, CONGESTION),
        (TCP_THIN_LINEAR_TIMEOUTS, 1),
        (TCP_RTO_MAX_MS, RETRY_WITHIN_MS),
    )
    for option, value in options:
        with contextlib.suppress(OSError):
            end.setsockopt(socket.IPPROTO_TCP, option, value)
