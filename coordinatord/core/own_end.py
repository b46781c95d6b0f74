"""Says when the coordinator itself may end, and when it has to give way to another one."""

from __future__ import annotations

from collections.abc import Collection

from coordinatord.core.keeping.write_plan import END_S
from coordinatord.core.rounds.queries.past_round import is_ending
from coordinatord.core.rounds.state.cluster import Cluster
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.run import Run

SIGNALS_APART_S = 1.0
"""How long it waits for nodes to report that they were asked to end, too. When a host shuts down or Slurm ends a job,
all processes get SIGTERM within milliseconds, in any order."""


def runs_to_await(runs: Collection[Run]) -> list[Run]:
    """Return the runs whose nodes end their workers, write to the disk before they leave, or leave."""
    return [run for run in runs if _has_ending_nodes(run)]


def may_end_at(runs: Collection[Run], asked_at: float) -> float:
    """Return when the coordinator of these runs may end, if it was asked to at `asked_at`: after nodes that end too.

    Nodes that end need it until their workers have ended and their last step is on the disk. Nodes that train can do
    without it. They may have been asked to end as well: where there is a step to write, they get a moment to say so.
    """
    if ending := runs_to_await(runs):
        stop_timeout_s = max(member.offer.stop_timeout_s for run in ending for member in run.members.values())
        return asked_at + stop_timeout_s + END_S
    may_write = any(run.roll.connected and run.keeping.has_disk for run in runs)
    return asked_at + SIGNALS_APART_S if may_write else asked_at


def _has_ending_nodes(run: Run) -> bool:
    here = [member for member in run.members.values() if member.session.id is not None and not member.lease.expired]
    ends = run.durable.state is State.STOPPING or run.durable.state.ended or is_ending(run)
    return bool(here) and (ends or any(member.leaves or member.durable.outcome is not None for member in here))


def is_cut_off(cluster: Cluster) -> bool:
    """Whether nodes are connected, but all of them have been silent for a whole lease.

    Then the coordinator's own network is most likely cut: a process that ends closes its connection, and a host that
    dies silences only its own nodes. A coordinator that leads gives way to a standby then.
    """
    silent = False
    for run in cluster.jobs.values():
        for member in run.members.values():
            if member.session.id is not None and not member.lease.expired:
                return False
            silent |= member.session.id is not None
    return silent
