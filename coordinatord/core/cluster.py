"""All that outlives the daemon: the jobs, and which nodes operators keep out of them.

Changed by `history` alone, which applies records; what may be asked of it is in `operations`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinatord.core.run import Run


@dataclass(slots=True)
class Cluster:
    """The durable state of one coordinator."""

    jobs: dict[str, Run] = field(default_factory=dict)
    """The live or last run of each job, in the order in which they were opened."""
    drained: dict[str, str] = field(default_factory=dict)
    """Names of nodes or hosts that no job takes in, each with the reason."""

    def why_drained(self, node: str, host: str) -> str | None:
        """Return the reason for which a node is kept out, by its own name or its host's; None if it is not."""
        return self.drained.get(node) or self.drained.get(host)
