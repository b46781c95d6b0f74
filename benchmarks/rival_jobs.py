"""Real training jobs under other projects' fault tolerance, where they are installed: torchft, NVRx and DLRover.

They are looked for in a folder of programs, `bin` of a virtual environment: what they depend on need not go together
with what is here. README.md beside this file says what each of them was given, and what could not be run.
"""

import argparse
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from recovery_jobs import (
    LAST_CALL_S,
    ROOT,
    SETTINGS,
    TORCHRUN_CULPRIT,
    TORCHRUN_SETTINGS,
    TORCHRUN_WORDS,
    Job,
    TorchrunJob,
    free_port,
)

from tests.support.programs import BIN, Program, clean_environ, kill_quietly

HERE = Path(__file__).parent

NAMES = "abcdefgh"
"""The names of nodes, in the order in which they are started."""

HEARTBEAT_TIMEOUT_MS = 1_000
"""The silence after which torchft's lighthouse counts a replica as gone: as long as the grace of coordinatord. Its
default is 5,000, which would be most of the figure."""

JOIN_TIMEOUT_MS = 2_000
"""How long it waits for replicas that live and do not ask for the next quorum: as long as the settle window."""

QUORUM_TICK_MS = 20
"""How often it looks. Its default is 100."""

QUORUM_RETRIES = 1_000
"""How often a replica asks a lighthouse that is gone before its worker ends. The default is 0."""


FT_LAUNCHER_WORDS = replace(
    TORCHRUN_WORDS,
    time=re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+)\]"),
    time_format="%Y-%m-%d %H:%M:%S,%f",
    without_year=False,
)


@dataclass(frozen=True, slots=True)
class Rival:
    """Another project."""

    program: str
    """What is installed with it, and with nothing else."""
    package: str
    begin: Callable[[str, Path, Path], Job]
    """Makes a job without nodes: of so many (MIN:MAX), with a folder for its files and one of programs."""

    training: Callable[[str, str, str], Sequence[str] | None]
    """Returns the script of `kept` and its arguments, for a mode, megabytes and a folder; None: it has no such way."""

    def missing(self, programs: Path) -> str:
        """Return what is not there, or an empty text."""
        found = (programs / self.program).exists()
        return "" if found else f"{self.package} is not installed: there is no {programs / self.program}"


class TorchftJob(Job):
    """A job of torchft's: each node is a replica group of one worker, under a torchrun of its own.

    They meet at a lighthouse. A worker that is killed is started again by its torchrun, while the others go on.
    """

    culprit = TORCHRUN_CULPRIT

    def __init__(self, nnodes: str, folder: Path, programs: Path) -> None:
        """Start the lighthouse, and begin without nodes."""
        super().__init__(nnodes, folder, None)
        self.training = (str(HERE / "torchft_training.py"), "0", str(folder))
        self._programs = programs
        self._address = f"127.0.0.1:{free_port()}"
        self._lighthouse = self._light()

    def _light(self) -> Program:
        times = {
            "heartbeat_timeout_ms": HEARTBEAT_TIMEOUT_MS,
            "join_timeout_ms": JOIN_TIMEOUT_MS,
            "quorum_tick_ms": QUORUM_TICK_MS,
        }
        flags = (f"--{name}={value}" for name, value in times.items())
        least, _, most = self.nnodes.rpartition(":")
        replicas = min(int(least or most), max(1, int(most) - 1))  # it is made to go on without one of them
        where = ("--bind", self._address, f"--min_replicas={replicas}")
        return Program(self._programs / "torchft_lighthouse", *where, *flags, environ=clean_environ(**SETTINGS))

    def settings(self) -> Mapping[str, str]:
        """Return where the lighthouse is, and how patient a replica is with it."""
        return {
            "TORCHFT_LIGHTHOUSE": f"http://{self._address}",
            "TORCHFT_QUORUM_RETRIES": str(QUORUM_RETRIES),
            "LOGLEVEL": "INFO",
        }

    def command(self, name: str) -> Sequence[str]:
        """Return the command that one would type on the host."""
        nodes = ("--standalone", "--nnodes=1", "--nproc-per-node=1", f"--max-restarts={self.restarts}")
        return ("env", f"REPLICA_GROUP_ID={name}", str(self._programs / "torchrun"), *nodes)

    def kill_coordinator(self) -> None:
        """Kill the lighthouse, and start it again, as a supervisor would: without it no step is done."""
        kill_quietly(self._lighthouse.pid)
        self._lighthouse.wait()
        self._lighthouse.close()
        self._lighthouse = self._light()

    def close(self) -> None:
        """Kill all that is left."""
        super().close()
        self._lighthouse.close()


