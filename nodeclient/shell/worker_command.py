"""Builds the command of each worker of a round: its command line, its whole environment and its CPUs.

A variable that the user has set takes precedence, except for those that describe the worker, its round and its node.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from pathlib import Path

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.pair_messages import PairOrder
from nodeclient.config.join_config import JoinConfig
from nodeclient.core.effects import Start
from nodeclient.host.addresses import interface_towards
from nodeclient.host.capacity import allowed_cpus, cpu_quota
from nodeclient.host.devices import Host
from nodeclient.host.numa import bindings, core_of, format_cpus
from nodeclient.output.output import WorkerStreams
from nodeclient.workers.python_command import is_python
from nodeclient.workers.spawn import LOCAL_RANK_MACRO, WorkerCommand
from workerlib.contract import env
from workerlib.contract.env import DEFAULTS, KEEP, PROGRESS, ROUNDS, STACKS, WorkerEnvironment

LAUNCHER_DEFAULTS = {"PYTHONUNBUFFERED": "1"}
"""The same as torchrun's `python -u`: the last lines of a dying worker are not lost."""

OMP = "OMP_NUM_THREADS"
"""The variable for how many threads OpenMP, and so torch, starts for operators on the CPU."""

VISIBLE_GPUS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Variables that limit a process to some of the GPUs. HIP reads the first as well, where the second is not set."""

PAIR_TEST = Path(env.__file__).parents[1] / "pair_test.py"
"""The program of `workerlib` that tests a host together with another one."""

_NOT_INHERITED = ("TORCHELASTIC_ERROR_FILE", PROGRESS, KEEP, ROUNDS, STACKS)
"""Variables that nodeclient has if it is a worker of another node. Its own workers must not write where they lead."""


class LaunchError(OperationalError):
    """Workers cannot be started on this host as requested."""

    exit_code = ExitCode.USAGE


class CommandBuilder:
    """Builds the commands of one node's workers in each round."""

    def __init__(self, config: JoinConfig, inherited: Mapping[str, str], host: Host | None = None) -> None:
        """Divide the host's GPUs and CPUs among the workers; `inherited` is the environment.

        Raises `LaunchError` and `BindingError`.
        """
        host = host or Host()
        self._config = config
        self._inherited = {name: value for name, value in inherited.items() if name not in _NOT_INHERITED}
        self._defaults = {**DEFAULTS, **LAUNCHER_DEFAULTS, **_interface(config.interface)}
        self._gpus = [_own_gpu(inherited, rank) if config.virtual_local_rank else {} for rank in range(config.workers)]
        self._cpus: Sequence[frozenset[int]] = [allowed_cpus()] * config.workers
        remarks = []
        if config.numa is not None:
            self._cpus = bindings(config.numa, config.workers, inherited, host)
            remarks.append(_binding_in_words(config.numa, self._cpus))
        self._threads: list[int] | None = None
        """The threads of each worker by local rank; None if the user's or torch's own number counts."""
        # Torch's own default is a thread for each core, in every worker. torchrun sets 1.
        if config.workers > 1 and OMP not in inherited:
            core = {cpu: core_of(cpu, host) for cpu in frozenset().union(*self._cpus)}
            cores_of_workers, quota = [{core[cpu] for cpu in own} for own in self._cpus], cpu_quota(host)
            self._threads = _threads(cores_of_workers, quota)
            remarks.append(_threads_in_words(self._threads, len(set(core.values())), quota))
        self.remarks: tuple[str, ...] = tuple(remarks)
        """Texts about decisions that a user may want to know of."""

    def common_command(self) -> WorkerCommand:
        """Return what the commands of all workers share in every round, for the parents of warm workers and host tests.

        Its arguments still contain `LOCAL_RANK_MACRO`.
        """
        environ = {**self._defaults, **self._inherited}
        if self._threads is not None:
            environ[OMP] = str(max(self._threads))
        cpus = None if self._config.numa is None else frozenset().union(*self._cpus)
        return WorkerCommand(self._config.command, environ, cpus)

    def pair_command(self, order: PairOrder) -> WorkerCommand:
        """Return the command of a test with another node, with the interpreter and the environment of the workers."""
        common, interface = self.common_command(), interface_towards(order.address)
        gloo = {"GLOO_SOCKET_IFNAME": interface} if interface else {}
        python = common.argv[0] if is_python(common.argv[0]) else sys.executable
        words = map(str, (order.number, order.rank, order.address, order.port, order.within_s))
        return WorkerCommand((python, str(PAIR_TEST), *words), {**gloo, **common.environ})

    def commands(
        self, start: Start, streams: Sequence[WorkerStreams], variables: Sequence[Mapping[str, str]]
    ) -> list[WorkerCommand]:
        """Return the command of each worker. `streams` and `variables` are in the order of the local ranks.

        `variables` name each worker's slot for steps and its sockets.

        Where the round spans hosts, gloo listens on the interface that leads to the master, unless the user has named
        another one. By default it would listen on the interface to which the host's name resolves.
        """
        interface = interface_towards(start.assignment.master_address)
        gloo = {"GLOO_SOCKET_IFNAME": interface} if interface and interface != "lo" else {}  # "lo" spans no hosts
        base = {**gloo, **self._defaults}
        return [
            self._command(
                start, rank, {**base, **own.terminal_variables, **self._inherited, **own_variables}, own.error_file
            )
            for rank, (own, own_variables) in enumerate(zip(streams, variables, strict=True))
        ]

    def _command(self, start: Start, local_rank: int, base: Mapping[str, str], error_file: Path) -> WorkerCommand:
        config = self._config
        environ = {**base, **self._gpus[local_rank]}
        if self._threads is not None:
            environ[OMP] = str(self._threads[local_rank])
        environ |= _environment(config, start, local_rank).to_environ()
        environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ",".join(signum.name for signum in config.signals)
        environ["TORCHELASTIC_ERROR_FILE"] = str(error_file)
        program, *arguments = config.command
        argv = (program, *(argument.replace(LOCAL_RANK_MACRO, str(local_rank)) for argument in arguments))
        return WorkerCommand(argv, environ, None if config.numa is None else self._cpus[local_rank])


