"""A worker that leaves a round and enters the next one as the same process, so that no new one has to be started.

When nodeclient asks it to leave, the thread that reads the request interrupts the main thread. If that is waiting in a
collective, the collective fails. Otherwise `ctx.step` raises `LeftRoundError`. Either error ends the script's `with`
block. There `Context.__exit__` calls `leave_after`, which removes what the round has left in the process, and drops the
error. The loop of `workerlib.rounds` then waits for the next round (`enter_next_round`). A collective may also fail
before nodeclient knows of it. Then the worker reports that, and leaves in the same way.

It may also refuse, so that nodeclient ends it as any other worker: `_obstacle` has the reasons.
"""

# ruff: noqa: PLC0415  # importing workerlib stays cheap, and possible without torch

from __future__ import annotations

import functools
import logging
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from workerlib import progress, responder
from workerlib.agent_channel import AgentChannel
from workerlib.contract.env import ROUNDS, WorkerEnvironment
from workerlib.contract.packets import last_that_fit
from workerlib.contract.round_messages import (
    ROUND_CODEC,
    Aborted,
    Aborting,
    AskToLeave,
    Failed,
    Left,
    NextRound,
    Refusing,
    Reusable,
    RoundMessage,
)
from workerlib.keeping import checkpoints
from workerlib.keeping.kept_errors import LeftRoundError
from workerlib.reuse import round_cleanup
from workerlib.reuse.group_sockets import GroupSockets
from workerlib.stop import STOP_REQUEST

if TYPE_CHECKING:
    from workerlib.keeping.keeper import StepKeeper


LOG = logging.getLogger(__name__)

AGAIN_S = 0.02
"""The pause between calls of `GroupSockets.shut` until the main thread has left: a group may still connect."""

PEERS_SAVE_S = 3.0
"""How long a worker whose collective of NCCL has failed waits for nodeclient's request to leave. That comes when the
workers of its node have saved their state, or had the time for it; those of other nodes save at the same time."""

_LOOP_LEFT = "the script has left its loop of rounds"

STEPLESS_ROUNDS_MAX = 3
"""The rounds in a row without a step before a new process takes over: this process may be the cause."""


@dataclass(eq=False, slots=True)
class CurrentRound:
    """The round that this process takes part in; both threads use it."""

    number: int
    sockets: GroupSockets = field(default_factory=GroupSockets)
    leave_requested: threading.Event = field(default_factory=threading.Event)
    """Set when nodeclient has asked to leave the round."""
    left: threading.Event = field(default_factory=threading.Event)
    """Set when the main thread has left the round."""
    has_refused: bool = False
    """Whether nodeclient was told why this process does not leave the round."""
    keeper: StepKeeper | None = None
    """Keeps the state of the round; None before the script calls `ctx.keep`."""
    gradients: bool = True
    """Whether gradients were enabled in the main thread when the round began."""


