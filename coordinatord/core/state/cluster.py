"""All that outlives the daemon: the jobs, and which nodes operators keep out of them.

Only `transitions/apply` changes it, by records. `transitions/admin` carries out what operators ask for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from coordinatord.core.state.run import Run

FORGOTTEN_MAX = 1_000
"""As many as the store keeps: nodes give up long before so many jobs are forgotten."""


@dataclass(slots=True)
class Cluster:
    """The durable state of one coordinator."""

    jobs: dict[str, Run] = field(default_factory=dict)
    """The live or last run of each job, in the order in which they were opened."""
    drained: dict[str, str] = field(default_factory=dict)
    """Names of nodes or hosts that no job takes in, each with the reason."""
    forgotten: dict[str, str] = field(default_factory=dict)
    """The last runs that were forgotten, each with the reason: nodes that come back to one must not begin it anew."""

    @property
    def live(self) -> Iterator[Run]:
        """Iterate over the runs that have not ended."""
        return (run for run in self.jobs.values() if not run.state.ended)

    def forget(self, run: str, why: str) -> None:
        """Take note of a run that is forgotten, and let go of the oldest such note."""
        self.forgotten[run] = why
        if len(self.forgotten) > FORGOTTEN_MAX:
            del self.forgotten[next(iter(self.forgotten))]

    def why_drained(self, node: str, host: str) -> str | None:
        """Return the reason for which a node is kept out, by its own name or its host's; None if it is not."""
        return self.drained.get(node) or self.drained.get(host)
