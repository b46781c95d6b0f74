"""The block that a person reads, line by line."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from coordinatord.hints.failure_status import failure_status
from coordinatord.protocol.fields import CONSEQUENCES_MAX, LAST_LINES_MAX, LINE_MAX, MESSAGE_MAX
from coordinatord.protocol.messages import EarlyEnd, HangKind, Report, SecondaryFailure
from nodeclient.diagnosis import report_text
from tests.support.builders import a_failure, a_report

SEEN_AT = datetime(2026, 3, 4, 0, 0, 5, tzinfo=timezone(timedelta(hours=-5)))

ORDINARY = """\
---- round 3 failed: rank 5 on gpu-07 ------------------------------------------
    Traceback (most recent call last):
      File "/data/train.py", line 7, in <module>
        import apex
    ModuleNotFoundError: No module named 'apex'
root cause   rank 5 (local rank 1) on host gpu-07, node gpu-07-x4f2
when         2026-03-03 23:59:53-05:00 (12 s ago)
how          exit code 1, pid 4711
then         3 other workers failed in consequence: rank 0 on gpu-00 (exit code 134, a shell's code for
             SIGABRT), rank 8 on gpu-01 (killed by SIGABRT), 1 more
log          /logs/5/stderr.log (on gpu-07)
hint         apex is not installed for the Python that runs the script on gpu-07, or not where it looks for
             modules: is this the right environment (`which python`)?
--------------------------------------------------------------------------------"""

KILLED = """\
---- round 1 failed: rank 0 on n1 ----------------------------------------------
    (it wrote no error to stderr)
root cause   rank 0 (local rank 0) on host n1
when         2026-03-04 00:00:05-05:00
how          killed by SIGKILL, pid 4711
because      killed by the kernel's OOM killer (memory limit of its cgroup: 64 GiB)
log          none was kept, see --log-dir
hint         the memory was full: have it use less (a smaller batch, fewer DataLoader workers, no data held in
             every worker), or raise the limit (docker --memory, resources.limits.memory in Kubernetes, --mem
             in Slurm)
--------------------------------------------------------------------------------"""

NOT_STARTED = """\
---- round 1 failed: no workers on host-n1 -------------------------------------
root cause   the workers on host host-n1, node n1 were not started
when         2026-03-03 23:55:05-05:00 (5 min ago)
why          cannot start train.sh: no such program
then         another worker failed in consequence: rank 8 on n2 (exit code 1)
hint         a command was not found on host-n1: is it installed there, and on the PATH that nodeclient was
             started with?
--------------------------------------------------------------------------------"""

HUNG = """\
---- round 2 hung: rank 5 on gpu-07 --------------------------------------------
    get (queue.py:180)
    main (train.py:41)
root cause   rank 5 (local rank 1) on host gpu-07
since        2026-03-03 23:59:53-05:00 (12 s ago)
how          hung: stuck, pid 4711
because      rank 5 on node gpu-07 stands in get (train.py:41) for 12 s; the 15 others wait in all_reduce
             1,204
hint         its stack says what it waited for, such as data, a lock or a file system of gpu-07; `nodeclient
             stacks` shows all workers while a job stands. A phase that may take long is named by
             `ctx.section(name, limit=SECONDS)`; --hang-timeout sets another time, or none
--------------------------------------------------------------------------------"""

ALL_HUNG = """\
---- round 2 hung: a collective completes for none -----------------------------
root cause   no rank alone: they wait in collectives that complete for none
since        2026-03-04 00:00:05-05:00
how          hung: network, pid 4711
because      all 16 workers wait in all_reduce 1,204
hint         no worker is to blame: look for a link or a firewall that drops what the workers send each other,
             and whether they use the right interface (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME; NCCL_DEBUG=INFO
             shows it)
--------------------------------------------------------------------------------"""

TWO_SIDES = """\
---- round 3 hung: ranks 0, 2 --------------------------------------------------
root cause   ranks 0, 2, which wait in different collectives
since        2026-03-04 00:00:05-05:00
how          hung: mismatched, pid 4711
because      rank 0 on node a waits in barrier 7 and rank 2 on node b in all_reduce 7, for 12 s
hint         the ranks came to different collectives: look for one in a branch that not all take, for loops of
             different lengths, and for sizes that differ. With TORCH_DISTRIBUTED_DEBUG=DETAIL torch itself
             fails at the first one that differs. A rank that is behind in NCCL may have a GPU that failed:
             look for Xid in the log of its kernel
