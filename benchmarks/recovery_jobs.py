"""A real training job under nodeclient or torchrun: started, watched by its marks and logs, and broken.

A job has one worker on each node, all on this machine. `rivals.jobs` has those under other projects' launchers.
`recovery`, `kept` and `rivals` decide what is done to them, and report what follows.
"""

import compileall
import os
import re
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from recovery_parts import Mark, of_round, parse, steps
from tables import BenchmarkError

from tests.support.cluster import Coordinator
from tests.support.hosts import Hosts
from tests.support.programs import BIN, Program, clean_environ, kill_quietly

Result = TypeVar("Result")

ROOT = Path(__file__).parents[1]

TRAINING = Path(__file__).with_name("recovery_training.py")

LOOK_AGAIN_S = 0.02
"""The interval of looks for marks and log lines, which carry their own times; the end of a process is seen at once."""

START_WITHIN_S = 120.0
"""How long a job may take to run, before anything is measured: seconds, if nothing is wrong."""

LAST_CALL_S = 2
"""How long torchrun waits for more nodes than its minimum, here as long as coordinatord. Its default is 30."""

SETTINGS = {"OMP_NUM_THREADS": "1", "TZ": "UTC", "PYTHONUNBUFFERED": "1"}
"""The environment of all programs: the same threads under each launcher, logs whose times can be read."""

TORCHRUN_SETTINGS = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "LOGLEVEL": "INFO"}
"""If the first is not set, a restart finds the keys of the last round in the store, and most jobs die of that."""


@dataclass(frozen=True, slots=True)
class Words:
    """A launcher's log lines as regular expressions: its time stamps, and its events."""

    time: re.Pattern[str]
    time_format: str
    ready: str
    """It begins to look for the others."""
    prepared: str
    """It has imported what workers need, if it does that."""
    detected: str
    """Something is wrong, or a new node is there: the workers are to be stopped."""
    ranked: str
    """It has its ranks, and starts workers."""
    without_year: bool = False
    """The stamps begin with the month, but `time_format` with the year."""


TORCHRUN_WORDS = Words(
    time=re.compile(r"[IWE](\d{4} \d\d:\d\d:\d\d\.\d+)"),
    time_format="%Y%m%d %H:%M:%S.%f",
    ready="Rendezvous'ing worker group",
    prepared="Rendezvous'ing worker group",
    detected=r"Worker group FAILED|Detected \d+ new nodes|failed \(exitcode",
    ranked="Rendezvous complete for workers",
    without_year=True,
)


TORCHRUN_CULPRIT = re.compile(r"failed \(exitcode: .*\(pid: (?P<pid>\d+)\)")

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


