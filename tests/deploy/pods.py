"""Pods without a cluster: a container's command in namespaces that are as its pod has them, from process 1 on.

The root holds the system and Python of this machine, read-only, and what the pod mounts; the process has the user, the
host name and the environment that the manifest gives it, and no capability. There is no seccomp filter.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.deploy.manifests import INIT, ROOT, Object, container
from tests.support.programs import BIN, Program, carriers, run, wait_until

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc")

NEEDED = ("unshare", "setpriv", "chroot", "mount", "nsenter")


def need_pods() -> None:
    """Skip the test where pods cannot be made."""
    missing = [program for program in NEEDED if shutil.which(program) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"needs root, and programs of util-linux: {' '.join(missing)}")
    tried = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount", "--uts", "mount", "--make-rprivate", "/"],  # noqa: S607 - any
        check=False,
        capture_output=True,
        text=True,
    )
    if tried.returncode:
        pytest.skip(f"namespaces cannot be made here: {tried.stderr.strip()}")


class Pod(Program):
    """The only container of a pod, on a host of its own."""

    def __init__(
        self,
        place: Path,
        template: Object,
        command: Sequence[str],
        environ: Mapping[str, str],
        *,
        host: Sequence[str],
        hostname: str,
        claims: Mapping[str, Path],
        names: Mapping[str, str],
    ) -> None:
        """Start it.

        `place` is an empty directory for its root, `claims` are its volumes by the names of their claims and Secrets,
        `names` the addresses that it can look up, `host` comes before a command that is to run on its host.
        """
        place.mkdir()
        hosts = place.with_name(f"{place.name}.hosts")
        names = {"localhost": "127.0.0.1", **names}
        hosts.write_text("".join(f"{address} {name}\n" for name, address in names.items()))
        # If there is no init, the program is process 1, which it must be fit for.
        init = INIT if shutil.which(INIT[0]) else []
        security = template["spec"]["securityContext"]
        user = ("--reuid", str(security["runAsUser"]), "--regid", str(security["runAsGroup"]), "--clear-groups")
        self._lowered = ("setpriv", *user, "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--")
        script = [
            "mount --make-rprivate /",
            f"echo {hostname} > /proc/sys/kernel/hostname",
            *_root(place, template, claims),
            f"mount --bind {hosts} {place}/etc/hosts",
            f"mount -o remount,ro,bind {place}",
            f"exec chroot {place} {shlex.join([*self._lowered, *init, *command])}",
        ]
        isolated = ("unshare", "--pid", "--fork", "--kill-child", "--mount", "--uts", "sh", "-ec", "\n".join(script))
        path = f"{BIN}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        self._environ = {"PATH": path, "HOSTNAME": hostname, **environ}
        super().__init__(*host, *isolated, environ=self._environ)

    @property
    def first(self) -> int:
        """The number of the pod's process 1 on this machine."""

        def look() -> int | None:
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
            return int(children[0]) if children else None

        return wait_until(f"process 1 of {self.command}", look)

    def execute(self, *command: str) -> str:
        """Do what `kubectl exec` does; return what the command prints."""
        entered = ("nsenter", f"--target={self.first}", "--mount", "--uts", "--net", "--pid", "--root", "--wd")
        done = run(*entered, *self._lowered, *command, environ=self._environ)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def status(self, field: str) -> list[str]:
        """Return a line of /proc about process 1."""
        lines = Path(f"/proc/{self.first}/status").read_text().splitlines()
        return next(line.split()[1:] for line in lines if line.startswith(f"{field}:"))

    def root_options(self) -> list[str]:
        """Return how the root is mounted."""
        lines = Path(f"/proc/{self.first}/mountinfo").read_text().splitlines()
        return next(line.split()[5].split(",") for line in lines if line.split()[4] == "/")

    def evict(self) -> None:
        """Do what a kubelet does first when a pod has to go: SIGTERM to process 1, and to nobody else."""
        os.kill(self.first, signal.SIGTERM)

    def workers(self, script: Path) -> list[int]:
        """Return the processes that run a script, and do not only start it."""
        return [pid for pid in carriers(self.token) if _runs(pid, script)]


def _runs(pid: int, script: Path) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:  # it has ended
        return False
    return os.fsencode(script) in words and not any(word.endswith(b"nodeclient") for word in words)


def _root(place: Path, template: Object, claims: Mapping[str, Path]) -> Iterator[str]:
    """Yield the commands that make a root in an empty directory, writable as yet."""
    yield f"mount -t tmpfs -o mode=755 image {place}"
    for directory in SYSTEM:
        if Path(directory).is_symlink():
            yield f"ln -s {Path(directory).readlink()} {place}{directory}"
        elif Path(directory).is_dir():
            yield from _bind(Path(directory), place, directory)
    yield from _bind(Path("/dev"), place, "/dev")
    yield f"mkdir {place}/proc && mount -t proc proc {place}/proc"
    owner = template["spec"]["securityContext"]["fsGroup"]
    volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
    for mount in container(template)["volumeMounts"]:
        volume, path = volumes[mount["name"]], mount["mountPath"]
        if claim := volume.get("persistentVolumeClaim"):
            yield f"chgrp {owner} {claims[claim['claimName']]} && chmod g+rwxs {claims[claim['claimName']]}"
            yield from _bind(claims[claim["claimName"]], place, path, how="rw")
        elif secret := volume.get("secret"):
            own = claims[secret["secretName"]]
            yield f"chgrp -R {owner} {own} && chmod -R u=rwX,go= {own} && chmod {secret['defaultMode']:o} {own}/*"
            yield f"chmod g+rxs {own}"
            yield from _bind(own, place, path)
        else:
            yield f"mkdir -p {place}{path} && mount -t tmpfs -o mode=1777 none {place}{path}"
    # They come after the volumes, which may lie below one, such as /tmp.
    for part in (Path(sys.base_prefix), Path(sys.prefix), ROOT):
        if not part.is_relative_to("/usr"):
            yield from _bind(part, place, str(part))


def _bind(source: Path, place: Path, path: str, how: str = "ro") -> Iterator[str]:
    yield f"mkdir -p {place}{path} && mount --bind {source} {place}{path}"
    yield f"mount -o remount,{how},bind {place}{path}"
