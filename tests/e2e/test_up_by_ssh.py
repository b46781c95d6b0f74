"""`nodeclient up` by real ssh, between hosts that share no network with this one."""

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.hosts import Hosts
from tests.support.programs import BIN, Program, clean_environ, kill_quietly, run, wait_until
from tests.support.saving import SAVING

pytestmark = pytest.mark.slow

TRAINING_HOSTS = ("gpu1", "gpu2", "gpu3")

SSHD_CONFIG = """
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PrintMotd no
SetEnv XDG_CONFIG_HOME={folder}/home XDG_STATE_HOME={folder}/home
"""

SSH_CONFIG = """
Host stranger
    HostKeyAlias stranger
    HostName {first}
Host *
    IdentityFile {folder}/user_key
    UserKnownHostsFile {folder}/known_hosts
"""


TRAIN = """
import torch, workerlib
with workerlib.init() as ctx:
    torch.distributed.all_reduce(ranks := torch.tensor(ctx.rank + 1))
    print(f"the sum is {ranks}")
"""


class Terminal:
    """A host whose user has ssh to three others."""

    def __init__(self, folder: Path, hosts: Hosts) -> None:
        self.hosts = hosts
        self.saved = folder / "saved"
        """The folder in which each rank leaves a file when it saves."""
        self.saved.mkdir()
        self._folder = folder
        for name in ("host_key", "user_key"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name)
        key = " ".join((folder / "host_key.pub").read_text().split()[:2])
        (folder / "known_hosts").write_text("".join(f"{hosts.address[name]} {key}\n" for name in hosts.address))
        names = "".join(f"Host {name}\n    HostName {address}\n" for name, address in hosts.address.items())
        (folder / "ssh_config").write_text(names + SSH_CONFIG.format(folder=folder, first=hosts.address["gpu1"]))
        (folder / "sshd_config").write_text(SSHD_CONFIG.format(folder=folder))
        (folder / "bin").mkdir()
        (ssh := folder / "bin" / "ssh").write_text(
            f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n'
        )
        ssh.chmod(0o755)
        self._programs: list[Program] = []

    def serve(self) -> None:
        """Start the sshds."""
        program = str(shutil.which("sshd"))  # it wants its absolute path
        sshds = [self._start(name, program, "-D", "-e", "-f", self._folder / "sshd_config") for name in TRAINING_HOSTS]
        for sshd in sshds:
            sshd.await_line("Server listening")

    def up(self, *words: str | Path) -> Program:
        """Start `nodeclient up` on the host of the terminal."""
        return self._start("here", BIN / "nodeclient", "up", "--stop-timeout", "5", *words)

    def train(self) -> Program:
        """Start a job whose workers save when they are asked to end, and wait until all of them train."""
        program = self.up("--hosts", ",".join(TRAINING_HOSTS), "--", sys.executable, "-S", "-c", SAVING, self.saved)
        for name in TRAINING_HOSTS:
            program.await_line(f"{name}: .*trains")
        return program

    def check_saved(self) -> None:
        """Check that all workers have saved, and wait until no host has a process but those of sshd.

        One of these stays for as long as TCP does not notice that its connection is cut.
        """
        wait_until("the end of all on the hosts", lambda: self._programs_on_hosts() <= {"sshd", "sshd-session"})
        assert sorted(path.name for path in self.saved.iterdir()) == ["0", "1", "2"]
        assert list((self._folder / "home" / "coordinatord" / "tokens").iterdir()) == []

    def close(self) -> None:
        """End everything, and first the sshds of connections: they hold the output of the sshd that has made them."""
        for name in self.hosts.address:
            for pid in self._processes(name):
                kill_quietly(pid)
        for program in self._programs:
            program.close()

    def _start(self, host: str, *argv: str | Path) -> Program:
        environ = clean_environ(XDG_CONFIG_HOME=str(self._folder / "home"))
        environ["PATH"] = f"{self._folder / 'bin'}:{environ['PATH']}"
        self._programs.append(Program(*self.hosts.on(host), *argv, environ=environ))
        return self._programs[-1]

    def _programs_on_hosts(self) -> set[str]:
        return {program for host in self.hosts.address for program in self._processes(host).values()}

    def _processes(self, host: str) -> dict[int, str]:
        """Return the processes of a host, with the names of their programs."""
        pids = run("ip", "netns", "pids", self.hosts.on(host)[-1]).stdout.split()
        found = {}
        for pid in pids:
            with suppress(OSError):  # it may have ended
                found[int(pid)] = Path(f"/proc/{pid}/comm").read_text().rstrip()
        return found


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """Yield the host of a terminal, and three others with an sshd."""
    if os.geteuid() != 0 or shutil.which("sshd") is None:
        pytest.skip("an sshd needs root, and openssh-server")
    Path("/run/sshd").mkdir(exist_ok=True)  # for its separation of privileges
    with Hosts("here", *TRAINING_HOSTS) as hosts:
        there = Terminal(tmp_path, hosts)
        try:
            there.serve()
            yield there
        finally:
            there.close()


@pytest.mark.parametrize(
    "seat",
    [pytest.param([], marks=pytest.mark.long, id="coordinator here"), ["--coordinator-host", "gpu2"]],
)
def test_two_hosts_train(terminal: Terminal, seat: list[str]) -> None:
    program = terminal.up("--hosts", "gpu1,gpu2", *seat, "--", sys.executable, "-c", TRAIN)
    assert program.wait() == 0
    assert program.output.count("the sum is 3") == 2


def test_a_host_that_cannot_be_used_is_named_in_the_words_of_ssh(terminal: Terminal) -> None:
    program = terminal.up("--hosts", "gpu1,here,stranger", "--", "touch", terminal.saved / "started")
    assert program.wait() == 69
    assert "here: ssh: connect to host" in program.output
    assert "here: it cannot be reached" in program.output
    assert "stranger: Host key verification failed" in program.output
    assert list(terminal.saved.iterdir()) == []


def test_when_up_is_killed_all_hosts_save_and_nothing_stays(terminal: Terminal) -> None:
    program = terminal.train()
    program.signal(signal.SIGKILL)
    terminal.check_saved()


@pytest.mark.long
def test_a_host_whose_cable_is_cut_ends_its_node_and_the_others_end_too(terminal: Terminal) -> None:
    program = terminal.train()
    terminal.hosts.cut("gpu2")
    program.await_line("gpu2: the connection is lost")
    program.await_line("too few hosts are left")
    assert program.wait() == 75
    terminal.check_saved()