class Job:
    """One job and its nodes, named by one letter each; each launcher has a class of its own."""

    words: Words
    """How its log is read, where `recovery` makes parts of a pause of it."""

    culprit: re.Pattern[str] | None = None
    """The words by which its log names who caused a failure: a group `node`, or `pid` for that of a worker."""

    restarts = 3
    """More than any single deed takes, even with torchrun: there every agent counts the loss of a peer as a failure."""

    training: Sequence[str] = (str(TRAINING),)
    """The script, and what it is given before the files of marks and of the end."""

    def __init__(self, nnodes: str, folder: Path, hosts: Hosts | None) -> None:
        """Begin without nodes. With `hosts`, each node is on the one that has its name."""
        self.nnodes = nnodes
        self.nodes: dict[str, Program] = {}
        self.marks: list[Mark] = []
        self.ends: dict[int, float] = {}
        """When processes ended, by their ids: those of nodes and of workers."""
        self._hosts = hosts
        self._marks_file, self._finish_file = folder / "marks", folder / "finish"
        self._marks_file.touch()
        self._watched: dict[int, int] = {}
        """The processes that are watched, by pidfd."""
        self._poll = select.poll()
        self._wall_ahead = time.clock_gettime(time.CLOCK_REALTIME) - time.monotonic()

    def start(self, name: str) -> None:
        """Start a node."""
        script = (*self.training, str(self._marks_file), str(self._finish_file))
        environ = clean_environ(**SETTINGS, **self.settings())
        if self._hosts is not None:
            environ["GLOO_SOCKET_IFNAME"] = "eth0"
        prefix = () if self._hosts is None else self._hosts.on(name)
        self.nodes[name] = Program(*prefix, *self.command(name), *script, environ=environ)
        self._watch(self.nodes[name].pid)

    def settings(self) -> Mapping[str, str]:
        """Return the additions to the launcher's environment."""
        raise NotImplementedError

    def command(self, name: str) -> Sequence[str]:
        """Return the command that starts a node, up to the script and its arguments."""
        raise NotImplementedError

    def finish(self) -> None:
        """Let all ranks end well."""
        self._finish_file.touch()

    def begin_anew(self) -> None:
        """Ask all nodes to end, by SIGTERM, and start them again when they have. Raises `BenchmarkError`."""
        nodes = list(self.nodes)
        for node in self.nodes.values():
            node.signal(signal.SIGTERM)
        self.wait(lambda: False, START_WITHIN_S)  # it ends when they all have
        if not self.over:
            raise BenchmarkError(f"the nodes do not end:\n{self.output()}")
        for name in nodes:
            self.nodes.pop(name).close()
        for name in nodes:
            self.start(name)

    def close(self) -> None:
        """Kill all that is left."""
        for node in self.nodes.values():
            node.close()
        for pidfd in self._watched:
            os.close(pidfd)

    # What is done to it

    def kill_worker(self, name: str) -> None:
        """Kill the worker of a node with -9."""
        for pid in self.workers_of(name):
            kill_quietly(pid)

    def freeze_worker(self, name: str) -> None:
        """Stop the worker of a node by SIGSTOP."""
        for pid in self.workers_of(name):
            kill_quietly(pid, signal.SIGSTOP)

    def kill_coordinator(self) -> None:
        """Kill with -9 what the nodes meet at."""
        raise NotImplementedError

    def kill_node(self, name: str) -> None:
        """Kill a launcher and its worker with -9, as the loss of the whole host would."""
        workers = self.workers_of(name)
        for pid in (self.nodes[name].pid, *workers):
            kill_quietly(pid)

    def cut_node(self, name: str) -> None:
        """Drop all packets to and from a node's host. Raises `BenchmarkError` without hosts."""
        if self._hosts is None:
            raise BenchmarkError("this job is on one host, and that has no cable")
        self._hosts.cut(name)

    def workers_of(self, name: str) -> list[int]:
        """Return the living workers of a node."""
        return [pid for pid in {mark.pid for mark in self.marks} - set(self.ends) if self.node_of(pid) == name]

    def node_of(self, pid: int) -> str | None:
        """Return the node to which a living process belongs."""
        names = {node.pid: name for name, node in self.nodes.items()}
        while pid > 1 and pid not in names:
            pid = _parent(pid)
        return names.get(pid)

    def node_of_rank(self, rank: int) -> str:
        """Return the node whose worker has this rank in the last round. Raises `BenchmarkError`."""
        mark = next(mark for mark in reversed(self.marks) if mark.rank == rank)
        name = self.node_of(mark.pid)
        if name is None:
            raise BenchmarkError(f"the worker of rank {rank} has ended before anything was done to it\n{self.output()}")
        return name

    # What is observed

    def await_steps(
        self, count: int, world_size: int, without: Collection[str] = frozenset(), patience_s: float = START_WITHIN_S
    ) -> str:
        """Wait until a round of this size, other than those of `without`, has done so many steps.

        Return which, or "" for none.
        """

        def look() -> str | None:
            rounds = dict.fromkeys(mark.round for mark in self.marks if mark.world_size == world_size)
            others = (round_ for round_ in rounds if round_ not in without)
            return next((round_ for round_ in others if len(steps(of_round(self.marks, round_))) >= count), None)

        return self.wait(look, patience_s) or ""

    def wait(self, look: Callable[[], Result | None], patience_s: float) -> Result | None:
        """Look again and again until there is something true; None if all nodes have ended, or it takes too long."""
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            over = self.over
            self._look()
            if found := look():
                return found
            if over:
                break
        return None

    @property
    def over(self) -> bool:
        """Whether all nodes have ended."""
        return all(node.pid in self.ends for node in self.nodes.values())

    def logged(self, words: Words, pattern: str, names: Sequence[str] = ()) -> Iterator[float]:
        """Yield when lines with `pattern` were logged, by the nodes `names` or by all."""
        for name in names or list(self.nodes):
            for line in list(self.nodes[name].lines):
                stamp = words.time.match(line)
                if stamp and re.search(pattern, line):
                    yield self._moment(words, stamp[1])

    def log(self) -> Mapping[str, Sequence[str]]:
        """Return the lines that may name a culprit, by the name of the program that has written them."""
        return {name: node.lines for name, node in self.nodes.items()}

    def output(self) -> str:
        """Return the last output of the nodes."""
        return "\n".join(f"--- {name}\n{node.output}" for name, node in self.nodes.items())

    def _moment(self, words: Words, stamp: str) -> float:
        year = f"{datetime.now(UTC).year}" if words.without_year else ""
        when = datetime.strptime(f"{year}{stamp}", words.time_format).replace(tzinfo=UTC)
        return when.timestamp() - self._wall_ahead

    def _look(self) -> None:
        for pidfd, _ in self._poll.poll(LOOK_AGAIN_S * 1000):
            self.ends[self._watched.pop(pidfd)] = time.monotonic()
            self._poll.unregister(pidfd)
            os.close(pidfd)
        new = parse(self._marks_file.read_text())[len(self.marks) :]
        for pid in {mark.pid for mark in new} - {mark.pid for mark in self.marks}:
            self._watch(pid)
        self.marks += new

    def _watch(self, pid: int) -> None:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self.ends[pid] = time.monotonic()
        else:
            self._watched[pidfd] = pid
            self._poll.register(pidfd, select.POLLIN)


