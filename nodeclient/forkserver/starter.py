"""Starts workers: warm if there is a parent interpreter to fork them, cold otherwise.

A cold worker is a process of its own, and imports everything itself. The first parent (`server_process`) starts with
the node. If it ends, the next round starts cold, and only then is another parent prepared, for later rounds: so the
`FAILURES_MAX` attempts are spread over rounds, and a problem that passes may be over by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from subprocess import SubprocessError

from msgspec.structs import replace

from coordinatord.protocol.fields import SENTENCE_MAX
from coordinatord.protocol.messages import ColdCause, WhyCold
from coordinatord.protocol.text import clip
from nodeclient.core.effects import Level
from nodeclient.forkserver.server_process import ForkServer, ForkServerError
from nodeclient.workers.python_command import ColdError, check_warm
from nodeclient.workers.spawn import WorkerCommand, spawn, stdin_of_worker

LAZY_IMPORTS = {
    "torch": ("torch._dynamo", "workerlib.keeping.keeper", "torch.distributed.checkpoint.default_planner"),
}
"""Modules to preload after a module that the user names, because training would import them later.

Every optimizer, and DistributedDataParallel, imports torch._dynamo when it is constructed (torch/_compile.py). That
takes as long as the import of torch itself: 1.2 s for 823 modules (torch 2.13, CPU). After it, the imports of a whole
first step take 2 ms. `ctx.keep` needs the other two modules, the last one only at another world size: 0.1 s for 91
modules.
"""

Notify = Callable[[Level, str], None]

FAILURES_MAX = 3
"""The limit of parents in a row that fail before they have forked a worker: each costs the time of an import."""

HEAD_START_S = 0.03
"""How much earlier the worker of rank 0 starts, so that it listens before others connect. A TCPStore retries a refused
connection only after 0.25 to 0.75 s, which delayed one warm round in three. A fork with torch takes 10 to 20 ms."""


def lazy_imports(modules: Sequence[str]) -> tuple[str, ...]:
    """Return the further modules to import after the named ones."""
    return tuple(late for name in modules for late in LAZY_IMPORTS.get(name, ()))


class WorkerStarter:
    """Starts one node's workers. If `modules` is empty, all of them start cold."""

    def __init__(self, modules: Sequence[str], command: WorkerCommand, notify: Notify, *, workers: int) -> None:
        """Prepare to start this many workers by `command`, whose arguments may contain `LOCAL_RANK_MACRO`."""
        self._modules = tuple(modules)
        self._workers = workers
        self._command = command
        self._notify = notify
        self._parent: ForkServer | None = None
        self._failures = 0
        """How many parents have failed since a worker was last forked."""
        self.forked = 0
        """How many workers were forked so far."""
        ended = WhyCold(ColdCause.PARENT, "the interpreter of --preload has ended")
        self._obstacle = ended if self._modules else None
        """Why a worker that starts without a parent is cold; None if no parent is wanted. The node joins no round
        before the first parent is ready or has failed. So the initial text means that a parent has ended."""
        self.why_cold: WhyCold | None = None
        """Why the last started worker is cold; None if it is warm, or need not be."""
        self.settled = asyncio.Event()
        """Set once the first parent is ready or has failed, or there can be none."""
        self._parent_missed = asyncio.Event()
        """Set when a worker was started cold for lack of a parent."""

    @property
    def pids(self) -> frozenset[int]:
        """The process ids of the children that this object reaps."""
        return frozenset() if self._parent is None else frozenset({self._parent.pid})

    async def delay_start(self, *, needed: bool) -> None:
        """Give the node of rank 0 a head start, if the round makes that `needed` and the workers of this node are warm.

        Cold workers need none: their start times differ by more than that anyway.
        """
        if needed and self._parent is not None and self._parent.usable:
            await asyncio.sleep(HEAD_START_S)

    async def run(self) -> None:
        """Run one parent after the other, until cancelled or no further parent is possible."""
        try:
            if self._modules:
                await self._check_hook()
            while self._modules and self._failures < FAILURES_MAX:
                self._parent_missed.clear()
                try:
                    await self._run_parent()
                except ForkServerError as error:
                    self._failures += 1
                    until = "" if self._failures == FAILURES_MAX else " until there is another one"
                    self._obstacle = _why_cold(error)
                    self._notify(Level.WARNING, f"--preload: {error}: workers start cold{until}")
                self.settled.set()
                await self._parent_missed.wait()
        except (ColdError, OSError, SubprocessError, ValueError) as error:
            self._obstacle = _why_cold(error)
            self._notify(Level.WARNING, f"--preload: workers start cold: {error}")
        finally:
            self.settled.set()

    async def _check_hook(self) -> None:
        """Check that the command's Python runs our `sitecustomize`: try it without the program. Raises `ColdError`."""
        interpreter = check_warm(self._command.argv, self._command.environ)
        trial = ForkServer(replace(self._command, argv=(*interpreter, "-c", "pass")), modules=None)
        self._parent = trial  # so that `pids` has it
        try:
            await trial.prepare()
        except ForkServerError as error:
            raise ColdError(f"{interpreter[0]} does not import sitecustomize from PYTHONPATH") from error
        finally:
            await trial.close()
            self._parent = None

    async def _run_parent(self) -> None:
        """Run a parent until it ends, and then raise `ForkServerError`, or `ColdError` if another would fail too."""
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        names = ", ".join(self._modules)
        self._notify(Level.INFO, f"preloading {names}")
        parent = self._parent = ForkServer(self._command, self._modules, lazy_imports(self._modules))
        try:
            count = await parent.prepare()
            took_s = loop.time() - began_at
            self._notify(Level.INFO, f"preloaded {names} ({count} modules) in {took_s:.1f} s: workers start warm")
            parent.fork_ahead(self._workers)
            self.settled.set()
            await parent.end()
        finally:
            await parent.close()
            self._parent = None

    def spawn(self, command: WorkerCommand, local_rank: int, stdout: int, stderr: int, with_stdin: bool) -> int:
        """Start a worker; return its process id, as `nodeclient.workers.spawn.spawn` does. Raises `SpawnError`."""
        parent, self.why_cold = self._parent, self._obstacle
        if parent is not None and parent.usable:
            try:
                with stdin_of_worker(with_stdin) as stdin:
                    pid = parent.fork(command, (stdin, stdout, stderr))
            except ForkServerError as error:
                self._notify(Level.WARNING, f"worker {local_rank} starts cold: {error}")
                self.why_cold = _why_cold(error)
            else:
                self._failures, self.why_cold = 0, None
                self.forked += 1
                parent.fork_ahead_later(self._workers)
                return pid
        self._parent_missed.set()
        return spawn(command, local_rank, stdout, stderr, with_stdin)


def _why_cold(error: Exception) -> WhyCold:
    cause = error.cause if isinstance(error, ColdError) else ColdCause.PARENT
    return WhyCold(cause, clip(str(error), SENTENCE_MAX))
