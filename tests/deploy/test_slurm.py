"""The sbatch script itself, run by bash with the real programs; only Slurm's own commands are stood in for.

The stand-ins do what the real ones were seen to do with this script on a Slurm cluster of three hosts, see
deploy/README.md.
"""

import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from coordinatord.protocol.exit_codes import ExitCode
from nodeclient.shell.stop_extension import LEAVE_MARGIN_S
from tests.deploy.manifests import DEPLOY
from tests.support.cluster import STDLIB_PYTHON, WORKER, Coordinator
from tests.support.programs import Program, as_by_default, clean_environ, kill_quietly, run

SCRIPT = DEPLOY / "slurm" / "train.sbatch"
README = DEPLOY / "README.md"

SRUN = """#!/bin/bash
# One task a host; the exit code is the greatest of theirs, as long as --kill-on-bad-exit=0 and --wait=0 are given.
[[ " $* " == *" --kill-on-bad-exit=0 --wait=0 "* ]] || exit 99
while [[ $1 == --* ]]; do shift; done
export SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=$SLURM_JOB_NUM_NODES SLURM_STEP_NUM_TASKS=$SLURM_JOB_NUM_NODES
for ((host = 0; host < SLURM_JOB_NUM_NODES; host++)); do SLURM_NODEID=$host "$@" & tasks+=($!); done
echo "tasks ${tasks[*]}"
for task in "${tasks[@]}"; do wait "$task"; code=$?; if ((code > worst)); then worst=$code; fi; done
exit $((worst))
"""
SCANCEL = """#!/bin/bash
[[ $1 == --signal=TERM && $2 == "$SLURM_JOB_ID" ]] || exit 99
pkill -TERM --parent "$(pgrep --parent $PPID srun)"
"""
SCONTROL = """#!/bin/bash
echo "scontrol $*"
"""

needs_bash = pytest.mark.skipif(
    not all(map(shutil.which, ("bash", "pkill", "pgrep"))), reason="needs bash, and pkill and pgrep of procps"
)

Submit = Callable[..., Program]


@pytest.fixture
def submit(tmp_path: Path) -> Iterator[Submit]:
    """Run the script as Slurm would on the first of two hosts, whose user has a home on both."""
    for name, text in (("srun", SRUN), ("scancel", SCANCEL), ("scontrol", SCONTROL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_JOB_ID": "1234", "SLURM_JOB_NUM_NODES": "2", "SLURM_CPUS_PER_TASK": "1"}
    environ = clean_environ(**slurm, **as_by_default(tmp_path / "config"))
    environ["PATH"] = f"{tmp_path}:{environ['PATH']}"
    with ExitStack() as jobs:

        def start(**variables: str) -> Program:
            job = Program("bash", SCRIPT, *STDLIB_PYTHON, WORKER, environ={**environ, **variables})
            return jobs.enter_context(job)

        yield start


def workers(job: Program, round_: int) -> list[int]:
    """Wait for the workers of a round, and return their process ids by rank."""
    world = int(job.await_line(rf'"started".*"world_size": (\d+), .*"round": {round_}\b')[1])
    event = r'"started", "pid": (\d+), "rank": %d,.*"round": %d\b'
    return [int(job.await_line(event % (rank, round_))[1]) for rank in range(world)]


def directives() -> dict[str, str]:
    """Return what the script asks Slurm for."""
    found = re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", SCRIPT.read_text(), re.MULTILINE)
    assert len(found) == SCRIPT.read_text().count("\n#SBATCH")
    return dict(found)


def test_the_signal_comes_early_enough_and_to_the_script_alone() -> None:
    lead = re.fullmatch(r"B:TERM@(\d+)", directives()["signal"])
    stop_timeout = re.search(r"NODECLIENT_STOP_TIMEOUT:-(\d+)", SCRIPT.read_text())
    assert lead
    assert stop_timeout
    # Slurm may send it up to a minute late (sbatch(1), --signal).
    assert int(lead[1]) >= int(stop_timeout[1]) + LEAVE_MARGIN_S + 60
    assert {"requeue", "no-kill"} <= directives().keys()
    assert directives()["ntasks-per-node"] == "1"


@needs_bash
@pytest.mark.slow
def test_a_lost_host_does_not_make_a_failure_of_a_success(submit: Submit) -> None:
    job = submit()
    workers(job, 1)
    tasks = job.await_line(r"^tasks (.*)$")[1].split()
    kill_quietly(int(tasks[1]))
    [worker] = workers(job, 2)
    kill_quietly(worker, signal.SIGUSR1)
    assert job.wait() == 0
    job.await_line("job 1234: succeeded; srun: exit code 137")
    assert "scontrol" not in job.output


@pytest.mark.long
@needs_bash
@pytest.mark.slow
def test_before_the_time_is_up_workers_save_and_the_job_is_queued_again(submit: Submit) -> None:
    job = submit()
    workers(job, 1)
    job.signal(signal.SIGTERM)
    assert job.wait() == ExitCode.TERMINATED
    assert job.output.count('"event": "saved"') == 2
    job.await_line("^scontrol requeue 1234$")


@pytest.mark.long
@needs_bash
@pytest.mark.slow
def test_a_failure_just_before_the_time_is_up_is_final(submit: Submit, tmp_path: Path) -> None:
    (tmp_path / "scancel").write_text("#!/bin/bash\necho the time is nearly up\n")  # it comes too late for the nodes
    job = submit(NODECLIENT_MAX_RESTARTS="0")
    failing = workers(job, 1)[1]
    job.signal(signal.SIGTERM)
    job.await_line("^the time is nearly up$")
    os.kill(failing, signal.SIGUSR2)
    assert job.wait() == 17
    job.await_line("job 1234: failed; srun: exit code 17")
    assert "scontrol" not in job.output


@pytest.mark.long
@needs_bash
@pytest.mark.slow
def test_a_failure_is_final_also_with_the_clusters_coordinator(submit: Submit, tmp_path: Path) -> None:
    with Coordinator(home=tmp_path / "operator") as coordinator:
        [told] = re.findall(r"^\((umask .*)\)$", README.read_text(), re.MULTILINE)
        token = tmp_path / "token"
        operator = clean_environ(COORDINATORD_STATE_DIR=str(coordinator.state))
        made = run("sh", "-ec", f"cd {tmp_path} && {told}", environ=operator)
        assert (made.returncode, made.stderr, token.stat().st_mode & 0o777) == (0, "", 0o600)
        theirs = {"NODECLIENT_COORD": coordinator.endpoint, "NODECLIENT_TOKEN_FILE": str(token)}
        job = submit(**theirs, NODECLIENT_MAX_RESTARTS="0")
        os.kill(workers(job, 1)[1], signal.SIGUSR2)
        assert job.wait() == 17
        job.await_line("job 1234: failed; srun: exit code 17")
        assert "scontrol" not in job.output
        assert "coordinatord 0" not in job.output
