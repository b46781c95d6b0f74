"""Records the signal by which the node asks this worker to stop, and has all workers of a round agree on that.

The signal ends a worker that does not handle it. A script that calls `should_stop` ends at a step of its choice.
"""

# ruff: noqa: PLC0415  # importing workerlib stays cheap, and possible without torch

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable, Mapping
from types import FrameType

from workerlib import gloo, responder

Handler = Callable[[int, FrameType | None], object] | int | None

SIGNALS_VARIABLE = "TORCHELASTIC_SIGNALS_TO_HANDLE"
"""The environment variable with the signals that nodeclient and torchrun pass on to their workers."""

SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
"""The signals if the variable is not set: torchrun's default, and those that torch 2.4 handles without the variable."""


_ENDING = signal.SIG_DFL, signal.default_int_handler
"""The handlers of a signal that ends the process, unless the script installs another one."""


class StopRequest:
    """The request to stop that a signal makes, from the first call of `listen` or `listen_beside` on."""

    def __init__(self) -> None:
        self.received = False
        """Whether this worker has received a signal."""
        self.agreed = False
        """Whether all workers have agreed to end, since one of them has received a signal; set by `should_stop`."""
        self._previous: dict[signal.Signals, Handler] = {}
        """The handlers that `listen` replaced."""
        self._has_fork_hooks = False
        self._forking = threading.local()
        """Its `mask` has the signals that the forking thread had blocked before."""

    def listen(self) -> None:
        """Record SIGTERM and the other signals of the node from now on, instead of dying of them.

        Further calls do nothing. SIGTERM is taken over even from a handler of the script: the script has called
        `should_stop` to be told of it. Another signal is left to the script if the script handles it. Forked children
        get the earlier handlers back: `multiprocessing` could not end a process that only records a signal.

        Raises `RuntimeError` outside the main thread, where Python cannot install a handler.
        """
        if self._previous:
            return
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "should_stop() was first called outside the main thread, where no SIGTERM "
                "handler can be installed: call it from the main thread"
            )
        if not self._has_fork_hooks:
            os.register_at_fork(
                before=self._begin_fork, after_in_parent=self._end_fork, after_in_child=self._become_child
            )
            self._has_fork_hooks = True
        for signum in _stop_signals(os.environ):
            if signum is signal.SIGTERM or signal.getsignal(signum) in _ENDING:
                self._previous[signum] = signal.signal(signum, self._record)

    def listen_beside(self) -> None:
        """Record the signals of the node that the script handles or ignores, and call its handlers as before.

        Call it before this worker reports its last checkpoint. nodeclient then sends a signal to end the process, and
        `checkpointed` has to notice that even if the script's handler returns. The process ends, so nothing is undone.

        Does nothing for a signal that ends the process, nor outside the main thread, where Python installs no handler.
        """
        if threading.current_thread() is threading.main_thread():
            for signum in _stop_signals(os.environ):
                handler = signal.getsignal(signum)
                if handler is not None and handler not in _ENDING:
                    signal.signal(signum, functools.partial(self._record_and_call, handler))

    def _record_and_call(self, handler: Handler, signum: int, frame: FrameType | None) -> None:
        self.received = True
        if callable(handler):
            handler(signum, frame)

    @property
    def listening(self) -> bool:
        """Whether signals are recorded, since the script has called `should_stop`."""
        return bool(self._previous)

    def close(self) -> None:
        """Restore the handlers that `listen` replaced; do nothing if it replaced none."""
        for signum, previous in self._previous.items():
            # None stands for a handler that was not installed from Python, which Python cannot restore.
            signal.signal(signum, signal.SIG_DFL if previous is None else previous)
        self._previous.clear()

    def _begin_fork(self) -> None:
        # Until its handlers are restored, the child would only record a signal, and go on. So signals are blocked.
        self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._previous)

    def _end_fork(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._forking.mask)

    def _become_child(self) -> None:
        self.close()
        self._end_fork()

    def _record(self, _signum: int, _frame: FrameType | None) -> None:
        self.received = True


STOP_REQUEST = StopRequest()
"""The request of this process."""


def _stop_signals(environ: Mapping[str, str]) -> set[signal.Signals]:
    """Return SIGTERM and the other signals that ask for a stop, if they are known and can be handled."""
    names = {name.strip() for name in (environ.get(SIGNALS_VARIABLE) or SIGNALS).split(",")}
    handled = {*signal.Signals} - {signal.SIGKILL, signal.SIGSTOP}
    return {signum for signum in handled if signum.name in names} | {signal.SIGTERM}


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