class ReusedWorker:
    """This process as a worker of several rounds. The main thread uses it, and the one that reads from nodeclient."""

    def __init__(self, channel: AgentChannel[RoundMessage], round_number: int) -> None:
        self._channel = channel
        self._rounds: SimpleQueue[tuple[NextRound, list[int]] | str] = SimpleQueue()
        """Received rounds with their descriptors; at the end, why no more will come."""
        self._round = CurrentRound(round_number)
        self._round_changed = threading.Condition()
        """Notified when the main thread has entered a round, or will enter no more."""
        self._aborting = threading.Lock()
        """Held while communicators are aborted: no group of them may be destroyed meanwhile."""
        self._has_kept = False
        """Whether the script has called `ctx.keep`, which restores the common state at the beginning of a round."""
        self._has_ended = False
        """Whether the script has left its loop of rounds."""
        self._stepless_rounds = 0
        """How many rounds without a step have ended since the last one with a step."""
        self._make_group: Callable[..., Any] | None = None
        """torch's own function that makes a group, once `making_group` was called."""
        channel.listen("workerlib-rounds", self._on_message, self._on_end)

    @property
    def has_left(self) -> bool:
        """Whether this process has left the round, and has not entered the next one."""
        return self._round.left.is_set()

    # The main thread

    @contextmanager
    def making_group(self) -> Iterator[None]:
        """Record the connections of the group that the block makes. Raises `LeftRoundError` if the round ends in it."""
        import torch

        self._round.gradients = torch.is_grad_enabled()
        self._watch_groups()
        with self._round.sockets.gathering():
            yield
        if self._round.leave_requested.is_set():
            raise LeftRoundError

    def _watch_groups(self) -> None:
        """Record the connections of all groups made from now on, such as those of `new_group`."""
        from torch.distributed import distributed_c10d

        if self._make_group is not None:
            return
        make = self._make_group = distributed_c10d._new_process_group_helper  # noqa: SLF001 - all groups come from it

        @functools.wraps(make)
        def make_group(*args: Any, **kwargs: Any) -> Any:
            with self._round.sockets.gathering():
                return make(*args, **kwargs)

        distributed_c10d._new_process_group_helper = make_group  # noqa: SLF001 - as above

    def record_keeper(self, keeper: StepKeeper) -> None:
        """Record the keeper of this round's state."""
        self._round.keeper, self._has_kept = keeper, True
        keeper.is_reused = True
        if self._round.leave_requested.is_set():
            keeper.interrupt()

    def end(self) -> None:
        """Record that the script has left its loop of rounds, and undo all changes of torch and Python."""
        # Python may end soon, and closes the connection. nodeclient is told why, since it cannot ask any more then.
        if not (self.has_left or self._round.has_refused):
            self._refuse(self._round.number, _LOOP_LEFT)
        with self._round_changed:
            self._has_ended = True
            self._round_changed.notify()
        if self._make_group is not None:
            from torch.distributed import distributed_c10d

            distributed_c10d._new_process_group_helper = self._make_group  # noqa: SLF001 - see `_watch_groups`
        self._round.sockets.close()
        round_cleanup.unfreeze_objects()

    def leave_after(self, error: BaseException) -> bool:
        """Leave the round if this error is how it ends; return whether this worker has left it.

        Otherwise the error ends the training: it is another one, or this process cannot enter the next round. If the
        script still has a device mesh of the round, this refuses the next round, and nodeclient ends the process.
        """
        import torch

        from workerlib.keeping.gate import TorchGroups

        here = self._round
        is_asked = here.leave_requested.is_set()
        end = round_cleanup.round_ending_error(error, asked=is_asked)
        if end is None:
            text = f"{type(error).__name__} ended the script in a worker"
            self._refuse(here.number, text)
            return False
        if not is_asked:  # a collective has failed before nodeclient knows of it
            if why := self._obstacle(planned=False):
                self._refuse(here.number, why)
                return False
            self._save_and_report(error, end)
            if TorchGroups().nccl_groups():  # an abort ends collectives of peers too, so these have to save first
                here.leave_requested.wait(PEERS_SAVE_S)
        del end  # no variable may keep an object of the round alive
        here.left.set()  # so that `_leave_round` in the other thread shuts down no more connections
        self._stepless_rounds = self._stepless_rounds_now()
        if not is_asked:  # peers may still wait for this worker in a collective
            here.sockets.shut(socket.SHUT_WR)
        round_cleanup.clear_tracebacks(error)
        if here.keeper is not None:
            here.keeper.leave_round()
        here.keeper = None
        checkpoints.begin_round()  # they report over the keeper's connection, which has just been closed
        self._abort_collectives()
        round_cleanup.destroy_groups()
        torch.set_grad_enabled(here.gradients)
        problem = "the script holds a device mesh, whose process groups are those of the round that has ended"
        # This search comes last, since frames that `clear_tracebacks` has cleared may have held a mesh.
        self._channel.report(Refusing(here.number, problem) if round_cleanup.has_mesh() else Left(here.number))
        return True

    def enter_next_round(self) -> None:
        """Wait for the next round, and set the environment and the streams that a new process would have in it."""
        received = self._rounds.get()
        if isinstance(received, str):
            sys.exit(f"workerlib: there is no next round for this worker: {received}")
        message, (stdout, stderr, *slots) = received
        _replace_streams([stdout, stderr])
        if message.environ.keys() & {"RANK", "WORLD_SIZE"}:
            round_cleanup.reset_compiled()  # compiled code may have them as constants
        _update_environment(message.environ)
        responder.begin_round()
        progress.begin_round(*slots)
        self._round.sockets.close()  # by now all workers have left the round
        with self._round_changed:
            self._round = CurrentRound(message.round)
            self._round_changed.notify()

    def _save_and_report(self, error: BaseException, end: BaseException) -> None:
        """Save state if possible, and then report the failed collective, whose error is `end`."""
        if self._round.keeper is not None:
            self._round.keeper.close(failed=True)
        text = "".join(traceback.format_exception_only(end)).strip()
        lines = "".join(traceback.format_exception(error)).splitlines()
        self._channel.report(Failed(self._round.number, text, last_that_fit(lines)))

    def _obstacle(self, *, planned: bool) -> str:
        """Return why this process cannot enter another round; empty if it can. Both threads call this."""
        keeper = self._round.keeper  # the main thread may set it to None meanwhile
        if self._has_ended:
            return _LOOP_LEFT
        if not self._has_kept:
            return "the script has not called ctx.keep, so nothing would bring this process to the state of the others"
        if planned and (STOP_REQUEST.listening or checkpoints.script_asks()):
            return "the script saves at a step of its own choice, and ends there"
        if keeper is not None and keeper.is_sharded:
            return "parameters are sharded, and bound to the process group of this round"
        if self._stepless_rounds_now() >= STEPLESS_ROUNDS_MAX:
            return f"{STEPLESS_ROUNDS_MAX} rounds in a row have ended without a step"
        return round_cleanup.abort_obstacle()

    def _refuse(self, number: int, why: str) -> None:
        """Report why this process does not leave a round."""
        self._round.has_refused = True
        self._channel.report(Refusing(number, why))

    def _abort_collectives(self) -> None:
        """Abort the collectives of NCCL, and report how long it takes: nodeclient allows time for that.

        Both threads call this, and the later one waits for the other.
        """
        from workerlib.keeping.gate import TorchGroups

        with self._aborting:
            if not TorchGroups().nccl_groups():
                return
            self._channel.report(Aborting(self._round.number))
            began = time.monotonic()
            round_cleanup.abort_collectives()
            self._channel.report(Aborted(self._round.number, time.monotonic() - began))

    def _stepless_rounds_now(self) -> int:
        """Return how many rounds in a row had no step, including the one that ends now."""
        return 0 if progress.last_step() >= 0 else self._stepless_rounds + 1

    # The thread that reads from nodeclient

    def _on_message(self, message: RoundMessage, files: list[int]) -> None:
        if isinstance(message, NextRound):
            self._rounds.put((message, files))
        elif isinstance(message, AskToLeave):
            self._leave_round(message)

    def _on_end(self, failure: Exception | None) -> None:
        if failure is not None:
            LOG.warning("this process cannot go into another round: %r", failure)
        self._rounds.put("the connection to nodeclient has ended" if failure is None else repr(failure))

    def _leave_round(self, request: AskToLeave) -> None:
        """Refuse to leave the round if there is an obstacle; otherwise interrupt the main thread until it has left."""
        number = request.round
        with self._round_changed:  # the main thread may not have entered this round yet
            self._round_changed.wait_for(lambda: self._has_ended or self._round.number >= number)
        here = self._round
        if here.number > number or (here.number == number and here.left.is_set()):
            return  # the main thread has left this round already
        if why := self._obstacle(planned=request.planned):
            self._refuse(number, why)
            return
        here.leave_requested.set()
        keeper = here.keeper
        if keeper is not None:
            keeper.interrupt()
        self._abort_collectives()
        while not here.left.is_set():
            here.sockets.shut()
            here.left.wait(AGAIN_S)


