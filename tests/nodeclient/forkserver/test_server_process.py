"""The life of the parent interpreter: who dies with whom, who lives on, and what is left behind."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeclient.host.process_state import stat_fields
from nodeclient.workers.process_tree import MARK_VARIABLE, marked, statuses
from tests.nodeclient.forkserver.support import Facts, Stage, python
from tests.support.programs import Program, await_end, wait_until, zombies

pytestmark = pytest.mark.slow

WAIT = """
import os, signal, sys, report
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
signal.signal(signal.SIGUSR2, lambda *_: sys.exit(17))
def save(*_):
    print("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
    os._exit(0)
os.wait()
report.report(pid=os.getpid())
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
while True: signal.sigtimedwait([], 0.1)
"""
"""Prints that it is there and waits for input; before that it leaves an orphan behind."""


def state_of(pid: int) -> str:
    """Return the letter of a process's state, as in proc_pid_stat(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


class Job:
    """A job whose workers wait."""

    def __init__(self, stage: Stage, preload: str = "beacon,json") -> None:
        self._stage = stage
        stage.clear()
        flags = ("--max-restarts", "9", "--max-futile-rounds", "0", "--stop-timeout", "1000")
        command = stage.command(*python(stage.write("train.py", WAIT)), preload=preload, flags=flags)
        self.node = Program(*command, environ=stage.environ(), cwd=stage.folder)

    @property
    def parent(self) -> int:
        """The youngest parent interpreter."""
        return self._stage.loaded_by[-1]

    def await_round(self, number: int) -> Facts:
        """Wait until the worker of a round is there."""
        what = f"round {number} of:\n{self.node.output}"
        reports = wait_until(
            what, lambda: next((report for report in self._stage.reports() if report.round == number), None)
        )
        assert reports.parent == self.node.pid
        return reports

    def await_waiting_fork(self) -> int:
        """Wait until a fork is there that waits for the next round; return its process id."""
        environ = Path(f"/proc/{self.parent}/environ").read_text().split("\0")
        mark = next(line for line in environ if line.startswith(MARK_VARIABLE)).partition("=")[2]

        def look() -> int | None:
            # Once it is told which worker it is, its environment has another mark.
            others = set(marked(mark)) - {self.parent}
            return next((it.pid for it in statuses() if it.pid in others and it.parent == self.node.pid), None)

        def has_answered() -> bool:
            # The process in between is a child of the parent until the parent has seen its end.
            return all(it.parent != self.parent for it in statuses()) and state_of(self.parent) == "S"

        pid = wait_until("a fork that waits", look)
        wait_until("the parent's word on it", has_answered)
        return pid

    def end_round(self, reports: Facts) -> None:
        """Make the worker fail; it must be alive."""
        os.kill(reports.facts["pid"], signal.SIGUSR2)
        self.node.await_line(rf"how +exit code 17, pid {reports.facts['pid']}$")

    def end(self, reports: Facts) -> None:
        """Let the worker succeed, and check that nothing stays behind."""
        os.kill(reports.facts["pid"], signal.SIGUSR1)
        assert self.node.wait() == 0
        assert self.node.leftovers() == []


@pytest.fixture
def job(stage: Stage) -> Iterator[Job]:
    started = Job(stage)
    try:
        yield started
    finally:
        started.node.close()


def test_a_fork_that_waits_is_the_worker_of_the_next_round(job: Job) -> None:
    first = job.await_round(1)
    waits = job.await_waiting_fork()
    job.end_round(first)
    second = job.await_round(2)
    assert second.warm
    assert second.facts["pid"] == waits
    assert job.await_waiting_fork() != waits
    job.end(second)


def test_a_fork_that_has_ended_while_it_waited_is_not_missed(job: Job) -> None:
    first = job.await_round(1)
    waits = job.await_waiting_fork()
    os.kill(waits, signal.SIGKILL)
    await_end(waits)
    wait_until("the end of all zombies", lambda: zombies(job.node.pid) == [])
    job.end_round(first)
    second = job.await_round(2)
    assert second.warm
    assert "starts cold" not in job.node.output
    job.end(second)


@pytest.mark.long
def test_a_fork_that_is_frozen_while_it_waits_is_replaced(job: Job) -> None:
    first = job.await_round(1)
    waits = job.await_waiting_fork()
    os.kill(waits, signal.SIGSTOP)
    wait_until("its stop", lambda: state_of(waits) == "T")
    job.end_round(first)
    second = job.await_round(2)
    assert second.warm
    assert second.facts["pid"] != waits
    await_end(waits)
    assert "starts cold" not in job.node.output
    job.end(second)


def test_a_parent_that_is_killed_takes_only_forks_along_that_wait_and_is_replaced(job: Job) -> None:
    first = job.await_round(1)
    assert first.warm
    parent, waits = job.parent, job.await_waiting_fork()
    os.kill(parent, signal.SIGKILL)
    await_end(parent)
    await_end(waits)
    job.end_round(first)
    second = job.await_round(2)
    assert not second.warm
    job.node.await_line(r"the interpreter ended \(killed by SIGKILL\): workers start cold until there is another one")
    wait_until("another parent", lambda: job.node.output.count("workers start warm") == 2)
    assert job.parent != parent
    job.end_round(second)
    third = job.await_round(3)
    assert third.warm
    job.end(third)


@pytest.mark.long
def test_a_parent_that_hangs_is_replaced(job: Job) -> None:
    first = job.await_round(1)
    parent = job.parent
    job.await_waiting_fork()
    os.kill(parent, signal.SIGSTOP)
    job.end_round(first)
    second = job.await_round(2)
    assert second.warm, "its fork was made before"
    job.end_round(second)
    third = job.await_round(3)
    assert not third.warm
    job.node.await_line("starts cold: .* no answer within")
    await_end(parent)
    wait_until("another parent", lambda: job.node.output.count("workers start warm") == 2)
    job.end_round(third)
    fourth = job.await_round(4)
    assert fourth.warm
    job.end(fourth)


def test_all_die_with_a_nodeclient_that_is_killed(job: Job) -> None:
    worker, waits = job.await_round(1).facts["pid"], job.await_waiting_fork()
    job.node.process.kill()
    for pid in (worker, waits, job.parent):
        await_end(pid)
    job.node.await_no_leftovers()


@pytest.mark.parametrize("signum", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.long)])
def test_a_node_that_ends_while_it_preloads_leaves_nothing(stage: Stage, signum: signal.Signals) -> None:
    stage.write("slow.py", "import time; time.sleep(1e6)")
    job = Job(stage, preload="beacon,slow")
    try:
        wait_until("the parent", lambda: stage.loaded_by)
        job.node.signal(signum)
        assert job.node.wait() == 128 + signum
        await_end(job.parent)
        job.node.await_no_leftovers()
    finally:
        job.node.close()


