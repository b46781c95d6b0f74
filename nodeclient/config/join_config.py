"""The settings of a node, as one frozen record."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import ClassVar, Literal

from msgspec import Struct

from coordinatord.protocol.ip_addresses import Endpoint
from coordinatord.protocol.messages import DIGEST_LETTERS, JobSpec
from nodeclient.access.keyring import AccessSettings
from nodeclient.core.agent_settings import ABORT_TIMEOUT_S, KEEP_RATE, KEEP_TIMEOUT_S, NCCL_ABORT_TIMEOUT_S, Settings
from nodeclient.keeping.disk.persist_settings import PersistSettings
from nodeclient.output.output_settings import OutputSettings
from nodeclient.workers.python_command import is_python, program_of

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
"""The signals on which the node leaves: those of torchrun, and SIGUSR1, which many jobs have Slurm send."""

DEFAULT_JOB = "default"
"""The job id of an unnamed job."""


def command_digest(command: Sequence[str]) -> str:
    """Return digests of the script and of the whole command, by which the coordinator compares the nodes of a job.

    They stand one after the other, as in `Join.command`; without a command the result is empty. Hosts may differ in the
    directory of the program, and in the name of their Python, so these are ignored.
    """
    if not command:
        return ""
    program = "python" if is_python(command[0]) else PurePath(command[0]).name
    return _digest(program, _script(command)) + _digest(program, *command[1:])


def _script(command: Sequence[str]) -> str:
    """Return the name of the file or module that Python runs; empty for code, and for a program other than Python."""
    option, program = program_of(command)
    return "" if option == "-c" else PurePath(program).name


def _digest(*words: str) -> str:
    return hashlib.sha256(os.fsencode("\0".join(words))).hexdigest()[:DIGEST_LETTERS]


class JoinConfig(Struct, frozen=True):
    """All settings of a node, whichever command line starts it; durations in seconds.

    A field without a docstring is described by the help of the flag that sets it.
    """

    PROGRAM: ClassVar[Literal["node"]] = "node"
    """The kind of settings, by which `cli` chooses what to run."""

    coordinators: tuple[Endpoint, ...]
    """The coordinators, to try in turn; empty with `standalone`."""
    standalone: bool
    job: str
    node: str
    spec: JobSpec
    workers: int
    role: str
    topology: str
    advertise_address: str | None
    """The address of this node for others: a given one, or that of the `interface`."""
    join_timeout_s: float
    stop_timeout_s: float
    log_level: str
    command: tuple[str, ...]
    abort_timeout_s: float = ABORT_TIMEOUT_S
    nccl_abort_timeout_s: float = NCCL_ABORT_TIMEOUT_S
    """The longest time that workers may take to move to another round once they abort NCCL."""
    group_rank: int | None = None
    output: OutputSettings = OutputSettings()
    signals: tuple[signal.Signals, ...] = SIGNALS
    numa: str | None = None
    virtual_local_rank: bool = False
    preload: tuple[str, ...] = ()
    health_check: tuple[str, ...] = ()
    no_builtin_check: bool = False
    """Whether this host is checked by `health_check` only."""
    keep_bytes: int = 0
    """The memory for kept state; 0 for none."""
    keep_rate: float = KEEP_RATE
    keep_timeout_s: float = KEEP_TIMEOUT_S
    persist: PersistSettings | None = None
    """Where and how often kept state is written to a disk; None for nowhere."""
    error_file: Path | None = None
    """The file for the root cause, which a scheduler reads (TORCHELASTIC_ERROR_FILE)."""
    own_coordinator: bool = False
    """Whether to start the coordinator if its address is this host's and nothing listens there, as torchrun does."""
    interface: str | None = None
    """The network interface for gloo and NCCL in the workers; None if they choose it."""
    access: AccessSettings = AccessSettings()
    """The places of tokens, and how to connect to the coordinator."""
    remarks: tuple[str, ...] = ()
    """Lines to log at the start: sources of values, and ignored settings."""
    log_format: str = "text"
    file: Path | None = None
    """The settings file, if one was named."""

    @property
    def agent_settings(self) -> Settings:
        """The settings for the agent's decisions."""
        return Settings(
            self.workers,
            join_timeout_s=self.join_timeout_s,
            stop_timeout_s=self.stop_timeout_s,
            abort_timeout_s=self.abort_timeout_s,
            nccl_abort_timeout_s=self.nccl_abort_timeout_s,
            preloads=bool(self.preload),
            keeps=self.keep_bytes > 0,
            coordinator_forgets=self.own_coordinator,  # the records of such a coordinator end with it
            checks_health=bool(self.health_check) or not self.no_builtin_check,
        )
