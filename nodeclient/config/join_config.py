"""The settings of a node, as one frozen record."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import ClassVar, Literal

from msgspec import Struct

from coordinatord.protocol.messages import DIGEST_LETTERS, JobSpec
from nodeclient.access.endpoint import Endpoint
from nodeclient.access.keyring import USUAL, AccessSettings
from nodeclient.core.agent_settings import ABORT_TIMEOUT_S, KEEP_RATE, KEEP_TIMEOUT_S, NCCL_ABORT_TIMEOUT_S, Settings
from nodeclient.keeping.disk.persist_settings import PersistSettings
from nodeclient.output.output_settings import OutputSettings

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
"""The signals that make the node leave. torchrun handles them except SIGUSR1, which many jobs have Slurm send."""

DEFAULT_JOB = "default"
"""The job id if nothing names the job."""


def command_digest(command: Sequence[str]) -> str:
    """Return digests by which two nodes' commands can be compared, as `Join.command` has them; empty for no command.

    The program counts without its directory, since hosts may differ in that. So does the script in its own digest.
    """
    if not command:
        return ""
    program = PurePath(command[0]).name
    return _digest(program, _script(program, command[1:])) + _digest(program, *command[1:])


def _script(program: str, arguments: Sequence[str]) -> str:
    """Return the name of the file or module that Python runs; empty for code on the command line, or another program.

    The arguments of another program may all differ from host to host.
    """
    named = (argument for argument in arguments if argument == "-c" or not argument.startswith("-"))
    first = next(named, "-c") if program.startswith("python") else "-c"
    return "" if first == "-c" else PurePath(first).name


def _digest(*words: str) -> str:
    return hashlib.sha256(os.fsencode("\0".join(words))).hexdigest()[:DIGEST_LETTERS]


class JoinConfig(Struct, frozen=True):
    """All settings of a node, whichever command line set them; durations in seconds.

    The help of the flag with the same name says what a field is that has no text here.
    """

    PROGRAM: ClassVar[Literal["node"]] = "node"

    coordinators: tuple[Endpoint, ...]
    """They are tried in turn; empty with `standalone`."""
    standalone: bool
    job: str
    node: str
    spec: JobSpec
    workers: int
    role: str
    topology: str
    advertise_address: str | None
    """The address at which others reach this node: a given one, or that of the `interface`."""
    join_timeout_s: float
    stop_timeout_s: float
    log_level: str
    command: tuple[str, ...]
    abort_timeout_s: float = ABORT_TIMEOUT_S
    nccl_abort_timeout_s: float = NCCL_ABORT_TIMEOUT_S
    """How long workers get to leave a round for another one once they abort NCCL."""
    group_rank: int | None = None
    output: OutputSettings = OutputSettings()
    signals: tuple[signal.Signals, ...] = SIGNALS
    numa: str | None = None
    virtual_local_rank: bool = False
    preload: tuple[str, ...] = ()
    keep_bytes: int = 0
    """How much memory there is for state that workers keep; 0 for none."""
    keep_rate: float = KEEP_RATE
    keep_timeout_s: float = KEEP_TIMEOUT_S
    persist: PersistSettings | None = None
    """Where state that workers keep is written to, and how often; None for nowhere."""
    error_file: Path | None = None
    """The file in which a scheduler expects the root cause (TORCHELASTIC_ERROR_FILE)."""
    own_coordinator: bool = False
    """Whether to start the coordinator if its address is this host's and nothing listens there yet, as torchrun
    does."""
    interface: str | None = None
    """The network interface that gloo and NCCL use in the workers; None if they choose it."""
    access: AccessSettings = USUAL
    """Where tokens may be, and how to connect to the coordinator."""
    remarks: tuple[str, ...] = ()
    """Lines for the start: where values were taken from, and what is done instead of what was asked for."""
    log_format: str = "text"
    file: Path | None = None
    """The file that some of these settings come from, if one was named."""

    @property
    def agent_settings(self) -> Settings:
        """What the agent decides by."""
        return Settings(
            self.workers,
            join_timeout_s=self.join_timeout_s,
            stop_timeout_s=self.stop_timeout_s,
            abort_timeout_s=self.abort_timeout_s,
            nccl_abort_timeout_s=self.nccl_abort_timeout_s,
            preloads=bool(self.preload),
            keeps=self.keep_bytes > 0,
            coordinator_forgets=self.own_coordinator,
        )
