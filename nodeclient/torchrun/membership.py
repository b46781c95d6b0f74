"""This torchrun process's membership in the job: connects torchrun's threads with the node, which runs in its own.

All workers of this torchrun count as one, which lives from when torchrun gets a round until torchrun asks for the next
one: torchrun reports nothing else about it. The node can ask only one thing of torchrun: to end its round. The
attribute `round_over` says so, and torchrun's agent looks at it ten times a second (`num_nodes_waiting`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto

from coordinatord.protocol.errors import OperationalError, operational
from coordinatord.protocol.exit_codes import ExitCode
from nodeclient.core.effects import Exit, Start
from nodeclient.shell.event_loop import run_node
from nodeclient.torchrun.parameters import TorchrunConfig, logger
from nodeclient.torchrun.torchrun_node import TorchrunNode

REMIND_S = 30.0
"""The interval of log lines of a process that waits for a round, which would otherwise look like a hang."""


class EndedError(OperationalError):
    """This membership is over for good."""

    def __init__(self, ending: Exit) -> None:
        super().__init__(ending.message)
        self.exit_code = ending.code


class TorchrunStage(Enum):
    """Where torchrun stands between its calls.

    | from       | by              | to         | since                                                |
    |------------|-----------------|------------|------------------------------------------------------|
    | WAITING    | `begin_round`   | OFFERED    | the coordinator has formed a round with this node    |
    | OFFERED    | `await_round`   | IN_ROUND   | torchrun gets the round                              |
    | OFFERED    | `end_round`     | ROUND_OVER | the coordinator ends the round                       |
    | IN_ROUND   | `end_round`     | ROUND_OVER | the same                                             |
    | IN_ROUND   | `await_round`   | WAITING    | a worker of this torchrun has failed                 |
    | ROUND_OVER | `await_round`   | WAITING    | torchrun has ended its workers, as it should         |
    | IN_ROUND   | `on_succeeded`  | SUCCEEDED  | torchrun enters its exit barrier                     |
    | ROUND_OVER | `on_succeeded`  | SUCCEEDED  | the same, before it has seen that the round is over  |
    | SUCCEEDED  | `end_round`     | RELEASED   | the other nodes begin another round                  |
    | any        | `fail`          | GONE       | torchrun cannot take part in its round, and ends     |
    | any        | `leave`         | GONE       | torchrun ends                                        |

    The end of the membership is the end of the round as well.
    """

    WAITING = auto()
    """It waits for a round, or soon will."""
    OFFERED = auto()
    """There is a round for it, which it does not know yet."""
    IN_ROUND = auto()
    """It has a round: its workers run, or are about to."""
    ROUND_OVER = auto()
    """It has a round, and is to end it and ask for another."""
    SUCCEEDED = auto()
    """All its workers have exited with 0, and it waits in its exit barrier for those of the other nodes."""
    RELEASED = auto()
    """All its workers have exited with 0, and it need not wait for others any more."""
    GONE = auto()
    """Its workers are dead, and it will not ask for another round."""


class Membership:
    """The membership from `begin` to `end`. Its methods wait only if their docstrings say so."""

    def __init__(self, config: TorchrunConfig) -> None:
        self._config = config
        self._thread = threading.Thread(target=self._run, name="coordinatord", daemon=True)
        self._ready = threading.Event()
        """Set when the next two fields are valid, or never will be."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._node: TorchrunNode | None = None

        self._waiting_for = "the coordinator"
        """Why there is no round yet, for people."""

        self._changed = threading.Condition()
        """Guards changes of the fields below, which both threads make, and announces them."""
        self._stage = TorchrunStage.WAITING
        self._round: Start | None = None
        """The round that torchrun has, or is about to get; None once the node knows that its workers are dead."""
        self._ending: Exit | None = None
        """How the membership ended."""

    @property
    def ended(self) -> bool:
        """Whether the membership is over."""
        return self._ending is not None

    @property
    def round_over(self) -> bool:
        """Whether torchrun's round is over, so that torchrun need not wait for anything in it any more."""
        return self._stage in {TorchrunStage.ROUND_OVER, TorchrunStage.RELEASED}

    @property
    def succeeded(self) -> bool:
        """Whether all workers of this torchrun have exited with 0."""
        return self._stage in {TorchrunStage.SUCCEEDED, TorchrunStage.RELEASED}

    @property
    def begun(self) -> bool:
        """Whether `begin` was called."""
        return self._thread.ident is not None

    def begin(self) -> None:
        """Join the job, or start looking for its coordinator; further calls do nothing."""
        if not self.begun:
            self._thread.start()
            self._ready.wait()

    def await_round(self) -> Start:
        """Wait for a round. torchrun's workers of the last one, if any, are dead by now. Raises `EndedError`."""
        # If the coordinator has ended that round, the node knows, and counts their end as no failure.
        self._report_dead_workers("a worker of this torchrun failed, see its own output")
        with self._changed:
            while self._round is None:
                if self._ending is not None:
                    raise EndedError(self._ending)
                if not self._changed.wait(REMIND_S):
                    logger.warning("job %s: no round yet: %s", self._config.job, self._waiting_for)
            if self._stage is TorchrunStage.OFFERED:
                self._stage = TorchrunStage.IN_ROUND
            return self._round

    def on_started(self) -> None:
        """Record that torchrun starts the workers of its round."""
        self._post(lambda node: node.on_started())

    def on_succeeded(self) -> None:
        """Record that all workers of this torchrun have exited with 0, and that it will start no more."""
        with self._changed:
            round_, self._round, self._stage = self._round, None, TorchrunStage.SUCCEEDED
        if round_ is not None:
            self._post(lambda node: node.on_succeeded())

    def wait_until_over(self, timeout_s: float) -> bool:
        """Wait until the round or the membership is over; return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self.round_over or self.ended, timeout_s)

    def fail(self, why: str) -> None:
        """Leave the job, because this torchrun cannot take part in its round."""
        with self._changed:
            round_, self._round, self._stage = self._round, None, TorchrunStage.GONE
        if round_ is not None:
            self._post(lambda node: node.fail(why))

    def leave(self, within_s: float, *, failed: bool) -> None:
        """Leave the job after all workers are dead; wait for the coordinator's decision, at most `within_s`.

        `failed` says that torchrun ends because its workers failed. Otherwise they have succeeded, or a signal ends
        torchrun. After a signal, the round has not failed: if there is one, the node ends it by `end_round`.
        """
        if failed:
            self._report_dead_workers("the workers of this torchrun failed for good, see its own output")
        with self._changed:
            self._stage = TorchrunStage.GONE
        self._post(lambda node: node.leave())
        self.wait_until_ended(within_s)

    def wait_until_ended(self, within_s: float) -> None:
        """Wait until the membership is over, at most `within_s`."""
        with self._changed:
            self._changed.wait_for(lambda: self.ended, within_s)

    def end(self, within_s: float) -> None:
        """End the thread in any case, and wait for its end, at most `within_s`."""
        self._post(lambda node: node.end())
        self._thread.join(within_s)

    def _report_dead_workers(self, why_failed: str) -> None:
        """Report that the workers of torchrun's round are dead, if it has a round."""
        with self._changed:
            if self._stage is TorchrunStage.OFFERED:  # no worker of this round was started yet
                return
            round_, self._round, self._stage = self._round, None, TorchrunStage.WAITING
        if round_ is not None:
            self._post(lambda node: node.on_ended(why_failed))

    def _post(self, call: Callable[[TorchrunNode], None]) -> None:
        if self._loop is not None and self._node is not None:
            with suppress(RuntimeError):  # the thread has ended, so there is nothing to notify
                self._loop.call_soon_threadsafe(call, self._node)

    # In the membership's thread

    def begin_round(self, start: Start) -> None:
        """Give torchrun a round."""
        with self._changed:
            self._round = start
            if self._stage is not TorchrunStage.GONE:  # torchrun may have left a moment ago, which the node hears next
                self._stage = TorchrunStage.OFFERED
            self._changed.notify_all()

    def end_round(self) -> bool:
        """Make torchrun end its round, if it has one; return whether its workers are dead without the node knowing.

        They are if a signal has ended torchrun.
        """
        with self._changed:
            self._release()
            is_dead = self._stage is TorchrunStage.GONE and self._round is not None
            if is_dead:
                self._round = None
            return is_dead

    def on_waiting(self, reason: str) -> None:
        """Record why the node waits."""
        self._waiting_for = reason

    def _run(self) -> None:
        try:
            ending = run_node(self._run_node())
        except Exception as error:  # noqa: BLE001 - the last resort of the thread, which reports every error
            ending = _ending(error)
        self._ready.set()
        with self._changed:
            self._ending = ending
            self._release()

    def _release(self) -> None:
        """End torchrun's wait for its workers, or for those of other nodes."""
        match self._stage:
            case TorchrunStage.OFFERED | TorchrunStage.IN_ROUND:
                self._stage = TorchrunStage.ROUND_OVER
            case TorchrunStage.SUCCEEDED:
                self._stage = TorchrunStage.RELEASED
        self._changed.notify_all()

    async def _run_node(self) -> Exit:
        self._node, self._loop = TorchrunNode(self._config, self), asyncio.get_running_loop()
        self._ready.set()
        return await self._node.run()


def _ending(error: Exception) -> Exit:
    """Convert an error that has ended the thread to the end of the membership."""
    known = operational(error)
    if known is not None:
        return Exit(known.exit_code, str(known))
    text = "a bug of the rendezvous backend coordinatord"
    logger.error(text, exc_info=error)
    return Exit(ExitCode.INTERNAL, f"{text}: {error!r}")
