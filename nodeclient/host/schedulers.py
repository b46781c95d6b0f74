"""Reads what a scheduler has set about a job in the environment: its id, its number of nodes, this node's rank.

A pure function of the variables. `config` decides which of it is used; flags win.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.fields import RANKS_MAX
from coordinatord.protocol.frozen_class import frozen

SLURM_STEP_MAX = 0xFFFF_FFF0
"""The value of SLURM_MAX_NORMAL_STEP_ID in slurm.h: greater ids are no steps of srun, but the batch script, an
interactive shell and the like."""

_NUMBER = re.compile(r"\d{1,10}", re.ASCII)

_HOSTNAME_OF_INDEX = re.compile(r"(?P<job>.+)-(?P<index>\d{1,10})", re.ASCII)
"""The Pod of an indexed Job has the hostname $(job-name)-$(index) (Kubernetes API, JobSpec.completionMode)."""


class SchedulerError(OperationalError):
    """The scheduler starts nodeclients in a way that cannot be meant; the text says how to put it right."""


@frozen
class Found:
    """One value that a scheduler has set."""

    value: str
    source: str
    """The variables that it was taken from."""


def found(environ: Mapping[str, str]) -> dict[str, Found]:
    """Return the scheduler's values, by `job_id`, `nnodes` and `node_rank`; those that it did not set are missing.

    Malformed values count as missing: other programs may use the same names. Raises `SchedulerError`.
    """
    return _slurm(environ) or _kubernetes(environ)


def _slurm(environ: Mapping[str, str]) -> dict[str, Found]:
    """Read what srun sets for its step (srun(1), OUTPUT ENVIRONMENT VARIABLES; Slurm's src/common/env.c).

    It counts in a step of srun only, which has one task on each node. The script of sbatch has SLURM_NODEID=0 as well,
    but runs on the first node alone, and whatever it starts elsewhere by other means would take that for its own. The
    job is named as sacct names the step, `1234.0`, or `1234_7.0` in a job array: the nodes of one srun train together,
    and two steps that run side by side in one allocation do not meet. A job that is requeued keeps its id, which opens
    a new run.
    """
    job, step = _number(environ, "SLURM_JOB_ID"), _number(environ, "SLURM_STEP_ID")
    if job is None or step is None or step >= SLURM_STEP_MAX:
        return {}
    nodes = _number(environ, "SLURM_STEP_NUM_NODES")
    tasks = _number(environ, "SLURM_STEP_NUM_TASKS")
    if nodes and tasks and tasks > nodes:
        raise SchedulerError(
            f"srun started {tasks} tasks on {nodes} nodes, but one nodeclient on a node runs all workers there: give "
            "srun --ntasks-per-node=1, and nodeclient --nproc-per-node"
        )
    array, task = _number(environ, "SLURM_ARRAY_JOB_ID"), _number(environ, "SLURM_ARRAY_TASK_ID")
    if array is None or task is None:
        settings = {"job_id": Found(f"{job}.{step}", "SLURM_JOB_ID, SLURM_STEP_ID")}
    else:
        settings = {"job_id": Found(f"{array}_{task}.{step}", "SLURM_ARRAY_JOB_ID, SLURM_ARRAY_TASK_ID, SLURM_STEP_ID")}
    if nodes and nodes <= RANKS_MAX:
        settings["nnodes"] = Found(str(nodes), "SLURM_STEP_NUM_NODES")
    rank = _number(environ, "SLURM_NODEID")
    if rank is not None and rank < (nodes or RANKS_MAX):
        settings["node_rank"] = Found(str(rank), "SLURM_NODEID")
    return settings


def missed(environ: Mapping[str, str]) -> str | None:
    """Return a warning for a user in an allocation of several nodes, but not in a step of srun; None otherwise."""
    job, nodes = _number(environ, "SLURM_JOB_ID"), _number(environ, "SLURM_JOB_NUM_NODES")
    step = _number(environ, "SLURM_STEP_ID")
    if job is None or nodes is None or nodes < 2 or (step is not None and step < SLURM_STEP_MAX):  # noqa: PLR2004  # one
        return None
    return (
        f"Slurm has given job {job} {nodes} nodes, but this is one nodeclient on one of them: start it on all by "
        "srun --ntasks-per-node=1 nodeclient ..."
    )


def _kubernetes(environ: Mapping[str, str]) -> dict[str, Found]:
    """Read what an indexed Job sets in its Pods (kubernetes.io/docs/concepts/workloads/controllers/job).

    It does not set how many there are.
    """
    index = _number(environ, "JOB_COMPLETION_INDEX")
    if index is None or index >= RANKS_MAX:
        return {}
    settings = {"node_rank": Found(str(index), "JOB_COMPLETION_INDEX")}
    hostname = _HOSTNAME_OF_INDEX.fullmatch(environ.get("HOSTNAME", ""))
    if hostname is not None and int(hostname["index"]) == index:
        settings["job_id"] = Found(hostname["job"], "HOSTNAME")
    return settings


def _number(environ: Mapping[str, str], variable: str) -> int | None:
    text = environ.get(variable, "")
    return int(text) if _NUMBER.fullmatch(text) else None
