"""What a process waits for outside its job is seen from outside: a program, a lock, its own streams, or a terminal."""

import fcntl
import os
import pty
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nodeclient.host.awaited import awaited_outside
from nodeclient.host.process_state import sample_process
from tests.support.programs import wait_until

pytestmark = pytest.mark.slow

PAUSE = "sleep", "1000"

RUNS = {
    "run": f"subprocess.run({PAUSE})",
    "run, for a time": f"subprocess.run({PAUSE}, timeout=900)",
    "run, for its output": f"subprocess.check_output({PAUSE})",
    "run, for both outputs": f"subprocess.run({PAUSE}, capture_output=True)",
    "reads lines": f"list(subprocess.Popen({PAUSE}, stdout=subprocess.PIPE).stdout)",
    "writes to it": f"subprocess.run({PAUSE}, input=bytes(1 << 20))",
    "system": "os.system('exec sleep 1000')",
    "popen": "os.popen('exec sleep 1000').read()",
    "any child": f"subprocess.Popen({PAUSE}); os.wait()",
    "looks again and again": f"""
child = subprocess.Popen({PAUSE})
while child.poll() is None:
    time.sleep(900)
""",
    "selects": f"select.select([subprocess.Popen({PAUSE}, stdout=subprocess.PIPE).stdout], [], [])",
    "pauses by select": f"""
child = subprocess.Popen({PAUSE})
while child.poll() is None:
    select.select([], [], [], 900)
""",
    "asks for events": f"""
import asyncio
async def read():
    child = await asyncio.create_subprocess_exec(*{PAUSE}, stdout=subprocess.PIPE)
    await child.stdout.read()
asyncio.run(read())
""",
}

FORKS = """
if os.fork() == 0:
    time.sleep(900)
"""

OWN = {
    "somebody to connect": ("csk_accept", "socket.create_server(('127.0.0.1', 0)).accept()"),
    "a lock of its own": ("futex", "threading.Event().wait()"),
    "its own pipe": ("pipe_write", "read, write = os.pipe(); os.write(write, bytes(1 << 20))"),
    "what a fork loads": ("pipe_read", "read, write = os.pipe()\n" + FORKS + "os.read(read, 1)"),
    "a pause beside a fork": ("nanosleep", FORKS + "time.sleep(900)"),
    "an answer beside a program": (
        "unix_stream",
        f"""
child = subprocess.Popen({PAUSE}, stdout=subprocess.PIPE)
pair = socket.socketpair()
pair[0].recv(1)
""",
    ),
    "data beside a program": (
        "poll",
        f"""
child = subprocess.Popen({PAUSE}, stdout=subprocess.PIPE)
read, write = os.pipe()
poll = select.poll()
poll.register(read)
poll.poll()
""",
    ),
}

IMPORTS = "import fcntl, os, select, socket, subprocess, sys, threading, time\n"


class Starter:
    """Starts processes, of which nothing is left."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def start(self, script: str, stdin: int = subprocess.DEVNULL, stdout: int = subprocess.DEVNULL) -> int:
        """Start a script; return its process id."""
        words = (sys.executable, "-S", "-c", IMPORTS + script)
        process = subprocess.Popen(words, stdin=stdin, stdout=stdout, start_new_session=True)
        self._stack.callback(process.wait)
        self._stack.callback(os.killpg, process.pid, 9)
        return process.pid


@pytest.fixture
def starter() -> Iterator[Starter]:
    with ExitStack() as stack:
        yield Starter(stack)


def awaited(pid: int, *workers: int, store_port: int = 0) -> str:
    """Return what a process waits for that is no part of a job with these workers and this port of its store."""
    state = sample_process(pid)
    return "" if state is None else awaited_outside(pid, state.waits_in, workers, store_port)


def await_word(pid: int, start: str) -> str:
    """Wait until a process is seen to wait for something outside its job; return for what."""

    def found() -> str:
        said = awaited(pid)
        return said if said.startswith(start) else ""

    return wait_until(f"process {pid} to wait for {start}", found)


@pytest.mark.parametrize("script", RUNS.values(), ids=RUNS)
def test_who_waits_for_a_program_is_seen_to_do_so(starter: Starter, script: str) -> None:
    said = await_word(starter.start(script), "the program sleep (process ")
    child = int(said.removesuffix(")").rpartition(" ")[2])
    assert Path(f"/proc/{child}/comm").read_text() == "sleep\n"


def test_who_joins_a_process_waits_for_it(starter: Starter) -> None:
    await_word(starter.start(FORKS + "else:\n    os.wait()"), "the program ")


@pytest.mark.parametrize(("where", "script"), OWN.values(), ids=OWN)
def test_who_waits_for_a_part_of_itself_waits_for_nothing_outside(starter: Starter, where: str, script: str) -> None:
    pid = starter.start(script)

    def stands() -> bool:
        state = sample_process(pid)
        return state is not None and where in state.waits_in

    wait_until(f"process {pid} to stand in {where}", stands)
    assert awaited(pid) == ""


@pytest.mark.parametrize("call", ["flock", "lockf"])
def test_a_lock_is_outside_unless_a_worker_has_it(starter: Starter, tmp_path: Path, call: str) -> None:
    with (tmp_path / "lock").open("w") as lock:
        getattr(fcntl, call)(lock, fcntl.LOCK_EX)
        pid = starter.start(f"fcntl.{call}(open({lock.name!r}, 'w'), fcntl.LOCK_EX)")
        assert await_word(pid, "a lock of the program ").endswith(f" (process {os.getpid()})")
        assert awaited(pid, os.getpid()) == ""
        assert awaited(pid, os.getppid()) == "", "a worker has started the process that has the lock"


def test_who_is_not_read_or_gets_nothing_waits_for_the_other_end(starter: Starter) -> None:
    read, write = os.pipe()
    try:
        await_word(starter.start("os.read(0, 1)", stdin=read), "its input")
        await_word(starter.start("os.write(1, bytes(1 << 20))", stdout=write), "its output to be read")
    finally:
        os.close(read)
        os.close(write)


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
@pytest.mark.parametrize("timeout", ["None", "900"])
def test_who_waits_for_a_server_is_seen_unless_it_is_the_store_of_the_job(
    starter: Starter, host: str, shown: str, timeout: str
) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        port = server.getsockname()[1]
        pid = starter.start(f"socket.create_connection(({host!r}, {port}), timeout={timeout}).recv(1)")
        assert await_word(pid, "an answer ") == f"an answer from {shown}:{port}"
        assert awaited(pid, store_port=port) == ""


def test_who_asks_at_a_terminal_or_is_stopped_there_waits_for_it(starter: Starter) -> None:
    leader, terminal = pty.openpty()
    try:
        await_word(starter.start("input()", stdin=terminal), "its terminal")
        os.write(leader, b"\x13")  # Ctrl-S
        await_word(starter.start("os.write(1, b'x')", stdout=terminal), "its terminal")
    finally:
        os.close(leader)
        os.close(terminal)