def test_a_warm_worker_saves_its_state_when_the_node_is_to_leave(job: Job) -> None:
    assert job.await_round(1).warm
    assert job.node.stop() == 143
    assert "saved" in job.node.lines
    assert job.node.leftovers() == []


LEAVE = '''"""Leaves processes behind in all ways, and looks in the next round what has become of them."""
import os, pathlib, signal, subprocess, sys, report

def left(new_session):
    """Fork twice, so that the child is an orphan, deaf to all that can be ignored; return its number."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        if new_session: os.setsid()
        if os.fork() == 0:
            if new_session: os.setsid()
            for signum in signal.SIGTERM, signal.SIGINT, signal.SIGHUP: signal.signal(signum, signal.SIG_IGN)
            os.write(writing, b"%d" % os.getpid())
            while True: signal.pause()
        os._exit(0)
    os.wait()
    return int(os.read(reading, 20))

pids = pathlib.Path("pids.txt")
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    program = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    clean = subprocess.Popen(["sleep", "1000"], env={})
    found = [program.pid, clean.pid, left(new_session=False), left(new_session=True)]
    pids.write_text(" ".join(map(str, found)))
    report.report(left=len(found))
    sys.exit(1)

report.report(pids=pids.read_text().split())
'''


@pytest.mark.long
def test_what_a_worker_leaves_behind_ends_with_the_node_and_the_parent_stays(stage: Stage) -> None:
    flags = ("--max-restarts", "1", "--stop-timeout", "1")
    for ended in stage.both(*python(stage.write("train.py", LEAVE)), flags=flags):
        left, last = ended.facts
        assert left == {"left": 4}
        assert len(last["pids"]) == 4
        assert not [pid for pid in last["pids"] if stat_fields(int(pid), Path("/proc"))[:1] not in ([], ["Z"])]
    assert len(stage.loaded_by) == 1


@pytest.mark.long
def test_a_fork_waits_for_ever_though_a_module_has_set_a_timeout_for_sockets(stage: Stage) -> None:
    stage.write("hasty.py", "import socket; socket.setdefaulttimeout(0.001)")
    job = Job(stage, preload="beacon,hasty")
    try:
        first = job.await_round(1)
        waits = job.await_waiting_fork()
        job.end_round(first)
        second = job.await_round(2)
        assert second.facts["pid"] == waits
        job.end(second)
    finally:
        job.node.close()
