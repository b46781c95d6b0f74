"""What a node sends about itself in each `Join` of one process: a fixed identity and a growing age."""

from __future__ import annotations

import time

from coordinatord.protocol.fields import DURATION_S_MAX
from coordinatord.protocol.messages import PROTOCOL_VERSION, JobSpec, Join, NodeSpec, Observed
from coordinatord.runtime import __version__


class Introduction:
    """What stays the same in each `Join` of a process."""

    def __init__(self, job: str, node: str, spec: JobSpec, now: float) -> None:
        """Begin at `now`, by the clock of the event loop."""
        self._job = job
        self._node = node
        self._spec = spec
        self._incarnation = time.time_ns()
        self._began_at = now

    def join(self, offer: NodeSpec, observed: Observed, now: float) -> Join:
        """Return the first message of a session that begins at `now`."""
        return Join(
            version=PROTOCOL_VERSION,
            job=self._job,
            node=self._node,
            incarnation=self._incarnation,
            spec=self._spec,
            offer=offer,
            observed=observed,
            release=__version__,
            age_s=min(now - self._began_at, DURATION_S_MAX),
        )
