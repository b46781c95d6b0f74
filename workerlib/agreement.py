"""`should_stop`: all workers of a round agree, by a collective, on whether any of them was asked to stop."""

# ruff: noqa: PLC0415  # importing workerlib stays cheap, and possible without torch

from __future__ import annotations

from workerlib import gloo, responder
from workerlib.stop import STOP_REQUEST


def should_stop() -> bool:
    """Whether the node of any worker has asked for a stop: if so, save a checkpoint and exit.

    No context is needed: the process group is torch's default one, whether the script or a framework has made it.
    Without a group, the answer is only about this worker.

    This is a collective: all workers must call it at the same step, and all get the same answer, although signals reach
    them in different steps. It costs one all-reduce of four bytes and makes the host wait for the GPU, so call it about
    once a second, always after the same number of steps.

    The first call installs a handler of SIGTERM, and of each other signal that the node passes on to its workers
    (TORCHELASTIC_SIGNALS_TO_HANDLE), unless the script handles that one itself. A script that never calls this function
    dies of SIGTERM at once. Raises `RuntimeError` if the first call is not made in the main thread.
    """
    STOP_REQUEST.listen()
    STOP_REQUEST.agreed = any_of(STOP_REQUEST.received)
    return STOP_REQUEST.agreed


def any_of(mine: bool) -> bool:
    """Return whether `mine` is true on any worker, by a collective of torch's default process group.

    Without a group, return `mine`.
    """
    responder.begin()  # so that nodeclient can ask where this worker waits
    import torch.distributed

    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return mine
    # The script may end right after this collective without destroying the group (3 of 60 workers aborted then).
    gloo.finish_before_exit()
    # gloo and mpi reduce in host memory; the other backends know only their own device.
    on_host = any(name in torch.distributed.get_backend() for name in ("gloo", "mpi"))
    name = "cuda" if torch.cuda.is_available() and not on_host else "cpu"
    device = torch.device(name, torch.cuda.current_device()) if name == "cuda" else torch.device(name)
    flag = torch.tensor(int(mine), dtype=torch.int32, device=device)
    torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
    return bool(flag.item())
