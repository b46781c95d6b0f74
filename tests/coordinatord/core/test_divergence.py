"""What `--on-divergence` does: which step a job goes back to, who is charged, and when training goes on instead."""

import pytest
from msgspec.structs import replace

from coordinatord.core.keeping.bad_steps import has_doubts, may_differ
from coordinatord.core.keeping.known import kept_of
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.values.judged_host import Fault
from coordinatord.core.rounds.values.records import HostJudged, ReplicasDiverged, RoundFormed
from coordinatord.core.rounds.values.resume_point import SPOILED_MAX, ResumePoint
from coordinatord.hints.failure_status import failure_status
from coordinatord.protocol.kept_state import KeptStep, StateDigest
from coordinatord.protocol.messages import Cause
from tests.support.running_job import Job, running_job

ALIKE = ("digest n1 n2 16 7 7",)
APART = ("digest n1 32 8 8", "digest n2 32 8 9")
APART_AT_ONCE = ("digest n1 16 8 8", "digest n2 16 8 9")
"""All are alike after step 16, and rank 3 differs after step 32; or it differs at the first digest."""

IN_MEMORY = ("keep n1 n2 1:16", "advance 1s", "keep n1 n2 1:16 protected=yes")
TOO_NEW = tuple(line.replace("1:16", "1:17") for line in IN_MEMORY)
ON_DISK = ("write n1 written found=e-1:1:16", "write n2 written found=e-1:1:16")
TOO_NEW_ON_DISK = tuple(line.replace("1:16", "1:17") for line in ON_DISK)
OF_EARLIER_RUN = tuple(line.replace("e-1:1:16", "e-0:4:90") for line in ON_DISK)

UNKEPT = "training goes on, since no step from before then is kept"


def diverges(*lines: str, settings: str = "divergence=restart restarts=3") -> tuple[Job, ReplicasDiverged]:
    """Play a job of four ranks on two nodes, which diverge; return what is recorded of that."""
    job = Job(f"workers=2 keeps=600s {settings}")
    job.play(*lines)
    [found] = job.records(ReplicasDiverged)
    return job, found


@pytest.mark.parametrize(
    ("lines", "back_to", "what"),
    [
        ((*IN_MEMORY, *ALIKE, *APART), KeptStep(1, 16), "the next round goes back to step 16"),
        ((*ON_DISK, *ALIKE, *APART), KeptStep(1, 16), "the next round goes back to step 16"),
        ((*OF_EARLIER_RUN, *APART_AT_ONCE), KeptStep(0, 90), "the next round goes back to step 90"),
        ((*ON_DISK, *APART_AT_ONCE), None, UNKEPT),
        ((*TOO_NEW, *ALIKE, *APART), None, UNKEPT),
        ((*TOO_NEW_ON_DISK, *ALIKE, *APART), None, UNKEPT),
        ((ON_DISK[0], *ALIKE, *APART), None, UNKEPT),
        ((IN_MEMORY[0], *ALIKE, *APART), None, UNKEPT),
        ((*ALIKE, *APART), None, UNKEPT),
    ],
    ids=["memory", "disk", "earlier run", "agreed never", "new", "new on disk", "one node", "not protected", "nothing"],
)
def test_a_round_ends_only_if_a_step_is_kept_at_which_all_were_alike(
    lines: tuple[str, ...], back_to: KeptStep | None, what: str
) -> None:
    job, found = diverges(*lines)
    assert found.back_to == back_to
    assert found.reason.endswith(f"; {what}")
    assert job.stops == (["diverged"] if back_to else [])
    assert job.reason.startswith(found.reason) if back_to else job.reason.endswith(found.reason)


@pytest.mark.parametrize(("settings", "says"), [("divergence=report", "the same"), ("divergence=restart", "is left")])
def test_a_round_goes_on_if_that_is_wanted_or_no_restart_is_left(settings: str, says: str) -> None:
    job, found = diverges(*IN_MEMORY, *ALIKE, *APART, settings=f"{settings} restarts=0")
    assert (found.back_to, job.stops) == (None, [])
    assert found.reason.endswith(says)


