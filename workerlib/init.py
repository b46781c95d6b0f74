"""`init`: reads the environment of a worker, sets its device, and makes torch's process group.

Its result, the `Context`, is what most scripts use of this package. `workerlib.rounds` gets one for each round from
`begin`.
"""

# ruff: noqa: PLC0415  # importing workerlib stays cheap, and possible without torch

from __future__ import annotations

import gc
import os
import sys
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from workerlib import gloo, progress, responder, stop
from workerlib.contract.env import DEFAULTS, ERROR_HANDLING, KEEP, WorkerEnvironment
from workerlib.stop import STOP_REQUEST

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from datetime import timedelta
    from types import TracebackType
    from typing import Any, Self

    import torch

    from workerlib.keeping.keeper import StepKeeper
    from workerlib.reuse.reused_worker import ReusedWorker


_keeper: StepKeeper | None = None
"""Keeps the state of this process; None before `Context.keep` is called in this round."""

_begun: WorkerEnvironment | None = None
"""The environment of the last round in which `begin` was called."""


@dataclass(frozen=True, slots=True)
class Context:
    """A worker's place in a round. Its process group lives until `close`, or until the end of a `with` block."""

    environment: WorkerEnvironment
    """The variables that the launcher has set, such as the reason for this round."""
    device: torch.device
    """The GPU of this worker, already set as the current one, or the CPU."""
    reuse: ReusedWorker | None = field(default=None, repr=False, compare=False)
    """Takes this process into the next round; None if the process ends with this one."""

    @property
    def rank(self) -> int:
        """The rank of this worker in the worker group, from 0."""
        return self.environment.rank

    @property
    def local_rank(self) -> int:
        """The rank of this worker on its node, from 0."""
        return self.environment.local_rank

    @property
    def world_size(self) -> int:
        """The number of workers in the worker group."""
        return self.environment.world_size

    @property
    def round(self) -> int:
        """The number of this formation of the worker group; within a run it only goes up."""
        return self.environment.round

    @property
    def restart_count(self) -> int:
        """How many restarts of the run's budget are used up; nodes that come and go use none."""
        return self.environment.restart_count

    def step(self, number: int) -> None:
        """Report that this worker has done a step; see `workerlib.step`."""
        progress.step(number)

    def section(self, name: str, limit: float) -> AbstractContextManager[None]:
        """Name a phase without steps, such as an evaluation, and its limit in seconds; see `workerlib.section`."""
        return progress.section(name, limit)

    def should_stop(self) -> bool:
        """Whether to save a checkpoint and exit; a collective, see `workerlib.should_stop`."""
        return stop.should_stop()

    def should_checkpoint(self) -> bool:
        """Whether to write a checkpoint of the step just reported; see `workerlib.should_checkpoint`."""
        from workerlib.keeping import checkpoints

        return checkpoints.should_checkpoint()

    def checkpointed(self, step: int) -> None:
        """Report that this rank has written its part of a checkpoint; see `workerlib.checkpointed`."""
        from workerlib.keeping import checkpoints

        checkpoints.checkpointed(step)

    def keep(self, **objects: Any) -> int:
        """Restore these objects from the newest state that was kept, and keep the state of each step from now on.

        Return the step of that state, -1 if there is none. Give all objects that training depends on: modules,
        optimizers, objects with `state_dict` and `load_state_dict` (LR schedulers, samplers, gradient scalers), random
        number generators, tensors, and dicts or lists of tensors and numbers. Python's, numpy's and torch's random
        state are kept as well. Call `step` at the end of each step, and change parameters only in `optimizer.step`.
        docs/kept-state.md has the costs and the limits.

        Raises `KeptStateError` for state that cannot be kept or restored, and for a second call where state is kept.
        """
        global _keeper  # one process keeps one state
        from workerlib.keeping import checkpoints, keeper
        from workerlib.keeping.kept_errors import KeptStateError

        if _keeper is not None:
            raise KeptStateError("keep() was called before: give it all objects at once")
        checkpoints.check_unused("ctx.keep")
        done, _keeper = keeper.keep(self.environment, objects)
        if _keeper is not None:
            checkpoints.connect(_keeper.planned_end, "ctx.keep")
            if self.reuse is not None:
                self.reuse.record_keeper(_keeper)
        return done

    def close(self) -> None:
        """End the training: destroy the process group, and restore the signal handlers; further calls do nothing."""
        import torch

        if (checkpoints := sys.modules.get("workerlib.keeping.checkpoints")) is not None:
            checkpoints.end()
        if _keeper is not None:
            _keeper.close(failed=False)
        STOP_REQUEST.close()
        if torch.distributed.is_initialized():
            # A DDP model that the script has dropped is a reference cycle, which would keep the group alive. One of
            # gloo's threads could then free a tensor while Python shuts down, and abort the worker (3 of 30 workers
            # that had finished well; see also pytorch/pytorch#179291).
            gc.collect()
            torch.distributed.destroy_process_group()
            # A DDP model that the script still references destroys the group later. Without this wait, 10 of 18
            # workers that were forked by --preload hung for ever, and 1 in 8 under torchrun.
            gloo.let_threads_finish()
        progress.end_training()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        global _keeper  # noqa: PLW0603 - as in `keep`
        # After an error the peers may be stuck in a collective, for which the destruction of the group could wait. So
        # the group is left as it is, the last step is saved, and the worker exits, so that its node sees the failure.
        # If all have agreed to stop, none is stuck. Any other `SystemExit` may be that of one rank only.
        if kind is None or (kind is SystemExit and STOP_REQUEST.agreed):
            self.close()
        elif error is not None and self.reuse is not None and self.reuse.leave_after(error):
            _keeper = None  # the next round has another one
            return True
        elif _keeper is not None:
            from workerlib.keeping.process_hooks import has_failed

            _keeper.close(failed=has_failed(error))
        return False


