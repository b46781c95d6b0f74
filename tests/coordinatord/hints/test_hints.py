"""Each known cause is recognised in what is really written when it strikes, and nothing else is."""

import re
from typing import Any

import pytest
from msgspec.structs import replace

from coordinatord.hints.hang_verdict import find_hang
from coordinatord.hints.match import RULES, _advice, cause_of, hint, rule_for
from coordinatord.hints.network import lost_connection
from coordinatord.hints.seen_worker import WAITS_FOR_DISK, SeenWorker
from coordinatord.protocol.messages import Cause, EarlyEnd, HangKind, Report
from coordinatord.protocol.stack_messages import Collective, CollectiveState, StackOrigin, WorkerStacks
from nodeclient.core.ending import GroupEnding
from nodeclient.core.exits import Exits
from nodeclient.diagnosis.diagnose import diagnose
from nodeclient.diagnosis.oom import OomKills
from tests.coordinatord.hints.samples import ABORT, ABORTED, GLOO, ORDINARY, SAMPLES, Sample, fatal, nccl, raised
from tests.support.builders import a_report


def report_on(sample: Sample) -> Report:
    """Report a sample as it comes to the nodes: clipped, and after its stderr was understood."""
    texts = diagnose(sample.exit_code, 4_711, None, sample.stderr.encode(), OomKills())
    exits = Exits(0, GroupEnding())
    exits.judge(0, sample.exit_code, replace(texts, message=sample.diagnosis.message), 0.0)
    early = (EarlyEnd("n2", 3, 0.2),) if sample.early else ()
    return a_report(failure=exits.failure(0.0), consequences_count=sample.consequences, nodes=sample.nodes, early=early)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: f"{sample.cause}: {sample.stderr[-40:]!r}")
def test_the_cause_is_recognised(sample: Sample) -> None:
    report = report_on(sample)
    assert next(cause.name for cause in RULES if _advice(cause, report) is not None) == sample.cause
    assert (said := hint(report)) is not None
    assert sample.says in said


@pytest.mark.parametrize("stderr", ORDINARY, ids=lambda stderr: stderr[-40:])
def test_an_ordinary_error_gets_no_hint(stderr: str) -> None:
    report = report_on(Sample("", stderr))
    assert hint(report) is None


@pytest.mark.parametrize("after", ["", fatal("Aborted")], ids=["abort", "and a fault handler"])
def test_an_exception_of_cpp_is_an_error_of_the_script_and_no_crash_of_the_host(after: str) -> None:
    thrown = "terminate called after throwing an instance of 'std::out_of_range'\n  what():  vector::_M_range_check\n"
    report = report_on(Sample("", thrown + after, -6))
    assert cause_of(report.failure) is Cause.USER_CODE
    assert hint(report) is None


@pytest.mark.parametrize("what", ["CUDA error: unspecified launch failure", "NCCL error: unhandled cuda error"])
def test_an_exception_of_cpp_that_a_gpu_may_have_caused_is_no_error_of_the_script(what: str) -> None:
    thrown = f"terminate called after throwing an instance of 'c10::Error'\n  what():  {what}\n"
    assert cause_of(report_on(Sample("", thrown, -6)).failure) is Cause.UNKNOWN


def test_a_gpu_that_fails_explains_a_mismatch_of_collectives() -> None:
    warned = "Is there a distributed collective mismatch in your code?\n"
    thrown = (
        "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: uncorrectable ECC error\n"
    )
    assert cause_of(report_on(Sample("", warned + thrown, -6)).failure) is Cause.DEVICE


def test_a_stack_that_python_has_not_written_is_not_referred_to() -> None:
    stderr = raised("ValueError: caught") + "Fatal Python error: Segmentation fault\n\n  <no Python frame>\n"
    assert "PYTHONFAULTHANDLER=1" in (hint(report_on(Sample("", stderr, -11))) or "")


@pytest.mark.parametrize("after", [ABORT, f"{ABORT}\n{ABORTED}"], ids=["abort", "and a fault handler"])
def test_an_exception_that_an_abort_follows_is_an_ordinary_error(after: str) -> None:
    report = report_on(Sample("", raised("ValueError: loss is nan at step 17") + after, -6))
    assert report.failure.error == "ValueError: loss is nan at step 17"
    assert hint(report) is None


def test_every_cause_has_a_true_message() -> None:
    assert {sample.cause for sample in SAMPLES} == {cause.name for cause in RULES}
    assert len({cause.name for cause in RULES}) == len(RULES)


def test_a_pattern_that_looks_ahead_over_all_of_the_text_does_so_from_its_start_only() -> None:
    """It would take quadratic time from each of its characters."""
    assert [rule.name for rule in RULES if rule.pattern and re.match(r"(\(\?s\))?\(\?=", rule.pattern)] == []


