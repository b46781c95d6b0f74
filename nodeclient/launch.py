"""What each worker of a round runs: its command line and its whole environment."""

from __future__ import annotations

import os
from collections.abc import Mapping

from nodeclient.addresses import interface_towards
from nodeclient.config import JoinConfig
from nodeclient.core.effects import Start
from nodeclient.spawn import WorkerCommand
from workerlib.env import DEFAULTS, WorkerEnvironment

LAUNCHER_DEFAULTS = {"PYTHONUNBUFFERED": "1"}
"""As torchrun's `python -u`: what a worker printed before it died is seen."""


def worker_commands(config: JoinConfig, start: Start, inherited: Mapping[str, str]) -> list[WorkerCommand]:
    """Return one command a worker, in the order of the local ranks.

    Where the round spans hosts, gloo is told to listen on the interface that leads to the master, unless the user said
    otherwise in the `inherited` environment; by itself it listens where the host's own name leads.
    """
    base = {**DEFAULTS, **LAUNCHER_DEFAULTS}
    if config.workers > 1:
        # By itself torch starts a thread a core in every worker (torchrun's answer: 1).
        base["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // config.workers))
    interface = interface_towards(start.assignment.master_address)
    if interface and interface != "lo":
        base["GLOO_SOCKET_IFNAME"] = interface
    base |= inherited
    return [
        WorkerCommand(config.command, base | _environment(config, start, local_rank).to_environ())
        for local_rank in range(config.workers)
    ]


def _environment(config: JoinConfig, start: Start, local_rank: int) -> WorkerEnvironment:
    part = start.assignment
    return WorkerEnvironment(
        rank=part.first_rank + local_rank,
        local_rank=local_rank,
        world_size=part.world_size,
        local_world_size=config.workers,
        group_rank=part.group_rank,
        group_world_size=part.group_world_size,
        role=config.role,
        role_rank=part.first_role_rank + local_rank,
        role_world_size=part.role_world_size,
        master_address=part.master_address,
        master_port=part.master_port,
        restart_count=part.restarts_used,
        max_restarts=part.max_restarts,
        job=config.job,
        run=start.run,
        round=start.round,
        node=config.node,
        reason=start.reason,
    )