def writes(job: Job, step: str) -> tuple[int, ...]:
    """Have both nodes keep and write a step, as `1:40`; return the older steps that stay as it is made whole."""
    job.play(f"keep n1 n2 {step}", "advance 1s", f"keep n1 n2 {step} protected=yes", "advance 2s")
    job.play("write n1 n2 written")
    [staying] = [order.stays for node in ("n1", "n2") if (order := job.desired(node).persist) and order.commit]
    job.play("write n1 n2 committed", f"write n1 n2 written found=e-1:{step}")
    return staying


def next_round(job: Job) -> None:
    job.play("fail n1", "stopped n2", "failed n1", "advance 9s", "fetch n1 n2 ready", "running n1 n2")


@pytest.mark.parametrize("settings", ["divergence=report", "divergence=restart"])
def test_the_last_step_at_which_all_were_alike_stays_on_the_disk_until_they_are_again(settings: str) -> None:
    job = Job(f"workers=2 keeps=1s {settings} restarts=9")
    job.play(*ON_DISK, *ALIKE)
    assert writes(job, "1:17") == ()
    job.play(*APART)
    if settings == "divergence=restart":
        job.play("stopped n1 n2", "advance 9s", "fetch n1 n2 ready", "running n1 n2")
    else:
        assert job.reason.endswith("; step 16 stays on the disk")
        assert writes(job, "1:40") == (1,)
        next_round(job)
        job.play("step n1 n2 41", "digest n1 n2 41 4 4")
        assert "replicas may differ since step 17 of round 1; step 16 stays on the disk" in job.reason
    assert writes(job, "2:48") == (1,)
    if settings == "divergence=report":
        return
    job.play("step n1 n2 49", "digest n1 n2 49 4 4")
    assert writes(job, "2:50") == (3,)
    assert writes(job, "2:51") == (3,)


def test_a_step_that_proves_wrong_in_memory_takes_no_place_of_a_right_one_on_the_disk() -> None:
    job = Job("workers=2 keeps=1s divergence=restart restarts=9")
    job.play(*ON_DISK, *ALIKE, *APART, "stopped n1 n2", "advance 9s", "fetch n1 n2 ready", "running n1 n2")
    assert writes(job, "2:48") == (1,)
    job.play("step n1 n2 49", "digest n1 n2 49 4 4", "keep n1 n2 2:48:5", "keep n2 2:48:6")
    next_round(job)
    job.play("step n1 n2 50")
    assert writes(job, "3:60") == (1,)


def test_a_job_that_goes_on_says_so_when_a_round_resumes_and_when_it_ends() -> None:
    job = Job("workers=2 keeps=600s divergence=report restarts=3")
    job.play(*ON_DISK, *ALIKE, *APART, "keep n1 n2 1:40")
    next_round(job)
    assert (
        "resumes at step 40 from the memory of nodes n1, n2, 0 steps redone, though ranks may differ in it"
        in formed_as(job)
    )
    job.play("succeed n1 n2", "advance 1s", "write n1 n2 written", "write n1 committed")
    assert job.state() is State.SUCCEEDED
    says = "; replicas may differ since step 17 of round 1; step 16 stays on the disk"
    assert job.run.durable.reason.endswith(says)


def formed_as(job: Job) -> str:
    """Return why the last round was formed, and from where it resumes."""
    return job.records(RoundFormed)[-1].reason


@pytest.mark.parametrize("ends", ["leave", "succeed"])
def test_the_next_run_doubts_the_steps_of_one_that_has_not_ended_well(ends: str) -> None:
    job = Job("workers=2 keeps=600s divergence=report")
    job.play(*ALIKE, *APART, f"{ends} n1 n2", *(["stopped n1 n2"] if ends == "leave" else []))
    job.play("join n3 min=1 max=2 workers=4 keeps=600s divergence=report")
    durable = job.run.durable
    assert (durable.id, has_doubts(durable)) == ("e-2", ends == "leave")
    assert [may_differ(durable, KeptStep(1, step), "e-1") for step in (16, 17)] == [False, ends == "leave"]
    job.play("write n3 written of=4 found=e-1:1:16", "write n3 written of=4 found=e-1:1:40", "advance 9s")
    assert durable.doubted == (KeptStep(1, 0) if ends == "leave" else None)
    assert [point and point.step for point in formed(job)] == [None, 40]


