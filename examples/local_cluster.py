"""A small cluster on this machine for `demo`: starts coordinatord and nodeclients, and observes a job on them.

The programs run in the background, write into log files, and end with `running_cluster`, or with this process if it is
killed.
"""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import re
import select
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

BIN = Path(sys.executable).parent
"""The directory of the programs that pip has installed for this Python."""

PRELOAD = "torch,sklearn.datasets"
"""The slow imports of `digits.py`."""

NODES = ("node-a", "node-b", "node-c")

BATCH_SIZE = 32
"""The batch size; with larger batches, training might be over before a restarted node has imported torch."""

LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1
"""The option of prctl for a signal at the death of the parent; the value is in linux/prctl.h."""

LOOK_AGAIN_S = 0.05
"""The interval of requests to the coordinator: short for a person, and too long to slow down the training."""

ANSWER_WITHIN_S = 30.0
"""How long coordinatord may take to serve: a hundred times what it takes on an idle machine."""

STOP_WITHIN_S = 10.0
"""How long programs may take to end; the workers save such a small network in milliseconds."""

PATIENCE_S = 120.0
"""How long there may be no step: workers start in seconds, on a loaded machine in twenty."""


class ClusterError(Exception):
    """A program ended or did not answer; the text says which one and why."""


class StoppedError(Exception):
    """Ctrl-C, or another signal, asked this process to end."""

    def __init__(self, signum: signal.Signals) -> None:
        super().__init__(signum.name)
        self.signal = signum


class Program:
    """One program in the background, with all that it and its children print in one log file."""

    def __init__(self, log: Path, config: Path, *argv: str) -> None:
        """Start the program, with `config` as the directory of its user's tokens. Raises `ClusterError`."""
        self.log = log
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(  # noqa: S603 - the words are ours
                    argv,
                    # The nodes share the cores of this machine, so threads of one would wait for those of the others.
                    env={"OMP_NUM_THREADS": "1", **os.environ, "XDG_CONFIG_HOME": str(config)},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    # A Ctrl-C is only for the demo, which then ends its programs in the right order.
                    start_new_session=True,
                    # If the demo is killed, so is this program. preexec_fn is safe, since the demo has no threads.
                    preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509
                )
        except OSError as error:
            raise ClusterError(f"{argv[0]} cannot be started ({error.strerror}): run make setup") from error
        self.pid = self._process.pid
        self.pidfd = os.pidfd_open(self.pid)
        """It becomes readable when the program has ended."""

    @property
    def exit_code(self) -> int | None:
        """The exit code, minus n if signal n killed the program; None while it runs."""
        return self._process.poll()

    def send(self, signum: signal.Signals) -> None:
        """Send a signal to the program; do nothing if it has ended."""
        self._process.send_signal(signum)

    def end(self) -> None:
        """Wait for the end of the program, and kill it if that does not come in time."""
        try:
            self._process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self.pidfd)