class TorchrunJob(Job):
    """A job of torchrun's with c10d; its first node hosts the store."""

    words = TORCHRUN_WORDS
    culprit = TORCHRUN_CULPRIT

    def __init__(self, nnodes: str, folder: Path, hosts: Hosts | None, program: Path = BIN / "torchrun") -> None:
        """Begin without nodes, with this program of torchrun's flags."""
        super().__init__(nnodes, folder, hosts)
        self._program = program
        self._port = free_port()

    def kill_coordinator(self) -> None:
        """Kill the agent that has the store of c10d, and its worker: they are on the host that is lost."""
        self.kill_node(next(iter(self.nodes)))

    def settings(self) -> Mapping[str, str]:
        """Return the variables with which it recovers at all, and logs when it does what."""
        return TORCHRUN_SETTINGS

    def command(self, name: str) -> Sequence[str]:
        """Return the command that one would type on the host, at its best."""
        first = next(iter(self.nodes), name)
        address = {node: "127.0.0.1" if self._hosts is None else self._hosts.address[node] for node in (first, name)}
        conf = f"last_call_timeout={LAST_CALL_S},is_host={'true' if name == first else 'false'}"
        where = ("--rdzv-backend=c10d", f"--rdzv-endpoint={address[first]}:{self._port}", "--rdzv-id=recovery")
        nodes = (f"--nnodes={self.nnodes}", "--nproc-per-node=1", f"--max-restarts={self.restarts}")
        return (str(self._program), *where, f"--rdzv-conf={conf}", *nodes, f"--local-addr={address[name]}")


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
                job.training = (str(TRAINING), IN_PLACE)
        stack.callback(job.close)
        yield job


def _parent(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def free_port() -> int:
    """Return a port of this host that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