def _interface(name: str | None) -> dict[str, str]:
    """Return the variables that make gloo and NCCL use a network interface; none if none is named.

    NCCL takes a text after `=` for a whole name, and otherwise for the beginning of names.
    """
    return {} if name is None else {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"}


def _environment(config: JoinConfig, start: Start, local_rank: int) -> WorkerEnvironment:
    assignment = start.assignment
    return WorkerEnvironment(
        rank=assignment.first_rank + local_rank,
        local_rank=0 if config.virtual_local_rank else local_rank,
        world_size=assignment.world_size,
        local_world_size=config.workers,
        group_rank=assignment.group_rank,
        group_world_size=assignment.group_world_size,
        role=config.role,
        role_rank=assignment.first_role_rank + local_rank,
        role_world_size=assignment.role_world_size,
        master_address=assignment.master_address,
        master_port=assignment.master_port,
        restart_count=assignment.restarts_used,
        max_restarts=assignment.max_restarts,
        job=config.job,
        run=start.run,
        round=start.round,
        node=config.node,
        worker=local_rank,
        reason=start.reason,
    )


def _own_gpu(inherited: Mapping[str, str], local_rank: int) -> dict[str, str]:
    """Return the variables that show a worker one GPU only: an entry of the list in `inherited`, or else of all.

    Its local rank is the place in the list. Raises `LaunchError` if too few are listed. An empty list stays empty.
    """
    own = {}
    for variable in VISIBLE_GPUS:
        entries = [entry.strip() for entry in inherited.get(variable, "").split(",")]
        if entries != [""] and local_rank >= len(entries):
            raise LaunchError(
                f"--virtual-local-rank gives each worker a GPU of its own, but {variable}={inherited[variable]} has "
                f"none for local rank {local_rank}: list more, or start fewer workers with --nproc-per-node"
            )
        if entries != [""]:
            own[variable] = entries[local_rank]
    return own if own or inherited.keys() & set(VISIBLE_GPUS) else {VISIBLE_GPUS[0]: str(local_rank)}


def _binding_in_words(choice: str, cpus: Sequence[frozenset[int]]) -> str:
    bound = "; ".join(f"{local_rank}: {format_cpus(own)}" for local_rank, own in enumerate(cpus))
    return f"--numa-binding {choice}, CPUs by local rank: {bound}"


def _threads(cores_of_workers: Sequence[Collection[int]], quota: float | None) -> list[int]:
    """Return how many threads each worker gets: its cores, divided among the workers that share them.

    It gets one or more, and at most an equal share of the `quota` of CPUs. As `Fraction`s, three thirds are one core.
    """
    sharers = Counter(core for own in cores_of_workers for core in own)
    most = float("inf") if quota is None else quota / len(cores_of_workers)
    return [max(1, int(min(most, sum(Fraction(1, sharers[core]) for core in own)))) for own in cores_of_workers]


def _threads_in_words(threads: Sequence[int], cores: int, quota: float | None) -> str:
    least, most = min(threads), max(threads)
    each = _counted(most, "thread") if least == most else f"{least} to {most} threads"
    shared = _counted(cores, "core")
    if quota is not None and quota < cores:
        shared = f"{_counted(quota, 'CPU')} of the quota of its control group"
    return f"{OMP} is not set: each of {len(threads)} workers gets {each}, {shared} divided by {len(threads)}"


def _counted(number: float, noun: str) -> str:
    return f"{number:g} {noun}" if number == 1 else f"{number:g} {noun}s"