--------------------------------------------------------------------------------"""

LOG = "/logs/5/stderr.log"

TRACE = (
    "Traceback (most recent call last):",
    '  File "/data/train.py", line 7, in <module>',
    "    import apex",
    "ModuleNotFoundError: No module named 'apex'",
)

BLOCKS = [
    (
        a_report(
            round=3,
            node="gpu-07-x4f2",
            host="gpu-07",
            failure=a_failure(rank=5, local_rank=1, error=TRACE[-1], last_lines=TRACE, age_s=12.0, log=LOG),
            consequences=(SecondaryFailure("gpu-00", 0, 134), SecondaryFailure("gpu-01", 8, -6)),
            consequences_count=3,
        ),
        ORDINARY,
    ),
    (
        a_report(
            host="n1",
            failure=a_failure(
                exit_code=-9, message="killed by the kernel's OOM killer (memory limit of its cgroup: 64 GiB)"
            ),
        ),
        KILLED,
    ),
    (
        a_report(
            failure=a_failure(pid=0, exit_code=127, message="cannot start train.sh: no such program", age_s=300.0),
            consequences=(SecondaryFailure("n2", 8, 1),),
            consequences_count=1,
        ),
        NOT_STARTED,
    ),
    (
        a_report(
            round=2,
            node="gpu-07",
            host="gpu-07",
            failure=a_failure(
                rank=5,
                local_rank=1,
                exit_code=124,
                hang=HangKind.STUCK,
                message="rank 5 on node gpu-07 stands in get (train.py:41) for 12 s;"
                " the 15 others wait in all_reduce 1,204",
                last_lines=("get (queue.py:180)", "main (train.py:41)"),
                age_s=12.0,
            ),
        ),
        HUNG,
    ),
    (
        a_report(
            round=2,
            failure=a_failure(exit_code=124, hang=HangKind.NETWORK, message="all 16 workers wait in all_reduce 1,204"),
        ),
        ALL_HUNG,
    ),
    (
        a_report(
            round=3,
            failure=a_failure(
                exit_code=124,
                hang=HangKind.MISMATCHED,
                hang_ranks=(0, 2),
                message="rank 0 on node a waits in barrier 7 and rank 2 on node b in all_reduce 7, for 12 s",
            ),
        ),
        TWO_SIDES,
    ),
]


@pytest.mark.parametrize(
    ("report", "expected"), BLOCKS, ids=["ordinary", "killed", "not started", "hung", "all hung", "two sides"]
)
def test_the_block(report: Report, expected: str) -> None:
    assert "\n".join(report_text.lines(failure_status(report), SEEN_AT)) == expected


def test_a_shell_s_way_to_say_a_signal_is_explained() -> None:
    report = a_report(failure=a_failure(exit_code=139))
    assert "how          exit code 139, a shell's code for SIGSEGV, pid 4711" in report_text.lines(
        failure_status(report), SEEN_AT
    )


def test_it_is_said_that_the_last_lines_of_a_killed_worker_tell_nothing_of_its_end() -> None:
    note = "    (the last that it wrote to stderr before it was killed)"
    for code, error, noted in ((-9, "", True), (137, "", True), (1, "", False), (-9, "OSError: no", False)):
        report = a_report(failure=a_failure(exit_code=code, error=error, last_lines=("step 1",)))
        assert (note in report_text.lines(failure_status(report), SEEN_AT)) == noted


def test_a_path_is_on_one_line_however_long_it_is() -> None:
    log = f"/var/log/{'a' * 150}/stderr.log"
    report = a_report(host="gpu-07", failure=a_failure(log=log))
    assert f"log          {log} (on gpu-07)" in report_text.lines(failure_status(report), SEEN_AT)


def test_an_error_that_does_not_stand_right_above_is_said() -> None:
    report = a_report(failure=a_failure(error="ValueError: no", last_lines=("ValueError: no", "closing")))
    assert "error        ValueError: no" in report_text.lines(failure_status(report), SEEN_AT)


@pytest.mark.parametrize(
    ("age_s", "ago"), [(30.0, "30 s"), (119.0, "119 s"), (300.0, "5 min"), (10_000.0, "3 h"), (86_400.0, "24 h")]
)
def test_an_age_is_said_in_a_unit_that_fits(age_s: float, ago: str) -> None:
    said = "\n".join(report_text.lines(failure_status(a_report(failure=a_failure(age_s=age_s))), SEEN_AT))
    assert f"({ago} ago)" in said


@pytest.mark.parametrize(
    ("nodes", "where", "alone"), [(1, (), False), (2, (), True), (2, ("n1",), True), (2, ("n2",), False)]
)
def test_only_other_nodes_can_differ(nodes: int, where: tuple[str, ...], *, alone: bool) -> None:
    followed = tuple(SecondaryFailure(node, 1, 1, same_error=True) for node in where)
    report = a_report(
        failure=a_failure(error=TRACE[-1]),
        nodes=nodes,
        consequences=followed,
        consequences_count=len(followed),
        same_error_count=len(followed),
    )
    said = "\n".join(report_text.lines(failure_status(report), SEEN_AT))
    assert ("other nodes had not failed by then" in said) == alone


def test_the_largest_report_fits_a_screen() -> None:
    words = "word " * 200
    report = a_report(
        node="n" * 128,
        host="h" * 253,
        failure=a_failure(
            exit_code=-9,
            message=f"killed by the kernel's OOM killer ({words}"[:MESSAGE_MAX],
            error=words[:MESSAGE_MAX],
            last_lines=("x" * LINE_MAX,) * LAST_LINES_MAX,
            age_s=86_400.0,
            log="l" * 1_024,
        ),
        consequences=tuple(SecondaryFailure("n" * 128, 1, 1) for _ in range(CONSEQUENCES_MAX)),
        consequences_count=1_000_000,
        early=tuple(EarlyEnd("n" * 128, 1, 1.0) for _ in range(CONSEQUENCES_MAX)),
    )
    lines = report_text.lines(failure_status(report), SEEN_AT)
    assert len(lines) <= report_text.LINES_MAX
    assert lines[-1] == report_text.RULE
    assert sum(line.startswith("    x") for line in lines) >= LAST_LINES_MAX / 4