class FtLauncherJob(TorchrunJob):
    """A job of NVRx's ft_launcher, which has torchrun's flags and a c10d store of its own."""

    words = FT_LAUNCHER_WORDS

    def __init__(self, nnodes: str, folder: Path, programs: Path) -> None:
        """Begin without nodes."""
        super().__init__(nnodes, folder, None, programs / "ft_launcher")

    def settings(self) -> Mapping[str, str]:
        """Return torchrun's variables, and where the scripts find workerlib."""
        return {**TORCHRUN_SETTINGS, "PYTHONPATH": str(ROOT)}


class DlroverJob(Job):
    """A job of DLRover's: an agent on each node, and a master that they meet at.

    Its flash checkpoints are in shared memory that is named after the job and the rank on its host, and outlives an
    agent that is killed. All nodes are on one host here, so each has a name of its own, which no other job has.
    """

    def __init__(self, nnodes: str, folder: Path, programs: Path) -> None:
        """Start the master, and begin without nodes."""
        super().__init__(nnodes, folder, None)
        self._programs = programs
        self._port = free_port()
        self._name = folder.name
        most = nnodes.rpartition(":")[2]
        flags = ("--platform", "local", "--job_name", "recovery", "--node_num", most, "--port", str(self._port))
        command = (programs / "python", "-m", "dlrover.python.master.main", *flags)
        self._master = Program(*command, environ=clean_environ(**SETTINGS))

    def settings(self) -> Mapping[str, str]:
        """Return where the master is."""
        return {"DLROVER_MASTER_ADDR": f"127.0.0.1:{self._port}"}

    def command(self, name: str) -> Sequence[str]:
        """Return the command that one would type on the host."""
        rank = NAMES.index(name)
        place = (f"NODE_RANK={rank}", f"NODE_ID={rank}", f"ELASTIC_JOB_NAME={self._name}-{name}")
        conf = f"last_call_timeout={LAST_CALL_S},lastcall_timeout={LAST_CALL_S}"
        nodes = (
            f"--nnodes={self.nnodes}",
            "--nproc-per-node=1",
            f"--max-restarts={self.restarts}",
            f"--rdzv-conf={conf}",
        )
        return ("env", *place, str(self._programs / "dlrover-run"), *nodes, "--save-at-breakpoint")

    def kill_coordinator(self) -> None:
        """Kill the master."""
        kill_quietly(self._master.pid)

    def close(self) -> None:
        """Kill all that is left, and remove the memory and the sockets that agents leave behind."""
        super().close()
        self._master.close()
        for memory in Path("/dev/shm").glob(f"{self._name}-*"):  # noqa: S108 - where the kernel shows it
            memory.unlink()
        for sockets in Path("/tmp/ckpt_sock").glob(f"{self._name}-*"):  # noqa: S108 - DLRover's own choice
            shutil.rmtree(sockets)


def _of_torchft(mode: str, megabytes: str, folder: str) -> Sequence[str] | None:
    # It shards within a replica group, and loses all of a group with one of its hosts.
    return (str(HERE / "torchft_training.py"), megabytes, folder) if mode == "keep" else None


def _of_nvrx(mode: str, megabytes: str, folder: str) -> Sequence[str] | None:
    return (str(HERE / "kept_training.py"), f"dcp-{mode}", megabytes, folder)


def _of_dlrover(mode: str, megabytes: str, folder: str) -> Sequence[str] | None:
    return (str(HERE / "dlrover_training.py"), megabytes, folder) if mode == "keep" else None


RIVALS = {
    "torchft": Rival("torchft_lighthouse", "torchft-nightly", TorchftJob, _of_torchft),
    "nvrx": Rival("ft_launcher", "nvidia-resiliency-ext", FtLauncherJob, _of_nvrx),
    "dlrover": Rival("dlrover-run", "dlrover", DlroverJob, _of_dlrover),
}


def add_rivals_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag that says where other projects are installed."""
    words = f"where other projects' programs are, of {', '.join(RIVALS)} (default: {BIN}, beside Python)"
    parser.add_argument("--rivals", type=Path, default=BIN, metavar="BIN", help=words)


def without_missing(sides: Sequence[str], programs: Path) -> list[str]:
    """Return the sides that can be played; say in a line each what those take that cannot."""
    missing = {side: RIVALS[side].missing(programs) for side in sides if side in RIVALS}
    for side, why in missing.items():
        if why:
            print(f"{side} is left out. {why}; see --rivals", flush=True)
    return [side for side in sides if not missing.get(side)]