class Cluster:
    """One coordinatord and any number of nodeclients; see `running_cluster`."""

    def __init__(self, folder: Path) -> None:
        """Start a coordinatord that writes into `folder`. Raises `ClusterError`."""
        self.folder = folder
        self.nodes: dict[str, Program] = {}
        """The nodeclients by their node id."""
        self._config = folder / "config"  # so that the demo's tokens are not added to its user's
        where = ("--host", "127.0.0.1", "--port", "0", "--state-dir", str(folder / "state"))
        self.coordinator = Program(folder / "coordinatord.log", self._config, str(BIN / "coordinatord"), *where)
        self.address = ""
        """Where it listens, as HOST:PORT, once it does."""
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._bearer = ""
        """An access token with the role admin."""
        self.stopped_by: signal.Signals | None = None
        """The signal that asked this process to end."""

    def await_address(self) -> None:
        """Wait until coordinatord has logged its address. Raises `ClusterError`."""
        deadline = time.monotonic() + ANSWER_WITHIN_S
        while not (found := re.search(r"listening on https://(\S+)\n", self.coordinator.log.read_text())):
            if self.coordinator.exit_code is not None or time.monotonic() > deadline:
                raise ClusterError("coordinatord did not start")
            self.wait_a_little()
        self.address = found[1]
        self._tls.load_verify_locations(self.folder / "state" / "security" / "certificate.pem")
        [tokens] = (self._config / "coordinatord" / "tokens").iterdir()
        self._bearer = next(line for line in tokens.read_text().splitlines() if ".admin." in line)

    def page(self) -> str:
        """Return a link that opens the page of the coordinator in a browser. Raises `ClusterError`."""
        log = self.folder / "page.log"
        program = Program(log, self._config, str(BIN / "nodeclient"), "page", "--coord", self.address)
        program.end()
        if found := re.search(r"^https://\S+", log.read_text(), re.MULTILINE):
            return found[0]
        raise ClusterError(f"nodeclient page has made no link: {log.read_text().strip()}")

    def start_node(self, node: str, job: str, *flags_and_command: str) -> None:
        """Start a nodeclient that joins a job. Raises `ClusterError`."""
        join = (str(BIN / "nodeclient"), "join", "--coord", self.address, "--job-id", job, "--node-id", node)
        self.nodes[node] = Program(self.folder / f"{job}-{node}.log", self._config, *join, *flags_and_command)

    def kill_node(self, node: str) -> None:
        """Kill a nodeclient with -9, as the loss of a whole host would."""
        program = self.nodes.pop(node)
        program.send(signal.SIGKILL)
        program.end()

    def kill_worker(self, node: str) -> None:
        """Kill the only worker of a node with -9, as the kernel does when memory runs out."""
        for thread in Path(f"/proc/{self.nodes[node].pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                if f"COORDINATORD_NODE={node}".encode() in Path(f"/proc/{child}/environ").read_bytes():
                    os.kill(int(child), signal.SIGKILL)
                    return
        raise ClusterError(f"{node} has no worker that could be killed")

    def status(self, job: str) -> dict[str, Any] | None:
        """Return the coordinator's view of a job; None if it does not know it. Raises `ClusterError`."""
        connection = http.client.HTTPSConnection(self.address, timeout=ANSWER_WITHIN_S, context=self._tls)
        try:
            headers = {"Accept": "application/json", "Authorization": f"Bearer {self._bearer}"}
            connection.request("GET", f"/v1/jobs/{job}", headers=headers)
            answer = connection.getresponse()
            status: dict[str, Any] = json.load(answer)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ClusterError(f"coordinatord does not answer ({error})") from error
        finally:
            connection.close()
        return status if answer.status == http.client.OK else None

    def wait_a_little(self) -> None:
        """Wait for `LOOK_AGAIN_S`, or until a program ends. Raises `StoppedError`."""
        running = [program.pidfd for program in (self.coordinator, *self.nodes.values()) if program.exit_code is None]
        select.select(running, [], [], LOOK_AGAIN_S)
        if self.stopped_by is not None:
            raise StoppedError(self.stopped_by)

    def on_signal(self, signum: int, _frame: FrameType | None) -> None:
        """Record that this process has to end; `wait_a_little` then raises `StoppedError`."""
        self.stopped_by = signal.Signals(signum)


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """Start a cluster whose logs lie in `folder`, and leave no process of it behind.

    Raises `ClusterError`, and `StoppedError` if a signal asks this process to end.
    """
    cluster = Cluster(folder)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, cluster.on_signal)
    try:
        cluster.await_address()
        yield cluster
    finally:
        end_all(list(cluster.nodes.values()))  # first, so that they can notify the coordinator
        end_all([cluster.coordinator])


def end_all(programs: Sequence[Program]) -> None:
    """Ask programs to end, all at once, and wait until they have."""
    for program in programs:
        program.send(signal.SIGTERM)
    for program in programs:
        program.end()


@dataclass(frozen=True)
class Step:
    """A line that `digits.py` writes for each training step."""

    step: int
    epoch: int
    round: int
    world_size: int
    monotonic_s: float
    """When the step was done, by the monotonic clock."""


