"""Whether a worker failed in a collective because a peer had closed its connection. Pure.

Such a failure says that a process of another worker has ended. A time that ran out does not, nor does an error of the
network: with these, the peer may live.
"""

from __future__ import annotations

import re

from coordinatord.hints.network import PEER_GONE_GLOO
from coordinatord.protocol.messages import Failure

_NCCL = r"Connection closed by remote peer"
"""The sentence of NCCL's sockets, which stands below the exception. Its ncclRemoteError alone may be a network's."""


def lost_connection(failure: Failure) -> bool:
    """Whether it was the end of a peer's connection that the worker failed of, by what it wrote.

    The user's own program writes that, so it may say anything: this is never proof by itself.
    """
    lines = "\n".join(failure.last_lines)
    return bool(re.search(PEER_GONE_GLOO, failure.error or lines) or re.search(_NCCL, f"{failure.error}\n{lines}"))
