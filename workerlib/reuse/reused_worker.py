"""A worker that leaves a round and takes part in the next one as the same process.

The thread that reads from nodeclient gets the main thread out of the round: a collective in which it waits fails, and
`ctx.step` raises. The main thread then removes what is left of the round, and waits for the next one.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from workerlib import progress, responder
from workerlib.contract.env import ROUNDS, WorkerEnvironment
from workerlib.contract.packets import PACKET_BYTES, WORDS_MAX, ChannelError, last_that_fit
from workerlib.contract.round_messages import (
    ROUND_CODEC,
    STREAMS,
    Aborted,
    Aborting,
    AskToLeave,
    CanStay,
    Failed,
    Left,
    NextRound,
    Refusing,
    RoundMessage,
)
from workerlib.keeping import checkpoints
from workerlib.keeping.kept_errors import LeftRoundError
from workerlib.responder import connected_socket
from workerlib.reuse import leftovers
from workerlib.reuse.group_sockets import GroupSockets
from workerlib.stop import REQUEST

if TYPE_CHECKING:
    from workerlib.keeping.keeper import StepKeeper


class RoundChannel:
    """A connection over which nodeclient asks this worker to leave its round, and sends the next one.

    It lasts as long as this process. A thread reads from it.
    """

    def __init__(self, path: str, local_rank: int, round_number: int) -> None:
        """Connect, and send which worker this is. Raises `OSError`."""
        self._socket = connected_socket(path)
        try:
            self._socket.send(ROUND_CODEC.encode(CanStay(local_rank, round_number, os.getpid())), socket.MSG_NOSIGNAL)
        except OSError:
            self._socket.close()
            raise
        self._rounds: SimpleQueue[tuple[NextRound, list[int]] | None] = SimpleQueue()
        os.register_at_fork(after_in_child=self._socket.close)  # the connection stays that of the parent

    def listen(self, leave: Callable[[AskToLeave], None]) -> None:
        """Read messages from now on, in a thread; it calls `leave` when this worker is asked to leave its round."""
        threading.Thread(target=self._receive_all, args=(leave,), name="workerlib-rounds", daemon=True).start()

    def send(self, message: RoundMessage) -> None:
        """Send a message to nodeclient, if it is still there."""
        with suppress(OSError):  # it has gone, and its workers follow
            self._socket.send(ROUND_CODEC.encode(message), socket.MSG_NOSIGNAL)

    def next_round(self) -> tuple[NextRound, list[int]] | None:
        """Wait for the next round; return it with its descriptors. None if none will come."""
        return self._rounds.get()

    def _receive_all(self, leave: Callable[[AskToLeave], None]) -> None:
        """Read until the connection ends; this thread ends it as well, since the worker could not be asked any more."""
        try:
            while True:
                packet, files, _, _ = socket.recv_fds(self._socket, PACKET_BYTES, STREAMS + 1, socket.MSG_CMSG_CLOEXEC)
                message = ROUND_CODEC.decode(packet)
                if isinstance(message, NextRound) and len(files) >= STREAMS:
                    self._rounds.put((message, files))
                elif isinstance(message, AskToLeave):
                    leave(message)
        except (OSError, ChannelError):
            pass  # nodeclient has gone
        except Exception as error:  # noqa: BLE001 - training goes on without this thread, to the end of the round
            LOG.warning("this process cannot go into another round: %r", error)
        with suppress(OSError):  # nodeclient has ended it
            self._socket.shutdown(socket.SHUT_RDWR)
        self._rounds.put(None)


LOG = logging.getLogger(__name__)

AGAIN_S = 0.02
"""The pause between two searches for connections of a group that is being made, until the main thread is out."""

PEERS_SAVE_S = 3.0
"""How long a worker whose collective of NCCL has failed waits until nodeclient has saved the state of the others."""

VAIN_MAX = 3
"""The rounds in a row without a step after which this process goes into no further one."""


@dataclass(eq=False, slots=True)
class PresentRound:
    """The round that this process takes part in, as both threads know it."""

    number: int
    sockets: GroupSockets = field(default_factory=GroupSockets)
    asked: threading.Event = field(default_factory=threading.Event)
    """Set when nodeclient has asked to leave the round."""
    out: threading.Event = field(default_factory=threading.Event)
    """Set when the main thread is out of the round."""
    keeper: StepKeeper | None = None
    """What keeps the state of the round, once the script has called `ctx.keep`."""
    gradients: bool = True
    """Whether gradients were enabled in the main thread when the round began."""


class ReusedWorker:
    """This process as a worker of several rounds. Two threads use it: the main one, and one that reads messages."""

    def __init__(self, channel: RoundChannel, round_number: int) -> None:
        """Begin in a round."""
        self._channel = channel
        self._round = PresentRound(round_number)
        self._turn = threading.Condition()
        """Notified when the main thread has taken a round, or will take no more."""
        self._aborting = threading.Lock()
        """Held while communicators are aborted: no group of them may be destroyed meanwhile."""
        self._keeps = False
        """Whether `ctx.keep` brings this process to the state of the others at the beginning of a round."""
        self._ended = False
        self._vain = 0
        """The rounds in a row without a step that have ended."""
        self._make_group: Callable[..., Any] | None = None
        """torch's own function that makes a group, once `making_group` was called."""
        channel.listen(self._leave_round)

    @property
    def has_left(self) -> bool:
        """Whether this process is out of the round, and waits for the next one."""
        return self._round.out.is_set()

    # The main thread

    @contextmanager
    def making_group(self) -> Iterator[None]:
        """Record the connections of the group that the block makes. Raises `LeftRoundError` if the round ends in it."""
        import torch

        self._round.gradients = torch.is_grad_enabled()
        self._watch_groups()
        with self._round.sockets.gathering():
            yield
        if self._round.asked.is_set():
            raise LeftRoundError

    def _watch_groups(self) -> None:
        """Record the connections of all groups that are made from now on, such as those of `new_group`."""
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
        self._round.keeper, self._keeps = keeper, True
        keeper.is_reused = True
        if self._round.asked.is_set():
            keeper.interrupt()

    def end(self) -> None:
        """Record that the script has left its loop of rounds, so that this process takes part in no further one."""
        with self._turn:
            self._ended = True
            self._turn.notify()
        if self._make_group is not None:
            from torch.distributed import distributed_c10d

            distributed_c10d._new_process_group_helper = self._make_group  # noqa: SLF001 - see `_watch_groups`
        self._round.sockets.close()
        leftovers.take_back()

    def leaves(self, error: BaseException) -> bool:
        """Leave the round if this error ends it; return whether it does. Other errors end the training."""
        import torch

        from workerlib.keeping.gate import TorchGroups

        here = self._round
        is_asked = here.asked.is_set()
        end = leftovers.end_of_round(error, asked=is_asked)
        if end is None:
            text = f"{type(error).__name__} ended the script in a worker"
            self._channel.send(Refusing(here.number, text[:WORDS_MAX]))
            return False
        if not is_asked and (why := self._obstacle(planned=False)):
            self._channel.send(Refusing(here.number, why))
            return False
        if not is_asked:
            self._report(error, end)
            if (
                TorchGroups().nccl_groups()
            ):  # its end lets collectives of peers end as if they were done: they save first
                here.asked.wait(PEERS_SAVE_S)
        del end
        here.out.set()
        self._vain = self._vain_rounds()
        if not is_asked:  # peers may still wait for this worker in a collective
            here.sockets.shut(socket.SHUT_WR)
        leftovers.forget_frames(error)
        if here.keeper is not None:
            here.keeper.leave_round()
        here.keeper = None
        checkpoints.begin_round()
        self._abort_collectives()
        leftovers.end_groups()
        torch.set_grad_enabled(here.gradients)
        problem = "the script holds a device mesh, whose process groups are those of the round that has ended"
        self._channel.send(Refusing(here.number, problem) if leftovers.holds_mesh() else Left(here.number))
        return True

    def take_next_round(self) -> None:
        """Wait for the next round, and take the environment and the streams that a new process would have in it."""
        received = self._channel.next_round()
        if received is None:
            sys.exit("workerlib: the connection to nodeclient has ended, so there is no next round for this worker")
        message, (stdout, stderr, *slots) = received
        _take_streams([stdout, stderr])
        if message.environ.keys() & {"RANK", "WORLD_SIZE"}:
            leftovers.forget_compiled()
        _take_environment(message)
        responder.begin_round()
        progress.begin_round(*slots)
        self._round.sockets.close()
        with self._turn:
            self._round = PresentRound(message.round)
            self._turn.notify()

    def _report(self, error: BaseException, end: BaseException) -> None:
        """Save state if possible, and then report the failed collective, whose error is `end`."""
        if self._round.keeper is not None:
            self._round.keeper.close(failed=True)
        text = "".join(traceback.format_exception_only(end)).strip()
        lines = "".join(traceback.format_exception(error)).splitlines()
        self._channel.send(Failed(self._round.number, text[:WORDS_MAX], last_that_fit(lines)))

    def _obstacle(self, *, planned: bool) -> str:
        """Return why this process cannot go on in another round; empty if it can. Both threads call this."""
        keeper = self._round.keeper  # the main thread may set it to None meanwhile
        if self._ended:
            return "the script has left its loop of rounds"
        if not self._keeps:
            return "the script has not called ctx.keep, so nothing would bring this process to the state of the others"
        if planned and (REQUEST.listening or checkpoints.script_writes_checkpoints()):
            return "the script saves at a step of its own choice, and ends there"
        if keeper is not None and keeper.is_sharded:
            return "parameters are sharded, and bound to the process group of this round"
        return f"{VAIN_MAX} rounds in a row have ended without a step" if self._vain_rounds() >= VAIN_MAX else ""

    def _abort_collectives(self) -> None:
        """Abort the collectives of NCCL, and report how long it takes. Both threads call this, and the later one waits.

        The end of a group would abort it too, and say nothing.
        """
        from workerlib.keeping.gate import TorchGroups

        with self._aborting:
            if not TorchGroups().nccl_groups():
                return
            self._channel.send(Aborting(self._round.number))
            began = time.monotonic()
            leftovers.abort_collectives()
            self._channel.send(Aborted(self._round.number, time.monotonic() - began))

    def _vain_rounds(self) -> int:
        """Return how many rounds in a row had no step, including the one that ends now."""
        return 0 if progress.last_step() >= 0 else self._vain + 1

    # The thread that reads from nodeclient

    def _leave_round(self, request: AskToLeave) -> None:
        number = request.round
        with self._turn:  # the main thread may not have taken this round yet
            self._turn.wait_for(lambda: self._ended or self._round.number >= number)
        here = self._round
        if here.number > number or (here.number == number and here.out.is_set()):
            return  # the main thread is out of this round already
        if why := self._obstacle(planned=request.planned):
            self._channel.send(Refusing(number, why))
            return
        here.asked.set()
        keeper = here.keeper
        if keeper is not None:
            keeper.interrupt()
        self._abort_collectives()
        while not here.out.is_set():
            here.sockets.shut()
            here.out.wait(AGAIN_S)


def connect() -> ReusedWorker | None:
    """Connect to nodeclient for further rounds of this process; return None if nodeclient does not offer them."""
    path = os.environ.pop(ROUNDS, None)  # children must not use it
    if path is None:
        return None
    environment = WorkerEnvironment.from_environ(os.environ)
    try:
        channel = RoundChannel(path, environment.worker, environment.round)
    except OSError as error:
        LOG.warning("nodeclient cannot be reached at %s, so rounds are not begun in place: %s", path, error.strerror)
        return None
    leftovers.set_aside()
    return ReusedWorker(channel, environment.round)


def _take_streams(streams: list[int]) -> None:
    """Replace the descriptors of standard output and error."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    for target, descriptor in enumerate(streams, start=1):
        os.dup2(descriptor, target, inheritable=True)
        os.close(descriptor)


def _take_environment(message: NextRound) -> None:
    for name, value in message.environ.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    os.environ.pop(ROUNDS, None)