def test_no_advice_is_longer_than_four_rows() -> None:
    longest = max((hint(report_on(sample)) or "" for sample in SAMPLES), key=len)
    assert len(longest) <= 4 * 97, longest


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (HangKind.ABSENT, "`nodeclient events`"),
        (HangKind.STUCK, "a file system of host-n1, or"),
        (HangKind.BUSY, "--hang-timeout"),
        (HangKind.MISMATCHED, "TORCH_DISTRIBUTED_DEBUG=DETAIL"),
        (HangKind.NETWORK, "GLOO_SOCKET_IFNAME"),
    ],
)
def test_each_kind_of_hang_gets_advice_whatever_its_words_are(kind: HangKind, says: str) -> None:
    failure = replace(report_on(SAMPLES[0]).failure, hang=kind)
    report = a_report(failure=failure)
    assert (said := hint(report)) is not None
    assert says in said
    assert len(said) <= 4 * 97
    assert rule_for(report) is None


@pytest.mark.parametrize(
    ("state", "awaited", "says"),
    [
        ("sleeping", "", "its stack shows where it stood"),
        ("stopped", "", "a signal (SIGSTOP, SIGTSTP) has stopped it on host-n1"),
        (WAITS_FOR_DISK, "", "the kernel log of host-n1 (`dmesg`)"),
        ("sleeping", "the program rsync (process 99)", "see what it does on host-n1"),
    ],
)
@pytest.mark.parametrize("stuck", [1, 2])
def test_the_advice_about_a_stuck_worker_follows_from_its_state(
    stuck: int, state: str, awaited: str, says: str
) -> None:
    waiting = Collective("default_pg", 7, CollectiveState.WAITS, "gloo:all_reduce", "8 Float", 12.0)
    done = replace(waiting, number=6, state=CollectiveState.DONE)
    workers = [
        WorkerStacks(
            rank, StackOrigin.NONE, b"", state, "", 0.0, done if rank < stuck else waiting, "", 7, 0, waits_for=awaited
        )
        for rank in range(4)
    ]
    found = find_hang([SeenWorker("n1", worker.rank, worker) for worker in workers])
    assert found is not None
    failure = replace(report_on(SAMPLES[0]).failure, hang=found.kind, message=found.sentence)
    assert (said := hint(a_report(failure=failure))) is not None
    assert says in said
    assert len(said) <= 4 * 97


def test_only_an_end_of_a_peer_counts_as_a_lost_connection() -> None:
    telling = [sample for sample in SAMPLES if lost_connection(report_on(sample).failure)]
    assert {sample.cause for sample in telling} == {"peer gone, gloo", "peer gone, NCCL", "peer ended early"}
    timed_out = nccl("remote process exited or there was a network error", "ncclRemoteError: A call failed", "")
    assert not lost_connection(report_on(Sample("", raised(timed_out))).failure)
    own = f"[rank0]: an earlier line: {GLOO}pair.cc:537] Connection closed by peer\n" + raised("ValueError: no data")
    assert not lost_connection(report_on(Sample("", own)).failure)


@pytest.mark.parametrize(
    ("cause", "failed"),
    [
        (Cause.USER_CODE, {"error": "ValueError: loss is nan"}),
        (Cause.USER_CODE, {"error": "RuntimeError: wrong data", "final": True}),
        (Cause.HOST_MEMORY, {"message": "killed by the kernel's OOM killer (memory)", "exit_code": -9}),
        (Cause.GPU_MEMORY, {"error": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"}),
        (Cause.SIGNAL, {"exit_code": -9}),
        (Cause.SIGNAL, {"exit_code": -15}),
        (Cause.UNKNOWN, {"error": "RuntimeError: DataLoader worker (pid 7) is killed by signal: Segmentation fault. "}),
        (Cause.HANG, {"hang": HangKind.BUSY}),
        (Cause.SIGNAL, {"hang": HangKind.STUCK, "message": "rank 1 on node b has been stopped by a signal for 24 s"}),
        (Cause.DEVICE, {"error": "torch.AcceleratorError: CUDA error: unspecified launch failure", "xids": (13, 79)}),
        (Cause.DEVICE, {"hang": HangKind.STUCK, "xids": (79,)}),
        (Cause.DEVICE, {"error": "RuntimeError: No CUDA GPUs are available"}),
        (Cause.USER_CODE, {"error": "torch.AcceleratorError: CUDA error: an illegal memory access", "xids": (31,)}),
        (Cause.NETWORK, {"error": f"RuntimeError: [{GLOO}pair.cc:537] Connection closed by peer [10.0.0.2]:4711"}),
        (Cause.NETWORK, {"error": "urllib.error.URLError: <urlopen error [Errno 111] Connection refused>"}),
        (Cause.DISK, {"error": "OSError: [Errno 28] No space left on device"}),
        (Cause.DISK, {"error": "OSError: [Errno 116] Stale file handle"}),
        (Cause.UNKNOWN, {"error": "OSError: [Errno 5] Input/output error"}),
        (Cause.DISK, {"error": "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 64 vs 16"}),
        (Cause.UNKNOWN, {"exit_code": 3}),
    ],
)
def test_the_class_of_a_cause_follows_from_what_the_node_found(cause: Cause, failed: dict[str, Any]) -> None:
    nothing = {"exit_code": 1, "message": "", "error": "", "last_lines": ()}
    assert cause_of(replace(a_report().failure, **nothing | failed)) is cause
