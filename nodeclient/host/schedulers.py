"""Reads a scheduler's variables for a job: its id, its number of nodes, this node's rank. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.fields import RANKS_MAX

SLURM_STEP_MAX = 0xFFFF_FFF0
"""The value of SLURM_MAX_NORMAL_STEP_ID in slurm.h. All steps of srun have lower ids; the batch script, an interactive
shell and the like have higher ones."""

_NUMBER = re.compile(r"\d{1,10}", re.ASCII)

_HOSTNAME_OF_INDEX = re.compile(r"(?P<job>.+)-(?P<index>\d{1,10})", re.ASCII)
"""The hostname of a Pod of an indexed Job is $(job-name)-$(index) (Kubernetes API, JobSpec.completionMode)."""


class SchedulerError(OperationalError):
    """The scheduler starts nodeclients wrongly; the text has the remedy."""


class SchedulerValue(Struct, frozen=True):
    """One value from a scheduler."""

    value: str
    source: str
    """The variables it comes from."""


def scheduler_values(environ: Mapping[str, str]) -> dict[str, SchedulerValue]:
    """Return the scheduler's values by `job_id`, `nnodes` and `node_rank`, without those that it did not set.

    Malformed values count as missing: other programs may use the same names. Raises `SchedulerError`.
    """
    return _slurm(environ) or _kubernetes(environ)


def _slurm(environ: Mapping[str, str]) -> dict[str, SchedulerValue]:
    """Read the variables of an srun step (srun(1), OUTPUT ENVIRONMENT VARIABLES; Slurm's src/common/env.c).

    They are valid only in a step of srun with one task on each node. The script of sbatch has SLURM_NODEID=0 as well,
    but runs only on the first node, and processes that it starts elsewhere by other means would inherit that number.

    The job id is sacct's name of the step, `1234.0`, or `1234_7.0` in a job array: so the nodes of one srun train
    together, and two parallel steps of one allocation do not. A requeued job keeps its id, and opens a new run.
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
    name, source = f"{array}_{task}", "SLURM_ARRAY_JOB_ID, SLURM_ARRAY_TASK_ID"
    if array is None or task is None:
        name, source = str(job), "SLURM_JOB_ID"
    settings = {"job_id": SchedulerValue(f"{name}.{step}", f"{source}, SLURM_STEP_ID")}
    if nodes and nodes <= RANKS_MAX:
        settings["nnodes"] = SchedulerValue(str(nodes), "SLURM_STEP_NUM_NODES")
    rank = _number(environ, "SLURM_NODEID")
    if rank is not None and rank < (nodes or RANKS_MAX):
        settings["node_rank"] = SchedulerValue(str(rank), "SLURM_NODEID")
    return settings


def srun_advice(environ: Mapping[str, str]) -> str | None:
    """Return advice for a user with an allocation of several nodes, outside a step of srun; else None."""
    job, nodes = _number(environ, "SLURM_JOB_ID"), _number(environ, "SLURM_JOB_NUM_NODES")
    step = _number(environ, "SLURM_STEP_ID")
    if job is None or nodes is None or nodes <= 1 or (step is not None and step < SLURM_STEP_MAX):
        return None
    return (
        f"Slurm has given {nodes} nodes to job {job}, but this is one nodeclient on one of them: start it on all by "
        "srun --ntasks-per-node=1 nodeclient ..."
    )


def _kubernetes(environ: Mapping[str, str]) -> dict[str, SchedulerValue]:
    """Read the variables of an indexed Job's Pods (kubernetes.io/docs/concepts/workloads/controllers/job).

    Kubernetes does not set the number of Pods.
    """
    index = _number(environ, "JOB_COMPLETION_INDEX")
    if index is None or index >= RANKS_MAX:
        return {}
    settings = {"node_rank": SchedulerValue(str(index), "JOB_COMPLETION_INDEX")}
    hostname = _HOSTNAME_OF_INDEX.fullmatch(environ.get("HOSTNAME", ""))
    if hostname is not None and int(hostname["index"]) == index:
        settings["job_id"] = SchedulerValue(hostname["job"], "HOSTNAME")
    return settings


def _number(environ: Mapping[str, str], variable: str) -> int | None:
    text = environ.get(variable, "")
    return int(text) if _NUMBER.fullmatch(text) else None