def test_the_next_round_goes_back_behind_the_difference_and_newer_steps_never_count_again() -> None:
    job, found = diverges(*IN_MEMORY, *ALIKE, *APART)
    job.play("keep n1 n2 1:16 1:32 protected=yes")
    job.play("write n1 n2 written found=e-1:1:32", "stopped n1 n2", "advance 5s")
    assert [point and point.at for point in formed(job)] == [None, KeptStep(1, 16)]
    assert job.desired("n1").reason.startswith("replicas diverged in round 1; ")
    assert kept_of(job.run).disk.found.newest is None
    job.play("fetch n1 n2 ready", "running n1 n2", "step n1 n2 20")
    job.play("die 1s", "reconnect n1 n2", "fail n1", "stopped n1 n2", "advance 5s")
    assert [point and point.at for point in formed(job)] == [None, *[KeptStep(1, 16)] * 2]
    assert job.run.durable.restarts_used == 2
    assert found.since == KeptStep(1, 17)


def test_a_job_that_goes_back_behind_its_run_redoes_all_steps_of_the_run() -> None:
    lines = (line.replace("e-1:1:16", "e-0:4:9") for line in ON_DISK)
    job, _ = diverges(*lines, "step n1 n2 16", *APART_AT_ONCE)
    for _ in range(2):
        job.play("stopped n1 n2", "advance 5s", "running n1 n2")
        assert "resumes at step 9 from disk, 7 steps redone" in formed_as(job)
        job.play("fail n1")


def test_a_job_goes_back_to_the_same_step_however_many_differences_come_after_it() -> None:
    """The record has room for few spoiled steps, and the good one lies between two of them."""
    job, _ = diverges(*IN_MEMORY, *ALIKE, *APART, settings="divergence=restart restarts=99")
    good = [line.replace("1:16", "2:40") for line in IN_MEMORY]
    for number in range(SPOILED_MAX + 2):
        job.play("stopped n1 n2", "advance 30s", "fetch n1 n2 ready", "running n1 n2")
        job.play(*([] if number else good), *(line.replace(" 16 ", " 40 ") for line in ALIKE))
        job.play(*(line.replace(" 32 ", " 48 ") for line in APART))
    points = [None, KeptStep(1, 16), *[KeptStep(2, 40)] * (SPOILED_MAX + 1)]
    assert [point and point.at for point in formed(job)] == points
    assert len(job.run.durable.spoiled) == SPOILED_MAX


def test_a_job_that_goes_back_is_not_ended_for_getting_nowhere_and_goes_on_at_last() -> None:
    job, _ = diverges(*IN_MEMORY, *ALIKE, *APART, settings="divergence=restart restarts=99 futile=3")
    for number in range(1, 5):
        job.play("stopped n1 n2", "advance 60s", "fetch n1 n2 ready", "running n1 n2", *ALIKE, *APART)
        assert (job.run.durable.round, job.run.durable.futile) == (number + 1, number - 1)
    assert job.stops == ["diverged"] * 4
    assert "; training goes on, since the last rounds made no new step, see --max-futile-rounds" in job.reason


def test_a_difference_that_is_known_when_a_worker_fails_is_gone_behind_too() -> None:
    job = Job("workers=2 keeps=600s divergence=restart restarts=3")
    job.play("keep n1 n2 1:32", *ON_DISK, *ALIKE, APART[0])
    puppet = job.puppets["n2"]
    puppet.observed = replace(puppet.observed, steps=(32,), digests=(StateDigest(32, 0, 8), StateDigest(32, 0, 9)))
    job.play("fail n2", "stopped n1", "failed n2", "advance 5s")
    assert job.stops == ["worker_failed"]
    assert [point and point.at for point in formed(job)] == [None, KeptStep(1, 16)]


def formed(job: Job) -> list[ResumePoint | None]:
    return [record.resume for record in job.records(RoundFormed)]


def test_a_step_that_was_being_written_is_dropped_if_it_may_be_wrong() -> None:
    job = Job("workers=2 keeps=1s divergence=restart restarts=3")
    job.play(*TOO_NEW, "advance 2s")
    assert job.desired("n1").persist is not None
    job.play(*(line.replace("written", "writing") for line in OF_EARLIER_RUN), *APART_AT_ONCE)
    job.play("stopped n1 n2", "advance 20s")
    assert [point and point.step for point in formed(job)] == [None, 90]
    assert job.desired("n1").persist is None


