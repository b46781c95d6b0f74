"""What a node sends about itself in each `Join` of one process: its identity, its offer and its age."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence

from coordinatord.protocol.fields import DURATION_S_MAX
from coordinatord.protocol.kept_state import Keeper
from coordinatord.protocol.messages import PROTOCOL_VERSION, JobSpec, Join, NodeOffer, Observed
from coordinatord.runtime import __version__
from nodeclient.config.join_config import command_digest
from nodeclient.host.addresses import host_id, routable_address


class Introduction:
    """What stays the same in each `Join` of a process."""

    def __init__(
        self,
        job: str,
        node: str,
        spec: JobSpec,
        offer: Callable[..., NodeOffer],
        now: float,
        *,
        command: Sequence[str] = (),
        keeper: Keeper | None = None,
    ) -> None:
        """Begin at `now`, by the clock of the event loop.

        `offer` takes the fields that describe the host, which may change, and knows all others. `command` starts the
        workers, if it is known. `keeper` is how other nodes get what this node keeps, if it keeps anything.
        """
        self._job = job
        self._node = node
        self._spec = spec
        self._offer = offer
        self._command = command_digest(command)
        self._keeper = keeper
        self._incarnation = time.time_ns()
        self._began_at = now

    def join(self, observed: Observed, now: float, *, awaits_own: bool) -> Join:
        """Return the first message of a session that begins at `now`; see `Join.awaits_own`."""
        return Join(
            version=PROTOCOL_VERSION,
            job=self._job,
            node=self._node,
            incarnation=self._incarnation,
            spec=self._spec,
            offer=self._offer(host=socket.gethostname(), host_id=host_id(), routable_address=routable_address()),
            observed=observed,
            release=__version__,
            age_s=min(now - self._began_at, DURATION_S_MAX),
            command=self._command,
            keeper=self._keeper,
            awaits_own=awaits_own,
        )
