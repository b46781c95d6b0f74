"""Finds a Python of a wanted version: on this machine, or in a Debian that is fetched into a folder."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

DEBIAN = {"3.13": "trixie", "3.14": "sid"}
"""Releases of Debian by the Python that they have."""

PACKAGES = ("python3", "python3-venv", "python3-dev", "gcc", "iproute2", "procps", "util-linux", "ca-certificates")

MOUNT = """
set -e
root=$1 tree=$2 envs=$3
shift 3
mkdir -p "$root$tree" "$root$envs"
mount --bind "$root" "$root"
mount --bind "$tree" "$root$tree"
mount --bind "$envs" "$root$envs"
for folder in proc dev dev/pts dev/shm sys; do mount --rbind "/$folder" "$root/$folder"; done
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
for file in /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
  if [ -e $file ]; then cp -L $file "$root$file"; fi
done
exec chroot --userspec=0:0 "$root" env --chdir="$tree" "$@"
"""
"""Runs a command in another root, in a mount namespace of its own: nothing has to be unmounted afterwards."""


@dataclass(frozen=True)
class Interpreter:
    """A Python, and what comes before a command so that it runs where that Python is."""

    python: str
    prefix: tuple[str, ...] = ()

    def run(self, *command: str | Path, **environ: str) -> int:
        """Run a command there; return its exit code."""
        argv = [*self.prefix, *map(str, command)]
        return subprocess.run(argv, env={**os.environ, **environ}, check=False).returncode


def find(version: str) -> Interpreter | None:
    """Return a Python of this version that the machine has, in PATH or from pyenv; None if it has none."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    candidates = [shutil.which(f"python{version}"), *sorted(map(str, versions.glob(f"{version}.*/bin/python")))]
    for candidate in filter(None, candidates):
        # What is found in PATH may be a shim of pyenv that leads nowhere.
        shown = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=False)
        if shown.stdout.startswith(f"Python {version}."):
            return Interpreter(candidate)
    return None


def fetch(version: str, tree: Path, envs: Path) -> Interpreter | None:
    """Return that version out of a Debian in a folder of `envs`, fetched if need be; None where that cannot be done.

    Needs root and debootstrap.
    """
    release = DEBIAN.get(version)
    if release is None or os.geteuid() != 0 or shutil.which("debootstrap") is None:
        return None
    root = envs / f"debian-{release}"
    complete = root / ".complete"
    if not complete.exists():
        command = (
            "debootstrap",
            "--variant=minbase",
            f"--include={','.join(PACKAGES)}",
            release,
            str(root),
        )  # its own mirror
        if subprocess.run(command, check=False).returncode != 0:
            return None
        complete.touch()
    prefix = ("unshare", "--mount", "--propagation", "private", "sh", "-c", MOUNT, "sh", str(root), str(tree))
    return Interpreter("/usr/bin/python3", (*prefix, str(envs)))
