"""The kernel tells of a process without asking it."""

import os
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeclient.host.process_state import HALTED, ProcessState, catches, is_stopped, sample_process, state_between

STAT = "77 (a ) b) {state} 1 77 77 0 -1 4194304 1 0 0 0 {user} {system} 0 0 20 0 1 0 5 1 1"


def fake(proc: Path, state: str, wchan: str | None) -> Path:
    (proc / "77").mkdir()
    hertz = os.sysconf("SC_CLK_TCK")
    (proc / "77" / "stat").write_text(STAT.format(state=state, user=2 * hertz, system=hertz))
    if wchan is not None:
        (proc / "77" / "wchan").write_text(wchan)
    return proc


def sampled(proc: Path) -> ProcessState:
    """Return what the kernel tells of process 77."""
    found = sample_process(77, proc)
    assert found is not None
    return found


def test_a_stopped_process_is_halted_and_has_used_its_time(tmp_path: Path) -> None:
    found = sampled(fake(tmp_path, "T", "do_signal_stop"))
    assert (found.state, found.waits_in, found.cpu_s) == ("stopped", "do_signal_stop", 3.0)
    assert found.state in HALTED


@pytest.mark.parametrize(("state", "stopped"), [("T", True), ("t", False), ("S", False), ("Z", False)])
def test_a_process_that_is_just_looked_at_is_not_stopped(tmp_path: Path, state: str, stopped: bool) -> None:
    assert is_stopped(77, fake(tmp_path, state, None)) is stopped
    assert not is_stopped(78, tmp_path), "it is gone"


@pytest.mark.parametrize("thread", ["77", "80"], ids=["main", "other"])
def test_what_children_of_any_thread_use_counts_as_its_own(tmp_path: Path, thread: str) -> None:
    proc = fake(tmp_path, "S", None)
    io = "rchar: 100\nwchar: 20\nsyscr: 9\nsyscw: 9\nread_bytes: 4000\nwrite_bytes: 8000\ncancelled_write_bytes: 7\n"
    (proc / "77" / "io").write_text(io)
    (proc / "77" / "task" / thread).mkdir(parents=True)
    (proc / "77" / "task" / thread / "children").write_text("78 79 ")
    (proc / "78").mkdir()
    (proc / "78" / "stat").write_text((proc / "77" / "stat").read_text())
    (proc / "78" / "io").write_text("rchar: 3\nwchar: 0\n")
    found = sampled(proc)
    assert (found.cpu_s, found.io_bytes) == (6.0, 12_123)


def test_where_it_waits_may_not_be_known(tmp_path: Path) -> None:
    found = sampled(fake(tmp_path, "R", "0"))
    assert (found.state, found.waits_in) == ("running", "")
    (tmp_path / "77" / "wchan").unlink()
    assert sampled(tmp_path).waits_in == ""


def test_a_process_that_is_gone_is_none() -> None:
    assert sample_process(2**22 + 1) is None
    assert not catches(2**22 + 1, signal.SIGTERM)


def test_a_handled_signal_is_seen() -> None:
    assert catches(os.getpid(), signal.SIGINT)
    assert not catches(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("main", "helper", "child", "wants", "waits"),
    [
        ("S", "S", "S", False, False),
        ("R", "S", "S", True, False),
        ("S", "R", "S", True, False),
        ("S", "S", "R", True, False),
        ("T", "T", "D", False, True),
        ("S", "D", "S", False, True),
    ],
)
def test_a_thread_that_would_run_if_a_cpu_were_free_or_waits_for_a_disk_is_seen(
    tmp_path: Path, main: str, helper: str, child: str, *, wants: bool, waits: bool
) -> None:
    proc = fake(tmp_path, main, None)
    threads = {("77", "77"): main, ("77", "80"): helper, ("78", "78"): child}
    for (process, thread), state in threads.items():
        (proc / process / "task" / thread).mkdir(parents=True)
        (proc / process / "task" / thread / "stat").write_text(STAT.format(state=state, user=1, system=1))
    (proc / "77" / "task" / "77" / "children").write_text("78 ")
    (proc / "78" / "stat").write_text(STAT.format(state=child, user=1, system=1))
    found = sampled(proc)
    assert (found.wants_cpu, found.waits_for_disk) == (wants, waits)


@pytest.mark.parametrize("wchan", ["request_wait_answer", "__fuse_simple_request", "fuse_fsync_common"])
def test_who_sleeps_in_a_file_system_of_another_program_waits_for_it(tmp_path: Path, wchan: str) -> None:
    found = sampled(fake(tmp_path, "S", wchan))
    assert (found.state, found.waits_in) == ("waiting for IO", wchan)


IDLE = ProcessState("sleeping", "", 0.0, 0, wants_cpu=False, waits_for_disk=False)
STARVES = replace(IDLE, wants_cpu=True)
FLUSHES = replace(IDLE, waits_for_disk=True)


@pytest.mark.parametrize(
    ("before", "after", "state"),
    [
        (IDLE, IDLE, "sleeping"),
        (STARVES, STARVES, "running"),
        (STARVES, IDLE, "sleeping"),
        (FLUSHES, FLUSHES, "waiting for IO"),
        (IDLE, FLUSHES, "sleeping"),
        (replace(FLUSHES, wants_cpu=True), replace(FLUSHES, wants_cpu=True), "running"),
        (STARVES, replace(STARVES, state="stopped"), "stopped"),
        (None, FLUSHES, "sleeping"),
        (IDLE, None, ""),
    ],
)
def test_what_others_do_for_a_process_that_sleeps_is_what_it_does(
    before: ProcessState | None, after: ProcessState | None, state: str
) -> None:
    assert state_between(before, after) == state