def round_channel(path: str, environment: WorkerEnvironment) -> AgentChannel[RoundMessage]:
    """Connect to nodeclient at a path, to be told of further rounds as long as this process lives. Raises `OSError`."""
    return AgentChannel(path, ROUND_CODEC, Reusable(environment.worker, environment.round))


def connect() -> ReusedWorker | None:
    """Connect to nodeclient for further rounds of this process; return None if nodeclient does not offer them."""
    path = os.environ.pop(ROUNDS, None)  # children must not use it
    if path is None:
        return None
    environment = WorkerEnvironment.from_environ(os.environ)
    try:
        channel = round_channel(path, environment)
    except OSError as error:
        LOG.warning("nodeclient cannot be reached at %s, so rounds are not begun in place: %s", path, error.strerror)
        return None
    round_cleanup.freeze_objects()
    return ReusedWorker(channel, environment.round)


def _replace_streams(streams: list[int]) -> None:
    """Put these descriptors in the place of stdout and stderr; buffered output still goes to the former ones."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    for target, descriptor in enumerate(streams, start=1):
        os.dup2(descriptor, target, inheritable=True)
        os.close(descriptor)


def _update_environment(changes: Mapping[str, str | None]) -> None:
    """Set these environment variables; None removes one."""
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    os.environ.pop(ROUNDS, None)  # as in `connect`
