"""The block that a person reads, line by line."""

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from msgspec.structs import replace

from coordinatord.hints.failure_status import failure_status
from coordinatord.protocol.fields import CONSEQUENCES_MAX, LAST_LINES_MAX, LINE_MAX, SENTENCE_MAX
from coordinatord.protocol.messages import Cause, EarlyEnd, HangKind, LastOutput, Report, SecondaryFailure, Straggler
from nodeclient.diagnosis import report_text
from tests.support.builders import LOST_PEER, a_failure, a_report
from tests.support.golden import FOLDER, compare

SEEN_AT = datetime(2026, 3, 4, 0, 0, 5, tzinfo=timezone(timedelta(hours=-5)))

LOG = "/logs/5/stderr.log"

TRACE = (
    "Traceback (most recent call last):",
    '  File "/data/train.py", line 7, in <module>',
    "    import apex",
    "ModuleNotFoundError: No module named 'apex'",
)

BLOCKS = {
    "ordinary": a_report(
        round=3,
        node="gpu-07-x4f2",
        host="gpu-07",
        failure=a_failure(rank=5, local_rank=1, error=TRACE[-1], last_lines=TRACE, age_s=12.0, log=LOG),
        consequences=(SecondaryFailure("gpu-00", 0, 134), SecondaryFailure("gpu-01", 8, -6)),
        consequences_count=3,
    ),
    "excused": a_report(
        failure=a_failure(error=TRACE[-1], last_lines=TRACE, log=LOG),
        cause=Cause.USER_CODE,
        excused_by="n2",
    ),
    "killed": a_report(
        host="n1",
        failure=a_failure(
            exit_code=-9, message="killed by the kernel's OOM killer (memory limit of its cgroup: 64 GiB)"
        ),
    ),
    "not_started": a_report(
        failure=a_failure(pid=0, exit_code=127, message="cannot start train.sh: no such program", age_s=300.0),
        consequences=(SecondaryFailure("n2", 8, 1),),
        consequences_count=1,
    ),
    "left_early": a_report(
        failure=a_failure(error=LOST_PEER, last_lines=TRACE, age_s=1.0, log=LOG),
        early=(EarlyEnd("n2", 3, 0.2),),
        early_output=LastOutput(("no data is left",), LOG),
        cause=Cause.USER_CODE,
    ),
    "hung": a_report(
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
            log=LOG,
        ),
        cause=Cause.HANG,
    ),
    "all_hung": a_report(
        round=2,
        failure=a_failure(exit_code=124, hang=HangKind.NETWORK, message="all 16 workers wait in all_reduce 1,204"),
    ),
    "two_sides": a_report(
        round=3,
        failure=a_failure(
            exit_code=124,
            hang=HangKind.MISMATCHED,
            hang_ranks=(0, 2),
            message="rank 0 on node a waits in barrier 7 and rank 2 on node b in all_reduce 7, for 12 s",
        ),
    ),
    "all_ranks": a_report(
        failure=a_failure(rank=1, local_rank=1, error="NameError: name 'lr' is not defined", log=LOG),
        consequences=tuple(SecondaryFailure("n1", rank, -15, same_error=True) for rank in (0, 2, 3)),
        consequences_count=3,
        same_error_count=3,
        workers=4,
    ),
    "some_ranks": a_report(
        failure=a_failure(rank=1, local_rank=1, error="NameError: name 'lr' is not defined", log=LOG),
        consequences=(SecondaryFailure("n1", 0, -15, same_error=True), SecondaryFailure("n2", 3, 1)),
        consequences_count=2,
        same_error_count=1,
        workers=4,
    ),
    "diverged": a_report(
        round=2,
        failure=a_failure(
            rank=3,
            pid=0,
            exit_code=65,
            diverged=True,
            message="replicas diverged after step 16, by step 32: rank 3 on node n2 has other parameters or optimizer"
            " state than 3 ranks that should have the same; the next round goes back to step 16",
        ),
    ),
}


def block(report: Report) -> list[str]:
    """Return the lines of a report that is read at `SEEN_AT`."""
    return report_text.lines(failure_status(report), SEEN_AT)


@pytest.mark.parametrize("name", BLOCKS)
def test_the_block(name: str, *, rewrite: bool) -> None:
    lines = block(BLOCKS[name])
    compare(FOLDER / "reports" / f"{name}.txt", "\n".join([*lines, ""]), rewrite=rewrite)


@pytest.mark.parametrize(
    ("output", "said"),
    [(None, None), (LastOutput((), ""), "    (nothing)"), (LastOutput(("no data",), ""), "    no data")],
)
def test_that_a_worker_which_left_early_wrote_nothing_is_said_only_if_it_is_known(
    output: LastOutput | None, said: str | None
) -> None:
    lines = block(replace(BLOCKS["left_early"], early_output=output))
    whose = "    (rank 3 on n2, which exited with 0, wrote this to stderr last)"
    assert (lines[lines.index(whose) + 1] if whose in lines else None) == said


LONG_PATH = f"/var/log/{'a' * 150}/stderr.log"

SHELL = "how          exit code 139, a shell's code for SIGSEGV, pid 4711"