def test_a_step_on_the_disk_that_may_make_room_for_a_newer_one_right_now_is_no_way_back() -> None:
    job = Job("workers=2 keeps=1s divergence=restart restarts=3")
    job.play(*TOO_NEW, "advance 2s", *OF_EARLIER_RUN)
    assert kept_of(job.run).disk.is_committing
    job.play(*APART_AT_ONCE)
    assert job.stops == []
    assert job.reason.endswith(UNKEPT)


def test_the_report_has_a_class_of_its_own_and_no_process_that_ended() -> None:
    job, found = diverges(*IN_MEMORY, *ALIKE, *APART)
    job.play("stopped n1 n2", "advance 5s")
    report = job.run.durable.report
    assert report is not None
    assert (report.node, report.failure.rank, report.failure.local_rank) == ("n2", 3, 1)
    status = failure_status(report)
    assert (status.cause, status.how, status.message) == (Cause.DIVERGENCE, "diverged", found.reason)
    assert "--on-divergence quarantine" in status.hint
    assert job.view().failure is not None


@pytest.mark.parametrize(
    ("settings", "apart", "charged"),
    [
        ("divergence=quarantine", APART, ["host-n2"]),
        ("divergence=restart", APART, []),
        ("divergence=quarantine", ("digest n1 n2 32 7 8",), []),
    ],
    ids=["minority", "not wanted", "no majority"],
)
def test_only_the_host_of_a_minority_is_charged(settings: str, apart: tuple[str, ...], charged: list[str]) -> None:
    job, _ = diverges(*IN_MEMORY, *ALIKE, *apart, settings=f"{settings} restarts=3")
    job.play("stopped n1 n2", "advance 5s")
    assert job.state() is State.STARTING
    judged = job.records(HostJudged)
    assert [record.node for record in judged] == charged
    for record in judged:
        assert [charge.fault for charge in record.charges] == [Fault.DIVERGENCE]
        assert "divergence (other parameters or optimizer state than most ranks at step 32)" in record.reason


def test_a_minority_of_more_ranks_than_are_named_charges_nobody_if_it_is_on_several_nodes() -> None:
    nodes = {f"n{number}": 7 if number > 2 else 9 for number in range(1, 6)}
    stage = running_job(list(nodes), "min=5 max=5 workers=8 keeps=600s divergence=quarantine restarts=3")
    stage.play("advance 1s", *(line for node in nodes for line in (f"step {node} 10", f"keep {node} 1:16")))
    stage.play("advance 1s", *(f"keep {node} 1:16 protected=yes" for node in nodes))
    for step, digests in ((16, dict.fromkeys(nodes, 7)), (32, nodes)):
        stage.play(*(f"digest {node} {step}{f' {digest}' * 8}" for node, digest in digests.items()))
    stage.play(f"stopped {' '.join(nodes)}", "advance 5s")
    report = stage.run.durable.report
    assert report is not None
    assert report.cause is Cause.DIVERGENCE
    assert not any(isinstance(record, HostJudged) for _, record in stage.past)


def test_a_node_that_is_lost_in_the_stop_is_no_cause_of_the_difference() -> None:
    job, found = diverges(*IN_MEMORY, *ALIKE, *APART, settings="divergence=restart restarts=3")
    job.play("silence n1", "stopped n2", "advance 20s")
    report = job.run.durable.report
    assert report is not None
    assert (report.cause, report.failure.message) == (Cause.DIVERGENCE, found.reason)


def test_a_minority_on_several_nodes_charges_nobody() -> None:
    job = Job("workers=4 keeps=600s divergence=quarantine restarts=3")
    job.play(*IN_MEMORY, "digest n1 n2 16 7 7 7 7", "digest n1 32 7 7 7 6", "digest n2 32 7 7 7 9")
    job.play("stopped n1 n2", "advance 5s")
    assert job.stops == ["diverged"]
    assert not any(isinstance(record, HostJudged) for _, record in job.past)
