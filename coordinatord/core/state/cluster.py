"""All jobs of one coordinator: what outlives it, and what this life of it knows beside that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from coordinatord.core.state.durable import DurableCluster
from coordinatord.core.state.run import Run


@dataclass(slots=True)
class Cluster:
    """The runs of all jobs."""

    durable: DurableCluster = field(default_factory=DurableCluster)
    jobs: dict[str, Run] = field(default_factory=dict)
    """The live or last run of each job, in the order in which they were opened."""

    @property
    def live(self) -> Iterator[Run]:
        """Iterate over the runs that have not ended."""
        return (run for run in self.jobs.values() if not run.durable.state.ended)