def init(backend: str | None = None, timeout: timedelta | None = None, *, steps: bool = True) -> Context:
    """Read the environment, set the device and initialise torch's default process group.

    `backend` is by default nccl if torch sees GPUs, else gloo. `timeout` is that of the collectives, by default torch's
    own for the backend. `steps` announces that the script will report its steps: until the first one its worker counts
    as starting. Give `steps=False` in a script that never reports any. This waits until all workers of the round have
    called it. Call it only once in a round, even if the process group was closed: another rank could still find the
    store of the first group.

    Raises `NotLaunchedError` in a process that no launcher started, `RuntimeError` if it was called before in this
    round, or torch is missing, sees too few GPUs for the workers on this node or has a process group already, and the
    errors of `torch.distributed.init_process_group`.
    """
    return begin(backend, timeout, steps=steps)


def begin(backend: str | None, timeout: timedelta | None, *, steps: bool, reuse: ReusedWorker | None = None) -> Context:
    """Do the same as `init`, in a process that `reuse` may take into further rounds.

    Raises `LeftRoundError` as well if such a process leaves the round meanwhile.
    """
    global _begun  # noqa: PLW0603 - one process has one default process group
    responder.begin()  # so that nodeclient can ask where this worker waits
    environment = WorkerEnvironment.from_environ(os.environ)
    if environment == _begun:
        raise RuntimeError(
            "workerlib.init() was called before in this round: call it once, and pass on the Context that it returns"
        )
    if steps:
        progress.announce()
    _require_torch()
    import torch.distributed

    if torch.distributed.is_initialized():
        raise RuntimeError(
            "workerlib.init() makes torch's default process group, and this process has one already: leave out the "
            "script's own init_process_group(), and init() in a function of workerlib.elastic"
        )
    device = _set_device(environment)
    if backend is None:
        backend = "gloo" if device.type == "cpu" else "nccl"
    _outlive_errors()
    if environment.rank > 0:
        from workerlib import store  # not before: `python -m workerlib.store` would find it imported, and warn

        store.await_listener(environment)
    with nullcontext() if reuse is None else reuse.making_group():
        torch.distributed.init_process_group(
            backend,
            timeout=timeout,
            **_store_arguments(environment, timeout),
            # With a device id, NCCL connects now and not in the first collective, and need not guess each rank's GPU.
            device_id=device if backend == "nccl" else None,
        )
    _begun = environment
    return Context(environment, device, reuse)


def _outlive_errors() -> None:
    """Have torch leave this process alive when a collective of NCCL fails, so that it can save its state.

    Otherwise torch aborts its process groups or ends the process. Workers that then hang are ended by nodeclient. This
    is done only where nodeclient offers memory for kept state, and not if the user has set another value than the
    default.
    """
    if KEEP in os.environ and os.environ.get(ERROR_HANDLING) == DEFAULTS[ERROR_HANDLING]:
        os.environ[ERROR_HANDLING] = "0"
        # Otherwise torch's threads sleep for a minute after an error, one of them with a lock that each collective
        # takes, and for 8 minutes before they end (`runLoop` of both in ProcessGroupNCCL.cpp).
        os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "0")
        os.environ.setdefault("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "100")


def _require_torch() -> None:
    try:
        import torch  # noqa: F401  # imported to learn whether it is there
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise RuntimeError(
            "workerlib.init() needs PyTorch, which this Python does not have: install it "
            "(pip install torch), or start the script with the Python that has it"
        ) from error


def _store_arguments(environment: WorkerEnvironment, timeout: timedelta | None) -> dict[str, Any]:
    """Serve the store on rank 0; return the arguments that give it to the process group.

    On other ranks, and if torchrun's agent serves the store, there are none. The prefix is torch's own, so the other
    ranks connect as to a store that torch serves.
    """
    import torch.distributed

    from workerlib import store  # as in `begin`

    if environment.rank > 0 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True):
        return {}
    served = store.serve(environment, timeout or store.TIMEOUT)
    prefixed = torch.distributed.PrefixStore("default_pg", served)  # type: ignore[attr-defined]  # public all the same
    return {"store": prefixed, "rank": environment.rank, "world_size": environment.world_size}


def _set_device(environment: WorkerEnvironment) -> torch.device:
    import torch

    if not torch.cuda.is_available():
        return torch.device("cpu")
    gpus = torch.cuda.device_count()
    if environment.local_rank >= gpus:
        raise RuntimeError(
            f"local rank {environment.local_rank} has no GPU: this node has "
            f"{environment.local_world_size} workers, but torch sees {gpus} GPUs; start one worker "
            "a GPU (nodeclient join --nproc-per-node gpu)"
        )
    device = torch.device("cuda", environment.local_rank)
    torch.cuda.set_device(device)
    return device