@pytest.mark.parametrize(
    ("facts", "caption", "line"),
    [
        (
            {"log": LONG_PATH},
            "it wrote no error to stderr; its stdout may say more",
            f"log          {LONG_PATH} (on n)",
        ),
        ({"exit_code": 139}, "it wrote no error to stderr", SHELL),
        ({"exit_code": -11}, "it wrote no error to stderr", ""),
        ({"error": "NameError: x"}, "it wrote no error to stderr", "error        NameError: x"),
        ({"message": "its cause"}, "it wrote no error to stderr", ""),
        ({"exit_code": -9, "last_lines": ("step 1",)}, "the last that it wrote to stderr before it was killed", ""),
        ({"exit_code": 137, "last_lines": ("step 1",)}, "the last that it wrote to stderr before it was killed", ""),
        (
            {"exit_code": 1, "message": "its last output: step 1", "last_lines": ("step 1",)},
            "the last that it wrote to stderr",
            "    step 1",
        ),
        (
            {"exit_code": 1, "last_lines": ("[W1129 10:00:00.1 socket.cpp:7] Unable to resolve",)},
            "it wrote no error to stderr, only this; its stdout may say more",
            "    [W1129 10:00:00.1 socket.cpp:7] Unable to resolve",
        ),
        ({"exit_code": -9, "error": "OSError: no", "last_lines": ("step 1",)}, "", "error        OSError: no"),
        ({"error": "OSError: no", "last_lines": ("OSError: no", "closing")}, "", "error        OSError: no"),
    ],
)
def test_what_is_known_of_a_failure_is_said_on_one_line(facts: dict[str, Any], caption: str, line: str) -> None:
    lines = block(a_report(host="n", failure=a_failure(**facts)))
    assert [each for each in lines if each.startswith("    (")] == ([f"    ({caption})"] if caption else [])
    assert line in (*lines, "")


@pytest.mark.parametrize(
    ("age_s", "ago"), [(30.0, "30 s"), (119.0, "119 s"), (300.0, "5 min"), (10_000.0, "3 h"), (86_400.0, "24 h")]
)
def test_an_age_is_said_in_a_unit_that_fits(age_s: float, ago: str) -> None:
    said = "\n".join(block(a_report(failure=a_failure(age_s=age_s))))
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
    said = "\n".join(block(report))
    assert ("other nodes had not failed by then" in said) == alone


def test_the_largest_report_fits_a_screen() -> None:
    """Names and words of this length fill lines badly."""
    node, words = "n" * 128, f"{'w' * 49} " * 20
    report = a_report(
        node=node,
        host="h" * 253,
        failure=a_failure(
            message=words[:SENTENCE_MAX],
            error=f"Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, {words}"[:SENTENCE_MAX],
            last_lines=("x" * LINE_MAX,) * LAST_LINES_MAX,
            age_s=86_400.0,
            log="l" * 1_024,
        ),
        consequences=(SecondaryFailure(node, 1, -11),) * CONSEQUENCES_MAX,
        consequences_count=1_000_000,
        early=(EarlyEnd(node, 1, 1.0),) * CONSEQUENCES_MAX,
        step=9,
        stragglers=(Straggler(node, 1, 7),) * CONSEQUENCES_MAX,
        cause=Cause.HANG,
    )
    lines = block(report)
    assert len(lines) <= report_text.LINES_MAX
    assert lines[-1] == report_text.RULE
    assert sum(line.startswith("    x") for line in lines) >= LAST_LINES_MAX / 4


@pytest.mark.parametrize(
    ("early", "room"),
    [((), LAST_LINES_MAX - 9), ((EarlyEnd("n2", 3, 0.2),), report_text.WAITING_LINES_MAX)],
    ids=["failed", "left early"],
)
def test_of_too_many_lines_those_from_before_a_traceback_go_first(early: tuple[EarlyEnd, ...], room: int) -> None:
    trace = (TRACE[0], *["    frame"] * (room - len(TRACE)), *TRACE[1:])
    before = (report_text.CONTEXT_CAPTION, *["a warning"] * 8)
    message = f"{'w' * 49} " * 20
    failure = a_failure(error=LOST_PEER, last_lines=(*trace, *before), message=message[:SENTENCE_MAX])
    consequences = (SecondaryFailure("n" * 128, 1, -11),) * CONSEQUENCES_MAX
    report = a_report(failure=failure, early=early, consequences=consequences, consequences_count=1_000_000)
    shown = [line.strip() for line in block(report)]
    assert TRACE[0] in shown
    assert "a warning" not in shown


def test_of_several_nodes_on_one_terminal_the_first_shows_a_report() -> None:
    first, second = (a_report(round=number, failure=a_failure(last_lines=TRACE)) for number in (1, 2))
    texts = ["".join(f"{line}\n" for line in block(report)).encode() for report in (first, second)]
    reports = report_text.SharedReports()
    middle = texts[0].index(b"root cause")
    assert reports.without_repeated(("n1", 2), b"a\n" + texts[0][:middle]) == b"a\n" + texts[0][:middle]
    assert reports.without_repeated(("n2", 2), b"b\n" + texts[0][:middle]) == b"b\n"
    assert reports.without_repeated(("n2", 1), b"of a worker\n") == b"of a worker\n", "which has another stream"
    assert reports.without_repeated(("n1", 2), texts[0][middle:]) == texts[0][middle:]
    assert reports.without_repeated(("n2", 2), texts[0][middle:] + b"c\n") == b"c\n"
    assert reports.without_repeated(("n2", 2), texts[1]) == texts[1], "another round"
    assert reports.without_repeated(("n1", 2), texts[1]) == b""