class Training:
    """The script `digits.py` as a job on the nodes of a cluster, and the observations of it."""

    def __init__(
        self, cluster: Cluster, job: str, epochs: int, show: Callable[[Training], None], former: Training | None = None
    ) -> None:
        """Begin without nodes; `show` is called after each observation. `former` is an earlier run of the same job."""
        self.cluster = cluster
        self.job = job
        self.epochs = epochs
        self.steps: list[Step] = []
        """All steps so far, in the order of time; a step that was lost comes again in the next round."""
        self.round = 0
        self.round_seen_s = 0.0
        """When the current round was first seen."""
        self.status: dict[str, Any] = {}
        """The coordinator's last answer."""
        self._show = show
        self._last_step_s = time.monotonic()
        """When the last step was seen."""
        self._progress = cluster.folder / f"{job}.progress"
        self._progress.touch()
        self._read = self._progress.stat().st_size
        """How many bytes of the file were read."""
        self._former_run = "" if former is None else str(former.status["run"])

    def start_alone(self, node: str, workers: int) -> None:
        """Start one nodeclient for the whole job, with so many workers. Raises `ClusterError`."""
        self._start(node, "--nnodes", "1", "--nproc-per-node", str(workers))

    def start_node(self, node: str) -> None:
        """Start one of several nodeclients, with one worker. Raises `ClusterError`."""
        disk = ("--persist", str(self.cluster.folder / "disk"))
        self._start(node, "--nnodes", f"2:{len(NODES)}", "--nproc-per-node", "1", "--max-restarts", "3", *disk)

    def _start(self, node: str, *shape: str) -> None:
        """Start a nodeclient by the command that would be typed on a host."""
        flags = (*shape, "--preload", PRELOAD)
        script = (sys.executable, str(Path(__file__).with_name("digits.py")))
        work = ("--epochs", str(self.epochs), "--batch-size", str(BATCH_SIZE))
        files = ("--checkpoint", str(self.cluster.folder / f"{self.job}.pt"), "--progress", str(self._progress))
        self.cluster.start_node(node, self.job, *flags, "--", *script, *work, *files)

    def until(self, reached: Callable[[], bool]) -> None:
        """Observe until a condition is true. Raises `ClusterError` if a node ends before, or steps no longer come."""
        while not reached():
            if ended := self._exit_codes():
                early = "nodes ended" if any(ended.values()) else "the training was over too early (try more --epochs)"
                raise ClusterError(f"{early}, with these exit codes: {ended}")
            self._observe()

    def stop(self) -> None:
        """Ask all nodes to leave, by SIGTERM, and observe until they have. Raises `ClusterError` if one does not."""
        for node in self.cluster.nodes.values():
            node.send(signal.SIGTERM)
        self._until_all_end_with(128 + signal.SIGTERM)

    def finish(self) -> float:
        """Observe until all nodes have ended; return the accuracy. Raises `ClusterError` if a node has failed."""
        self._until_all_end_with(0)
        output = "".join(log.read_text() for log in self.cluster.folder.glob(f"{self.job}-*.log"))
        return float(re.findall(r"(?:^|\] )accuracy ([0-9.]+)$", output, re.MULTILINE)[-1])

    def last_step(self, number: int) -> Step:
        """Return the last step of a round."""
        return [step for step in self.steps if step.round == number][-1]

    def node_of_rank(self, rank: int) -> str:
        """Return the node whose worker has that rank."""
        return next(str(node["node"]) for node in self.status["nodes"] if rank in node["ranks"])

    def _until_all_end_with(self, code: int) -> None:
        while len(exit_codes := self._exit_codes()) < len(self.cluster.nodes):
            self._observe()
        if set(exit_codes.values()) != {code}:
            raise ClusterError(f"not all nodes ended with {code}; their exit codes are {exit_codes}")
        self._observe()  # reads the last steps
        end_all(list(self.cluster.nodes.values()))
        self.cluster.nodes.clear()

    def _exit_codes(self) -> dict[str, int]:
        """Return the exit codes of the nodes that have ended, by node."""
        return {name: node.exit_code for name, node in self.cluster.nodes.items() if node.exit_code is not None}

    def _observe(self) -> None:
        """Wait a little, record changes, and show them."""
        self.cluster.wait_a_little()
        now = time.monotonic()
        status = self.cluster.status(self.job)
        if status is not None and status["run"] != self._former_run:
            self.status = status
        if self.status and self.status["round"] > self.round:
            self.round = self.status["round"]
            self.round_seen_s = now
        with self._progress.open("rb") as progress:
            progress.seek(self._read)
            *lines, _unfinished = progress.read().split(b"\n")
        self._read += sum(len(line) + 1 for line in lines)
        self.steps += [Step(**json.loads(line)) for line in lines]
        if lines:
            self._last_step_s = now
        if now - self._last_step_s > PATIENCE_S:
            raise ClusterError(f"no training step for {PATIENCE_S:.0f} s: {self.status.get('reason')}")
        self._show(self)
