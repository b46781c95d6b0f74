"""The very commands of the manifests, in pods made of namespaces: they come up, and an eviction drains.

Such a pod is without a cluster: namespaces are as the pod has them, from process 1 on. The root holds the system and
Python of this machine, read-only, and what the pod mounts; the process has the user, the host name and the environment
that the manifest gives it, and no capability. There is no seccomp filter.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from coordinatord.protocol.exit_codes import ExitCode
from tests.deploy.manifests import INIT, KUBERNETES, ROOT, Object, built, command_line, container, environment, only
from tests.support.cluster import STDLIB_PYTHON, WORKER
from tests.support.hosts import Hosts
from tests.support.programs import BIN, Program, carriers, run, wait_until

pytestmark = pytest.mark.slow

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


INDEXES = (0, 1, 2)


class Kubelets:
    """Starts the pods of the demo's manifests, each on a host of its own."""

    def __init__(self, hosts: Hosts, place: Path, stack: ExitStack) -> None:
        self._objects = built("overlays/cpu-demo")
        self._hosts = hosts
        self._place = place
        self._stack = stack

    def coordinator(self) -> Pod:
        """Start the pod of the Deployment."""
        template = only(self._objects, "Deployment")["spec"]["template"]
        return self._pod("coordinatord", "coordinatord-6d5f7", template, command_line(container(template)), {})

    def node(self, index: int, suffix: str) -> Pod:
        """Start a pod of the Job for an index, with a worker that trains nothing."""
        template = only(self._objects, "Job")["spec"]["template"]
        words = command_line(container(template))
        command = [*words[: words.index("--") + 1], *STDLIB_PYTHON, str(WORKER)]
        index_of_job = {"JOB_COMPLETION_INDEX": str(index)}
        return self._pod(f"node-{index}", f"train-{index}-{suffix}", template, command, index_of_job)

    def _pod(self, host: str, name: str, template: Object, command: list[str], extra: dict[str, str]) -> Pod:
        """Start a pod of this name."""
        address = self._hosts.address[host]
        environ = environment(self._objects, container(template), {"metadata.name": name, "status.podIP": address})
        claims = {claim: self._place / claim for claim in ("coordinatord", "checkpoints", "coordinatord-token")}
        for claim in claims.values():
            claim.mkdir(exist_ok=True)
        pod = Pod(
            self._place / name,
            template,
            command,
            environ | extra,
            host=self._hosts.on(host),
            # The pod of an Indexed Job has the hostname $(job-name)-$(index).
            hostname=name.rpartition("-")[0],
            claims=claims,
            names={"coordinatord": self._hosts.address["coordinatord"]},
        )
        self._stack.callback(pod.close)
        return pod

    def make_secret(self, coordinator: Pod) -> None:
        """Do what the manifests say that a person does once, as kubectl would."""
        text = (KUBERNETES / "coordinator" / "kustomization.yaml").read_text()
        pattern = (
            r"exec deployment/coordinatord -- (.*) \|\n#.* create secret generic (\S+) --from-file=(\w+)=/dev/stdin"
        )
        [(command, secret, file)] = re.findall(pattern, text)
        (self._place / secret / file).write_text(coordinator.execute(*command.split()))


@pytest.fixture
def kubelets(tmp_path: Path) -> Iterator[Kubelets]:
    need_pods()
    with Hosts("coordinatord", *(f"node-{index}" for index in INDEXES)) as hosts, ExitStack() as stack:
        yield Kubelets(hosts, tmp_path, stack)


def started(pod: Pod, round_: int, world_size: int) -> None:
    """Wait for the pod's worker in a round."""
    pod.await_line(rf'"event": "started".*"world_size": {world_size}, .*"round": {round_}\b')


def test_an_evicted_pod_drains_and_its_replacement_is_taken_in(kubelets: Kubelets, tmp_path: Path) -> None:
    coordinator = kubelets.coordinator()
    coordinator.await_line("coordinatord listening on https:")
    kubelets.make_secret(coordinator)
    pods = [kubelets.node(index, "aaaaa") for index in INDEXES]
    for pod in pods:
        started(pod, 1, world_size=3)
    for pod in (coordinator, *pods):
        assert pod.status("NSpid")[-1] == "1"
        assert (set(pod.status("Uid")), pod.status("CapBnd"), pod.status("NoNewPrivs")) == (
            {"10001"},
            ["0" * 16],
            ["1"],
        )
        assert "ro" in pod.root_options()
    assert (tmp_path / "coordinatord" / "state.db").exists()
    assert "running" in coordinator.execute("nodeclient", "status", "--coord", "localhost")
    nodes_may = pods[0].execute("sh", "-c", "nodeclient stop train --coord coordinatord 2>&1 || true")
    assert "the token nodes has the role join, and this needs admin" in nodes_may

    staying, evicted = [pods[0], pods[2]], pods[1]
    evicted.evict()
    evicted.await_line('"event": "saved"')
    assert evicted.wait() == ExitCode.TERMINATED
    for pod in staying:
        started(pod, 2, world_size=2)
        pod.await_line('"saved"')

    replacement = kubelets.node(1, "bbbbb")
    staying.append(replacement)
    for pod in staying:
        started(pod, 3, world_size=3)
    assert '"rank": 2' in replacement.await_line('"started"').string
    assert '"node": "train-1-bbbbb"' in replacement.output

    for pod in staying:
        [worker] = pod.workers(WORKER)
        os.kill(worker, signal.SIGUSR1)
    assert [pod.wait() for pod in staying] == [0, 0, 0]
    coordinator.evict()
    assert coordinator.wait() == 0
