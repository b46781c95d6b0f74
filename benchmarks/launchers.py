"""Real training jobs under nodeclient and under torchrun, by the name of the side."""

import compileall
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from recovery_jobs import ROOT, START_WITHIN_S, TRAINING, Job, TorchrunJob, Words
from tables import BenchmarkError

from tests.support.cluster import Coordinator
from tests.support.hosts import Hosts
from tests.support.programs import BIN, kill_quietly

COORDINATOR_HOST = "coord"

PRELOAD = ("--preload", "torch")

NODECLIENT_WORDS = Words(
    time=re.compile(r"(\S+)Z (?:DEBUG|INFO|WARNING|ERROR)"),
    time_format="%Y-%m-%dT%H:%M:%S.%f",
    ready="connected to the coordinator",
    prepared=r"preloaded \w+",
    detected=r"worker of rank \d+ failed|stopping the workers of round",
    ranked=r"starting round \d+",
)

SIDES = ("torchrun", "cold", "warm")
"""torchrun, nodeclient, and nodeclient with `PRELOAD`. `IN_PLACE` is the last, with a script of `workerlib.rounds`."""
IN_PLACE = "in-place"


def prepare() -> None:
    """Make SIGTERM leave no job behind, as Ctrl-C does, and compile our packages.

    pip does that when it installs them; in a clone each start might have to do it.
    """
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda number, _: sys.exit(128 + number))
    for package in ("coordinatord", "nodeclient", "workerlib"):
        compileall.compile_dir(ROOT / package, quiet=1)


class NodeclientJob(Job):
    """A job with a coordinatord of its own."""

    words = NODECLIENT_WORDS
    culprit = re.compile(r"round ended: (?:lost|rank \d+ on) node (?P<node>\w+)")

    names_hosts = False
    """Whether each node is on a host of its own name, which takes root: charges against hosts go by their names."""

    def __init__(
        self,
        nnodes: str,
        folder: Path,
        hosts: Hosts | None,
        coordinator: Coordinator,
        address: str,
        flags: Sequence[str],
    ) -> None:
        """Begin without nodes; `flags` are for nodeclient, besides the usual, with {node} for the name of a node."""
        super().__init__(nnodes, folder, hosts)
        self._coordinator = coordinator
        self._coord = f"{address}:{coordinator.port}"
        self._flags = flags

    def settings(self) -> Mapping[str, str]:
        """Return nothing."""
        return {}

    def command(self, name: str) -> Sequence[str]:
        """Return the command that one would type on the host."""
        where = ("--coord", self._coord, "--job-id", "recovery", "--node-id", name)
        nodes = ("--nnodes", self.nnodes, "--nproc-per-node", "1", "--max-restarts", str(self.restarts))
        flags = [flag.replace("{node}", name) for flag in self._flags]
        own_name = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name) if self.names_hosts else ()
        return (*own_name, str(BIN / "nodeclient"), "join", *where, *nodes, *flags, "--", sys.executable)

    def log(self) -> Mapping[str, Sequence[str]]:
        """Return what the coordinator has logged: it knows why a round ended."""
        return {COORDINATOR_HOST: self._coordinator.lines}

    def kill_coordinator(self) -> None:
        """Kill coordinatord."""
        kill_quietly(self._coordinator.pid)

    def await_copies(self) -> None:
        """Wait until a step outlives the loss of any host. Raises `BenchmarkError`."""

        def is_copied() -> bool:
            job = self._coordinator.job("recovery")
            return job is not None and job["kept"] is not None and job["kept"]["copied"] is not None

        if not self.wait(is_copied, START_WITHIN_S):
            raise BenchmarkError(f"nothing was copied:\n{self.output()}")


@contextmanager
def running_job(
    side: str, nnodes: str, folder: Path, hosts: Hosts | None = None, flags: Sequence[str] = ()
) -> Iterator[Job]:
    """Make a job without nodes of one of the sides, and leave no process of it behind.

    `flags` are for nodeclient, where that is the launcher.
    """
    with ExitStack() as stack:
        job: Job
        if side == "torchrun":
            job = TorchrunJob(nnodes, folder, hosts)
        else:
            if hosts is None:
                address, coordinator = "127.0.0.1", Coordinator()
            else:
                address = hosts.address[COORDINATOR_HOST]
                coordinator = Coordinator(host=address, prefix=hosts.on(COORDINATOR_HOST))
            stack.callback(coordinator.close)
            preload = PRELOAD if side in {"warm", IN_PLACE} else ()
            job = NodeclientJob(nnodes, folder, hosts, coordinator, address, (*preload, *flags))
            if side == IN_PLACE:
                job.training = (str(TRAINING.with_name("recovery_in_place.py")),)
        stack.callback(job.close)
        yield job
