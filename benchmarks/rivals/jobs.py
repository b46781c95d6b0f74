"""Real training jobs under other projects' fault tolerance, where they are installed: torchft and NVRx.

They are looked for in a folder of programs, `bin` of a virtual environment: what they depend on need not go together
with what is here. README.md beside this file says what each of them was given.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from recovery_jobs import ROOT, SETTINGS, TORCHRUN_CULPRIT, TORCHRUN_SETTINGS, Job, TorchrunJob, free_port

from tests.support.programs import Program, clean_environ, kill_quietly

HEARTBEAT_TIMEOUT_MS = 1_000
"""The silence after which torchft's lighthouse counts a replica as gone: as long as the grace of coordinatord. Its
default is 5,000, which would be most of the figure."""

JOIN_TIMEOUT_MS = 2_000
"""How long it waits for replicas that live and do not ask for the next quorum: as long as the settle window."""

QUORUM_TICK_MS = 20
"""How often it looks. Its default is 100."""

QUORUM_RETRIES = 1_000
"""How often a replica asks a lighthouse that is gone before its worker ends. The default is 0."""


@dataclass(frozen=True, slots=True)
class Rival:
    """Another project."""

    program: str
    """What is installed with it, and with nothing else."""
    package: str
    begin: Callable[[str, Path, Path], Job]
    """Makes a job without nodes: of so many (MIN:MAX), with a folder for its files and one of programs."""

    training: Sequence[str]
    """The script, and its arguments before megabytes and folder."""

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

    def __init__(self, nnodes: str, folder: Path, programs: Path) -> None:
        """Begin without nodes."""
        super().__init__(nnodes, folder, None, programs / "ft_launcher")

    def settings(self) -> Mapping[str, str]:
        """Return torchrun's variables, and where the scripts find workerlib."""
        return {**TORCHRUN_SETTINGS, "PYTHONPATH": str(ROOT)}


RIVALS = {
    "torchft": Rival("torchft_lighthouse", "torchft-nightly", TorchftJob, ("torchft_training.py",)),
    "nvrx": Rival("ft_launcher", "nvidia-resiliency-ext", FtLauncherJob, ("kept_training.py", "dcp-keep")),
}
