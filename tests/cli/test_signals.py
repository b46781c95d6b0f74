"""Which signal workers get when their node gets one, with each way to start them: the same as under torchrun."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.programs import BIN, Program, clean_environ

pytestmark = pytest.mark.slow

HANDED_ON = ("--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2")

SCRIPT = """
import os, signal, sys
def say(text): os.write(1, f"{text}\\n".encode())
def note(signum, _):
    say(f"saving for {signal.Signals(signum).name}")
    sys.exit(0)
for signum in (signal.SIGTERM, signal.SIGUSR1) if "handle" in sys.argv else ():
    signal.signal(signum, note)
try:
    say("training")
    while True: signal.sigtimedwait([], 0.1)  # a signal may come just before a pause, and is not handled then
except KeyboardInterrupt:
    say("saving for Ctrl-C")
finally:
    say("the end")
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    """Return the path of a script that prints the signals that it gets."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


@contextmanager
def training(*command: str) -> Iterator[Program]:
    """Start a nodeclient, wait until its worker trains, and end it after the test."""
    with Program(BIN / "nodeclient", *command, environ=clean_environ()) as node:
        node.await_line("training")
        yield node


COMMANDS = {
    "join, warm": ("join", "--standalone", "--preload", "json", *HANDED_ON, "--", sys.executable),
    "join, in a shell": ("join", "--standalone", *HANDED_ON, "--", "sh", "-c", '"$@"; exit 3', "sh", sys.executable),
    "run": ("run", *HANDED_ON),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_is_ctrl_c_to_the_workers(command: str, script: str) -> None:
    with training(*COMMANDS[command], script) as node:
        node.signal(signal.SIGINT)
        node.await_line("saving for Ctrl-C")
        node.await_line("the end")
        assert node.wait() == 128 + signal.SIGINT
        node.await_line("SIGINT: leaving; workers get up to 30 s to save")


PLAIN = "import signal\nprint('training', flush=True)\nwhile True: signal.sigtimedwait([], 0.1)\n"

CAUGHT = """
import signal, sys, traceback
try:
    print("training", flush=True)
    while True: signal.sigtimedwait([], 0.1)
except KeyboardInterrupt:
    traceback.print_exc()
    sys.exit(1)
"""


@pytest.mark.parametrize(
    "flags", [pytest.param((), id="one", marks=pytest.mark.long), pytest.param(("--nproc-per-node", "2"), id="two")]
)
@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_prints_no_traceback_of_a_worker_that_it_ends(
    command: str, flags: tuple[str, ...], tmp_path: Path
) -> None:
    plain = tmp_path / "plain.py"
    plain.write_text(PLAIN)
    first, *others = COMMANDS[command]
    with training(first, *flags, *others, str(plain)) as node:
        for rank in range(2) if flags else ():
            node.await_line(f"rank {rank}.*training")
        node.signal(signal.SIGINT)
        assert node.wait() == 128 + signal.SIGINT
        assert "Traceback" not in node.output
        assert "KeyboardInterrupt" not in node.output


def test_a_traceback_that_a_script_prints_itself_is_shown(tmp_path: Path) -> None:
    caught = tmp_path / "caught.py"
    caught.write_text(CAUGHT)
    with training("run", str(caught)) as node:
        node.signal(signal.SIGINT)
        assert node.wait() == 128 + signal.SIGINT
        assert "KeyboardInterrupt" in node.output


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1])
def test_workers_get_the_very_signal(signum: signal.Signals, script: str) -> None:
    with training("run", script, "handle") as node:
        node.signal(signum)
        node.await_line(f"saving for {signum.name}")
        assert node.wait() == 128 + signum


def test_who_does_not_handle_it_dies_of_it(script: str) -> None:
    with training(*COMMANDS["run"], script, "handle") as node:
        node.signal(signal.SIGUSR2)
        assert node.wait() == 128 + signal.SIGUSR2
        assert "saving" not in node.output


def test_the_workers_of_other_nodes_get_sigterm(cluster: Cluster, script: str) -> None:
    nodes = [
        cluster.join(name, "--nnodes", "2", *HANDED_ON, command=(sys.executable, script, "handle")) for name in "ab"
    ]
    for node in nodes:
        node.await_line("training")
    cluster.await_state(state="running", world_size=2)
    nodes[0].signal(signal.SIGUSR1)
    nodes[0].await_line("saving for SIGUSR1")
    nodes[1].await_line("saving for SIGTERM")
    assert nodes[0].wait() == 128 + signal.SIGUSR1
