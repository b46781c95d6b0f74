"""The mark finds and kills what carries it, and nothing else."""

# ruff: noqa: S607  # the tools are found as a person would find them

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from nodeclient.workers.process_tree import MARK_VARIABLE, UnkillableError, kill_marked, marked, signal_groups, statuses
from tests.support.programs import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def mark() -> Iterator[str]:
    token = secrets.token_hex(16)
    yield token
    kill_marked(token)


def _start(script: str, environ: dict[str, str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        ["sh", "-c", script],
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    return process


def _reap(process: subprocess.Popen[str]) -> int:
    assert process.stdout
    process.stdout.close()
    return process.wait()


MANY = """
import os, resource, signal
from nodeclient.workers.process_tree import kill_marked, pidfds_by_mark
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody has to reap them
mark = os.environ["COORDINATORD_MARK"]
for _ in range(256):
    if not os.fork():
        signal.pause()
for pidfd in pidfds_by_mark([mark], {})[mark].values():
    os.close(pidfd)
kill_marked(mark)
assert not pidfds_by_mark([mark], {})[mark].keys() - {os.getpid()}
"""
"""Makes more processes than it may have descriptors, and kills them."""


def test_more_processes_than_descriptors_are_killed(mark: str) -> None:
    process = subprocess.run([sys.executable, "-S", "-c", MANY], env={**os.environ, MARK_VARIABLE: mark}, check=False)
    assert process.returncode == 0
    assert marked(mark) == []


LEADERLESS = """
import ctypes, os, platform, threading, time
threading.Thread(target=time.sleep, args=[1e6]).start()
print("ready", flush=True)
exit_thread = {"x86_64": 60, "aarch64": 93}[platform.machine()]
ctypes.CDLL(None).syscall(exit_thread, 0)
"""
"""A process whose main thread ends and whose other thread lives, as one that is killed does in a driver for a while."""


def test_a_process_lives_until_its_last_thread_has_ended(mark: str) -> None:
    process = _start(f"exec {sys.executable} -c '{LEADERLESS}'", {MARK_VARIABLE: mark})

    def status() -> str:
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]

    wait_until("the end of its main thread", lambda: status() == "Z")
    assert [status.dead for status in statuses() if status.pid == process.pid] == [False]
    assert marked(mark) == [process.pid]
    kill_marked(mark)
    assert [status.dead for status in statuses() if status.pid == process.pid] == [True]
    assert marked(mark) == []
    _reap(process)


def test_what_carries_another_mark_or_none_is_left_alone(mark: str) -> None:
    others = [
        _start("echo ready; exec sleep 1000", environ)
        for environ in (
            {},
            {MARK_VARIABLE: mark + "0"},
            {MARK_VARIABLE: mark[:-1]},
            {"OTHER": f"{MARK_VARIABLE}={mark}"},
        )
    ]
    own = _start("echo ready; exec sleep 1000", {MARK_VARIABLE: mark})
    kill_marked(mark)
    assert _reap(own) == -9
    for other in others:
        assert other.poll() is None
        other.kill()
        assert _reap(other) == -9


def test_a_zombie_does_not_count_as_alive(mark: str) -> None:
    process = _start("echo ready; kill -9 $$", {MARK_VARIABLE: mark})
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert any(status.pid == process.pid and status.dead for status in statuses())
    assert marked(mark) == []
    kill_marked(mark, frozenset({process.pid}))
    assert _reap(process) == -9


def test_what_outlives_the_bound_is_named(mark: str) -> None:
    process = _start("echo ready; exec sleep 1000", {MARK_VARIABLE: mark})
    with pytest.raises(UnkillableError, match=rf"still there 0 s after SIGKILL: {process.pid};"):
        kill_marked(mark, timeout_s=0)
    assert _reap(process) == -9


def test_a_name_with_blanks_and_parentheses_is_read_right(mark: str) -> None:
    process = _start("printf ') Z 1 (' > /proc/$$/comm; echo ready; read line < /dev/zero", {MARK_VARIABLE: mark})
    own = [status for status in statuses() if status.pid == process.pid]
    assert [(status.parent, status.group, status.dead) for status in own] == [(os.getpid(), process.pid, False)]
    kill_marked(mark)
    assert _reap(process) == -9


HEEDING = """
import os, signal, sys
for name in sys.argv[1:]:
    signal.signal(getattr(signal, name), lambda *_: None)
ready, say = os.pipe()
child = os.fork()
if not child:
    for name in sys.argv[1:]:
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    os.write(say, b".")
    while True: signal.pause()
os.read(ready, 1)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # until KeyboardInterrupt is caught
print(child, flush=True)
while True:
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        print(os.waitpid(child, 0)[1])
        break
    except KeyboardInterrupt:
        pass
"""
"""Heeds some signals, whose default a child of it has, and prints what ended that child."""


@pytest.mark.parametrize(
    ("heeded", "signum", "shared"),
    [
        ("SIGUSR1", signal.SIGUSR1, False),
        ("SIGHUP SIGTERM", signal.SIGHUP, False),
        ("SIGTERM", signal.SIGTERM, False),
        ("SIGTERM SIGINT", signal.SIGINT, False),
        ("SIGINT", signal.SIGINT, True),  # as every Python does
        ("", signal.SIGINT, True),
    ],
)
def test_who_heeds_a_signal_gets_it_alone_and_else_all_do(heeded: str, signum: int, shared: bool, mark: str) -> None:
    program = [sys.executable, "-c", HEEDING, *heeded.split()]
    environ = {**os.environ, MARK_VARIABLE: mark}
    with subprocess.Popen(program, env=environ, stdout=subprocess.PIPE, start_new_session=True, text=True) as process:
        assert process.stdout
        child = int(process.stdout.readline())
        signal_groups({process.pid}, signum)
        with suppress(ProcessLookupError):  # it has ended by the signal, as it should where that is shared
            os.kill(child, signal.SIGCONT if shared else signal.SIGKILL)
        ended_by = process.stdout.readline().strip()
        kill_marked(mark)
    assert ended_by == str(int(signum if shared else signal.SIGKILL))
