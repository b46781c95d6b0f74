"""Whether a worker failed in a collective because a peer had closed its connection. Pure.

Such a failure is a sign that a process of another worker has ended. A timeout is none, nor is an error of the network:
after these the peer may still live.
"""

from __future__ import annotations

import re

from coordinatord.hints.network import PEER_GONE_GLOO
from coordinatord.protocol.messages import Failure

_NCCL = r"Connection closed by remote peer"
"""What NCCL writes below the exception. Its ncclRemoteError alone may come from a fault of the network."""


def lost_connection(failure: Failure) -> bool:
    """Whether a worker failed because a peer's connection ended, by what the worker wrote.

    The user's own program writes that text and may write anything, so this is never proof by itself.
    """
    lines = "\n".join(failure.last_lines)
    return bool(re.search(PEER_GONE_GLOO, failure.error or lines) or re.search(_NCCL, f"{failure.error}\n{lines}"))
