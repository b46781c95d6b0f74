"""What is read from the variables of Slurm and of Kubernetes, and which are ignored."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeclient.host.schedulers import SchedulerError, SchedulerValue, scheduler_values, srun_advice

BATCH_SCRIPT = {
    "SLURM_JOB_ID": "1234",
    "SLURM_JOBID": "1234",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_NNODES": "4",
    "SLURM_NTASKS": "4",
    "SLURM_TASKS_PER_NODE": "1(x4)",
    "SLURM_NODEID": "0",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
}
"""What the script of `sbatch --nodes 4 --ntasks-per-node 1` finds."""

STEP = {
    **BATCH_SCRIPT,
    "SLURM_STEP_ID": "2",
    "SLURM_STEPID": "2",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
    "SLURM_NNODES": "3",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "1",
}
"""What the second task of `srun --nodes 3` in that script finds."""

POD = {"JOB_COMPLETION_INDEX": "3", "HOSTNAME": "train-resnet-50-3"}


def values(environ: dict[str, str]) -> dict[str, str]:
    return {name: setting.value for name, setting in scheduler_values(environ).items()}


def test_a_step_of_srun_says_everything_and_where_it_is_from() -> None:
    assert scheduler_values(STEP) == {
        "job_id": SchedulerValue("1234.2", "SLURM_JOB_ID, SLURM_STEP_ID"),
        "nnodes": SchedulerValue("3", "SLURM_STEP_NUM_NODES"),
        "node_rank": SchedulerValue("1", "SLURM_NODEID"),
    }


def test_an_array_s_tasks_are_different_jobs_named_as_slurm_does() -> None:
    array = {"SLURM_ARRAY_JOB_ID": "1200", "SLURM_ARRAY_TASK_ID": "7"}
    said = scheduler_values({**STEP, **array})["job_id"]
    assert said == SchedulerValue("1200_7.2", "SLURM_ARRAY_JOB_ID, SLURM_ARRAY_TASK_ID, SLURM_STEP_ID")


@pytest.mark.parametrize("step", [0xFFFF_FFFA, 0xFFFF_FFFB, 0xFFFF_FFFC])
def test_what_is_no_step_of_srun_says_nothing(step: int) -> None:
    assert scheduler_values(BATCH_SCRIPT) == {}
    assert scheduler_values({**STEP, "SLURM_STEP_ID": str(step)}) == {}


def test_several_nodeclients_on_a_node_are_a_mistake_that_is_explained() -> None:
    with pytest.raises(SchedulerError, match=r"started 24 tasks on 3 nodes, .* --ntasks-per-node=1"):
        scheduler_values({**STEP, "SLURM_STEP_NUM_TASKS": "24"})


def test_an_indexed_job_says_its_name_and_the_rank() -> None:
    assert scheduler_values(POD) == {
        "job_id": SchedulerValue("train-resnet-50", "HOSTNAME"),
        "node_rank": SchedulerValue("3", "JOB_COMPLETION_INDEX"),
    }


@pytest.mark.parametrize("hostname", ["", "3", "-3", "train-13", "train-3-x", "train-x"])
def test_a_hostname_of_another_form_is_no_name_of_a_job(hostname: str) -> None:
    assert values({**POD, "HOSTNAME": hostname}) == {"node_rank": "3"}


def test_a_step_of_srun_comes_before_an_index() -> None:
    assert scheduler_values({**POD, **STEP}) == scheduler_values(STEP)


MALFORMED = ["", " ", "x", "-1", "1.5", "0x3", "٣", "1\n", "9" * 11, "4294967296"]


@pytest.mark.parametrize("text", MALFORMED)
def test_what_is_malformed_counts_as_not_said(text: str) -> None:
    assert "nnodes" not in scheduler_values({**STEP, "SLURM_STEP_NUM_NODES": text})
    assert "node_rank" not in scheduler_values({**STEP, "SLURM_NODEID": text})
    assert scheduler_values({**STEP, "SLURM_STEP_ID": text}) == {}
    assert scheduler_values({**POD, "JOB_COMPLETION_INDEX": text}) == {}


def test_a_rank_beyond_the_nodes_is_not_believed_nor_a_hostname_without_a_scheduler() -> None:
    assert values({**STEP, "SLURM_NODEID": "3"}) == {"job_id": "1234.2", "nnodes": "3"}
    assert scheduler_values({"HOSTNAME": "gpu-3"}) == {}


_VARIABLES = sorted(STEP.keys() | POD.keys() | {"SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"})


@given(st.dictionaries(st.sampled_from(_VARIABLES), st.one_of(st.text(), st.integers(0, 99).map(str))))
def test_nothing_in_these_variables_breaks_it(environ: dict[str, str]) -> None:
    try:
        said = scheduler_values(environ)
    except SchedulerError:
        assert int(environ["SLURM_STEP_NUM_TASKS"]) > int(environ["SLURM_STEP_NUM_NODES"])
    else:
        assert said.keys() <= {"job_id", "nnodes", "node_rank"}


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}, True),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1"}, False),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_STEP_ID": "0"}, False),
        ({}, False),
    ],
)
def test_who_has_several_nodes_and_starts_on_one_is_pointed_to_srun(environ: dict[str, str], said: bool) -> None:
    assert ("srun --ntasks-per-node=1" in (srun_advice(environ) or "")) == said
