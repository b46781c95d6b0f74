"""Machines with systemd as PID 1, booted in a fraction of a second out of this one's own Debian packages.

systemd-nspawn gives each this machine's /usr, read-only, and nothing else: /etc, /var and the users are made anew at
each boot. It has a cgroup hierarchy (version 2) and a network namespace of its own. The program is there as pip would
have put it, in /opt/coordinatord, and the clone is at /opt/source.
"""

import os
import secrets
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.programs import TIMEOUT_S, Program, clean_environ, kill_quietly, wait_until

ROOT = Path(__file__).resolve().parents[2]

PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"

SCRIPT = "#!/opt/coordinatord/bin/python\nfrom {program}.cli import main\nmain()\n"
"""What pip makes of an entry of [project.scripts]."""

ORDERLY = ("setpriv", "--pdeathsig", "TERM")
"""Where the tests are killed, systemd-nspawn switches its machine off; killed itself, it would leave that running."""

ALONE = ("unshare", "--mount", "sh", "-c")
"""The prefix of a script that mounts things for itself and its children only."""

OWN_CGROUPS = "mount --make-rprivate / && umount -R /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup"
"""Systemd must not have version 1 of them too, where a host still has that."""

BOOT = f'{OWN_CGROUPS} && mkdir $0 && echo $$ > $0/cgroup.procs && exec "$@"'
FORGET = f"{OWN_CGROUPS} && {{ test ! -d $0 || find $0 -depth -type d -exec rmdir {{}} +; }}"


def make_installation(folder: Path) -> None:
    """Lay out what `python3 -m venv` and `pip install` would put into /opt/coordinatord."""
    folder.chmod(0o755)  # a temporary one is for its owner alone
    packages = folder / "lib" / PYTHON / "site-packages"
    programs = folder / "bin"
    for made in (packages, programs):
        made.mkdir(parents=True)
    (programs / "python").symlink_to(f"/opt/python/bin/{PYTHON}")
    (folder / "pyvenv.cfg").write_text("home = /opt/python/bin\n")
    (packages / "installed.pth").write_text("/opt/source\n/opt/packages\n")
    for program in ("coordinatord", "nodeclient"):
        script = programs / program
        script.write_text(SCRIPT.format(program=program))
        script.chmod(0o755)


class Machine:
    """A machine that runs until it is closed."""

    def __init__(self, name: str, network: str, installation: Path) -> None:
        """Boot it, with the host name `name`, in a network namespace; skips the test where that cannot be done."""
        nspawn = shutil.which("systemd-nspawn")
        if os.geteuid() != 0 or nspawn is None:
            pytest.skip("to boot a machine needs root, and systemd-nspawn of the package systemd-container")
        allowed = subprocess.run([*ALONE, OWN_CGROUPS], capture_output=True, text=True, check=False)
        if allowed.returncode != 0:
            pytest.skip(f"to boot a machine needs control groups of its own: {allowed.stderr.strip()}")
        self.name = name
        self._cgroup = f"/sys/fs/cgroup/coordinatord-test-{secrets.token_hex(4)}"
        shared = {
            installation: "/opt/coordinatord",
            Path(sys.base_prefix): "/opt/python",
            Path(sysconfig.get_path("purelib")): "/opt/packages",
            ROOT: "/opt/source",
        }
        flags = (
            *("--boot", "--directory=/", "--volatile=yes", "--tmpfs=/usr/local/bin"),
            *("--settings=no", "--register=no", "--keep-unit", "--link-journal=no", "--console=pipe"),
            *("--resolv-conf=off", "--timezone=off", f"--machine={name}", f"--hostname={name}"),
            f"--network-namespace-path=/run/netns/{network}",
            *(f"--bind-ro={here}:{there}" for here, there in shared.items()),
        )
        # Nothing may start that this machine's packages would start at a first boot.
        kernel_words = ("systemd.unit=basic.target", "systemd.condition_first_boot=no")
        command = (*ORDERLY, *ALONE, BOOT, self._cgroup, nspawn, *flags, *kernel_words)
        self._program = Program(*command, environ=clean_environ())
        try:
            self.leader = wait_until(f"the boot of {name}", self._booted)
            self.run("sh", "-c", "echo /opt/python/lib > /etc/ld.so.conf && ldconfig && mkdir -p /etc/systemd/system")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Switch it off: with its PID 1, the kernel ends all its processes."""
        for leader in self._children():
            kill_quietly(leader)
        try:
            self._program.wait()
        finally:
            self._program.close()
        subprocess.run([*ALONE, FORGET, self._cgroup], check=True)

    def run(self, *argv: str, wrong: bool = False) -> str:
        """Run a command as the machine's root, and return its output; `wrong`: it may fail."""
        ended = self._run(*argv)
        assert wrong or ended.returncode == 0, f"{argv} on {self.name}: {ended.stdout}{ended.stderr}"
        return ended.stdout

    def path(self, inside: str) -> Path:
        """Return the path on this machine of a file of the machine."""
        return Path(f"/proc/{self.leader}/root{inside}")

    def write(self, inside: str, text: str) -> None:
        """Write a file of the machine."""
        self.path(inside).parent.mkdir(parents=True, exist_ok=True)
        self.path(inside).write_text(text)

    def show(self, unit: str, name: str) -> str:
        """Return a property of a unit, as `systemctl show` has it."""
        return self.run("systemctl", "show", "--value", "--property", name, unit).strip()

    def await_shown(self, unit: str, name: str, value: str) -> None:
        """Wait until a property of a unit has this value."""
        wait_until(f"{name}={value} of {unit} on {self.name}", lambda: self.show(unit, name) == value)

    def journal(self) -> str:
        """Return the log lines of our units, and those about them."""
        units = ("--unit=coordinatord*", "--unit=nodeclient@*")
        return self.run("journalctl", "--no-pager", "--output=short-precise", *units, wrong=True)

    def _booted(self) -> int:
        """Return PID 1 of the machine as this one numbers it, once all that it starts has started; else 0."""
        assert self._program.reading, f"{self.name} did not boot:\n{self._program.output}"
        for leader in self._children():
            self.leader = leader
            if self._run("systemctl", "is-system-running").stdout.strip() in {"running", "degraded"}:
                return leader
        return 0

    def _children(self) -> list[int]:
        try:
            found = Path(f"/proc/{self._program.pid}/task/{self._program.pid}/children").read_text()
        except OSError:
            return []
        return [int(pid) for pid in found.split()]

    def _run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        enter = ["nsenter", "--all", "--target", str(self.leader)]
        return subprocess.run([*enter, *argv], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
