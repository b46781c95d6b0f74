"""The very commands of the manifests, in pods made of namespaces: they come up, and an eviction drains."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from coordinatord.protocol.exit_codes import ExitCode
from tests.deploy.manifests import KUBERNETES, Object, built, command_line, container, environment, only
from tests.deploy.pods import Pod, need_pods
from tests.support.cluster import STDLIB_PYTHON, WORKER
from tests.support.hosts import Hosts

pytestmark = pytest.mark.slow

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
