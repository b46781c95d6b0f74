"""`nodeclient up` with an `ssh` that runs the commands on this host, in directories of their own."""

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from coordinatord.runtime import __version__
from tests.support.programs import BIN, Program, clean_environ, kill_quietly, run, wait_until
from tests.support.saving import SAVING

pytestmark = pytest.mark.slow

SSH = """#!/bin/sh
while case $1 in -o) true;; -*) true;; *) false;; esac; do
    case $1 in -o) shift 2;; *) shift;; esac
done
host=$1 && shift
echo "$host: $*" >> "$SSH_LOG"
case $host in down*) echo "ssh: connect to host $host port 22: Connection refused" >&2; exit 255;; esac
echo "Welcome to $host" # as login shells say whose own files print
printf '\\033]0;%s\\007' "$host" # the title of a window has no end of line
seen="127.0.0.1 40000 127.0.0.1 22"
case $host in piped*) seen="UNKNOWN 65535 UNKNOWN 65535";; esac
case $host in shared*) sleep 1000 < /dev/null > /dev/null & ;; esac # as an ssh to a jump host that others share
SSH_CONNECTION=$seen exec sh -c "$*"
"""

OTHER_RELEASE = """
import sys
sys.stdin.readline()
print('\\n{"type": "Arrival", "release": "0.0.9", "a_later_field": 1}', flush=True)
sys.stdin.read()
"""


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Start `nodeclient up`; its hosts are all this one."""
    (ssh := tmp_path / "ssh").write_text(SSH)
    ssh.chmod(0o755)
    with ExitStack() as started:

        def start(hosts: str, *words: str, **options: int) -> Program:
            own = clean_environ(SSH_LOG=str(tmp_path / "log"), XDG_CONFIG_HOME=str(tmp_path))
            own["PATH"] = f"{tmp_path}:{own['PATH']}"
            program = Program(BIN / "nodeclient", "up", "--hosts", hosts, *words, environ=own, **options)
            return started.enter_context(program)

        yield start


def without_leftovers(program: Program, tmp_path: Path) -> None:
    """Wait until nothing that it has started lives, and check that no token is left."""
    program.await_no_leftovers()
    assert list((tmp_path / "coordinatord" / "tokens").iterdir()) == []


def test_a_job_runs_on_all_hosts_and_each_line_has_the_name_of_its_own(
    up: Callable[..., Program], tmp_path: Path
) -> None:
    script = "echo rank $RANK of $WORLD_SIZE in $PWD with $(command -v python)"
    program = up("gpu1,gpu2:2", "--workdir", str(tmp_path), "--", "sh", "-c", script)
    assert program.wait() == 0, program.output
    said = sorted(line for line in program.lines if "of 3" in line and " in " in line)
    python = Path(sys.executable).with_name("python")
    assert said == [
        f"gpu{host}: [rank {rank}] rank {rank} of 3 in {tmp_path} with {python}" for rank, host in enumerate((1, 2, 2))
    ]
    without_leftovers(program, tmp_path)
    log = (tmp_path / "log").read_text()
    assert sorted(log.splitlines()) == [
        f"{host}: {sys.executable} -P -m nodeclient up-host" for host in ("gpu1", "gpu2")
    ]


def test_the_exit_code_is_that_of_the_job(up: Callable[..., Program], tmp_path: Path) -> None:
    program = up("shared1,localhost", "--", "sh", "-c", "exit 3")
    assert program.wait() == 3, program.output
    assert sum(": root cause " in line for line in program.lines) == 1, "the report is shown once"
    wait_until("the end of all but what holds standard error of ssh", lambda: len(program.leftovers()) == 1)
    kill_quietly(program.leftovers()[0])
    without_leftovers(program, tmp_path)


def test_a_host_that_is_not_ready_is_named_before_anything_starts(up: Callable[..., Program], tmp_path: Path) -> None:
    program = up("gpu1,down2", "--workdir", "/nonexistent", "--", "touch", str(tmp_path / "started"))
    assert program.wait() == 69
    assert "gpu1: its directory /nonexistent cannot be entered" in program.output
    assert "down2: ssh: connect to host down2 port 22: Connection refused" in program.output
    assert "down2: it cannot be reached" in program.output
    assert "nothing was started, since 2 of 2 hosts are not ready" in program.output
    lacking = up("gpu1", "--remote-python", "/nonexistent/python", "--", "touch", str(tmp_path / "started"))
    assert lacking.wait() == 69
    assert re.search(r"gpu1: there is no nodeclient .*exit code 127.*--remote-python", lacking.output)
    piped = up("gpu1,piped2", "--", "touch", str(tmp_path / "started"))
    assert piped.wait() == 69
    assert "piped2: its sshd does not say where the coordinator can be reached" in piped.output
    assert not (tmp_path / "started").exists()
    for each in (program, lacking, piped):
        each.await_no_leftovers()


def test_a_coordinator_that_does_not_start_is_not_taken_for_a_missing_nodeclient(
    up: Callable[..., Program], tmp_path: Path
) -> None:
    (tmp_path / "coordinatord").write_text("a file where the directory of tokens should be")
    program = up("gpu1", "--", "true")
    assert program.wait() == 69
    assert "localhost: coordinatord: there is no place to leave the tokens in" in program.output
    assert re.search(
        r"localhost: its coordinator did not start \(exit code \d+, see above\)$", program.output, re.MULTILINE
    )
    assert "release" not in program.output
    program.await_no_leftovers()


def test_the_program_of_a_host_says_that_it_is_not_for_people() -> None:
    called = run(BIN / "nodeclient", "up-host")
    assert called.returncode == 69
    assert "only `nodeclient up` can use this program" in called.stderr


def test_a_host_with_another_release_is_named(up: Callable[..., Program], tmp_path: Path) -> None:
    (other := tmp_path / "python").write_text(f"#!{sys.executable}\n{OTHER_RELEASE}")
    other.chmod(0o755)
    program = up("gpu1", "--remote-python", str(other), "--", "true")
    assert program.wait() == 69
    assert f"gpu1: it has release 0.0.9, and this host {__version__}: install the same" in program.output


def train(up: Callable[..., Program], tmp_path: Path) -> Program:
    """Start a job on two hosts whose workers save when they are asked to end, and wait until both train."""
    (saved := tmp_path / "saved").mkdir()
    program = up("gpu1,gpu2", "--", sys.executable, "-S", "-c", SAVING, str(saved))
    for host in (1, 2):
        program.await_line(f"gpu{host}: .*trains")
    return program


def check_saved(program: Program, tmp_path: Path) -> None:
    """Check that the workers of both hosts have saved, and that nothing is left on any host."""
    without_leftovers(program, tmp_path)
    found = {path.name: path.read_text() for path in (tmp_path / "saved").iterdir()}
    assert found == {"0": "saved\n", "1": "saved\n"}


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_hosts_with_time_to_save(
    signum: signal.Signals, up: Callable[..., Program], tmp_path: Path
) -> None:
    program = train(up, tmp_path)
    program.signal(signum)
    assert program.wait() == 128 + signum, program.output
    check_saved(program, tmp_path)


def test_the_third_signal_ends_up_although_nobody_reads_the_output(up: Callable[..., Program], tmp_path: Path) -> None:
    unread, output = os.pipe()
    flooding = ("sh", "-c", "touch started; yes | head -c 2000000; exec sleep 1000")
    program = up("gpu1", "--workdir", str(tmp_path), "--", *flooding, stdout=output)
    wait_until("the worker", (tmp_path / "started").exists)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        program.signal(signum)
    assert program.wait() in {129, 130, 143}, "as whichever of them it saw first"
    for fd in (unread, output):
        os.close(fd)


def test_no_list_of_processes_and_no_environment_has_the_token(up: Callable[..., Program], tmp_path: Path) -> None:
    program = train(up, tmp_path)
    [file] = (tmp_path / "coordinatord" / "tokens").iterdir()
    secrets = [line.rpartition(".")[2].encode() for line in file.read_text().splitlines() if line.startswith("crd1.")]
    assert secrets
    for pid in program.leftovers():
        for name in ("cmdline", "environ"):
            with suppress(OSError):  # it may have ended
                shown = Path(f"/proc/{pid}/{name}").read_bytes()
                assert not any(secret in shown for secret in secrets), (pid, name)
