"""Two hosts with systemd, and the job that they train: `alpha` coordinates and trains, `beta` trains."""

import json
import re
import time
from typing import Any

from tests.support.programs import wait_until
from tests.systemd.machine import ROOT, Machine

GUIDE = ROOT / "systemd" / "README.md"

NEEDS_NETWORK = ("python3 -m venv", "/opt/coordinatord/bin/pip ")
"""Lines of the guide in place of which there is `make_installation`."""

FOR_ALL_HOSTS = 3
"""The number of the coordinator's lines that are typed on the other hosts as well."""

JOB = "mnist"
"""The one of the guide."""

RANKS = range(2)
"""One worker a machine."""


def guide() -> tuple[list[str], list[str]]:
    """Return the lines for the coordinator's host, and those for a training host beyond the first of these."""
    coordinator, trainer, job, *_ = _blocks()
    return coordinator, [*trainer, *job]


def guide_of_another_coordinator() -> list[str]:
    """Return the lines that give another coordinator the key of the first one, and start it."""
    return _blocks()[5]


def guide_of_a_password() -> str:
    """Return the line that gives a coordinator the password of etcd, or a new one."""
    [line] = _blocks()[6]
    return line


def guide_of_a_backup() -> tuple[list[str], list[str]]:
    """Return the lines that make a backup, and those that restore it."""
    made, restored = _blocks()[8:10]
    return made, restored


def guide_of_an_upgrade() -> list[str]:
    """Return the lines for an upgrade of the coordinator, without those that need the network."""
    return [line for line in _blocks()[10] if not line.startswith(NEEDS_NETWORK)]


def _blocks() -> list[list[str]]:
    """Return the lines of each block of code in the guide."""
    found = re.findall(r"^```\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    return [block.splitlines() for block in found]


class Cluster:
    """Both machines."""

    def __init__(self, alpha: Machine, beta: Machine, address: str) -> None:
        """Take both machines; `address` is that of alpha."""
        self.alpha = alpha
        self.beta = beta
        self.machines = (alpha, beta)
        self.address = address

    def install(self) -> None:
        """Follow the guide; its job trains afterwards."""
        coordinator, trainer = guide()
        for machine, lines in ((self.alpha, coordinator), (self.beta, coordinator[:FOR_ALL_HOSTS])):
            for line in (*lines, *trainer):
                if line.startswith("editor "):
                    self.configure(JOB)
                elif line.startswith("ssh "):
                    command, _, place = line.replace("$(hostname -s)", machine.name).partition(" > ")
                    machine.write(place, self.alpha.run(*command.split()[2:]))
                elif not line.startswith(NEEDS_NETWORK):
                    machine.run("sh", "-ec", f"cd /opt/source\n{line}")

    def configure(self, job: str, **settings: str) -> None:
        """Write the settings of a job on both machines."""
        command = "/opt/coordinatord/bin/python /opt/source/tests/systemd/train.py"
        given = {"COORD": self.address, "COMMAND": command, "NNODES": "2", **settings}
        for machine in self.machines:
            machine.write(f"/etc/nodeclient/{job}.env", "".join(f"NODECLIENT_{key}={given[key]}\n" for key in given))

    def await_training(self, after_round: int = 0) -> list[dict[str, Any]]:
        """Wait until both ranks have done a step from now on, in the same round; return their reports."""
        begun = time.time_ns()

        def look() -> list[dict[str, Any]] | None:
            now = [self.reported(f"now-{rank}", begun) for rank in RANKS]
            rounds = {worker.get("round", 0) for worker in now}
            return now if len(rounds) == 1 and min(rounds) > after_round else None

        return wait_until("both ranks to train", look)

    def reported(self, name: str, since_ns: int = 0) -> dict[str, Any]:
        """Return the last report of a worker since then, on whichever machine it is; empty if none."""
        files = [machine.path(f"/home/nodeclient/{name}") for machine in self.machines]
        written = [(file.stat().st_mtime_ns, file.read_text()) for file in files if file.exists()]
        facts: dict[str, Any] = json.loads(max(written)[1]) if written and max(written)[0] > since_ns else {}
        return facts
