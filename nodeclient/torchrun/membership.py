"""This torchrun process's membership in the job: connects torchrun's threads with the node, which runs in its own.

torchrun's worker group counts as one worker. It lives from when torchrun gets a round until torchrun asks for the next
one: torchrun reports nothing else about it. The node can ask only one thing of torchrun: to end its round. The
attribute `round_over` says so, and torchrun's agent looks at it ten times a second (`num_nodes_waiting`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from coordinatord.protocol.errors import OperationalError, operational
from coordinatord.protocol.exit_codes import ExitCode
from nodeclient.core.effects import Exit, Start
from nodeclient.torchrun.parameters import TorchrunConfig, logger
from nodeclient.torchrun.torchrun_node import TorchrunNode

REMIND_S = 30.0
"""The interval of log lines of a process that waits for a round, which would otherwise look like a hang."""


class EndedError(OperationalError):
    """This membership is over for good."""

    def __init__(self, ending: Exit) -> None:
        super().__init__(ending.message)
        self.exit_code = ending.code


class Membership:
    """The membership from `begin` to `end`. Its methods wait only if their docstrings say so."""

    def __init__(self, config: TorchrunConfig) -> None:
        self._config = config
        self._thread = threading.Thread(target=self._run, name="coordinatord", daemon=True)
        self._ready = threading.Event()
        """Set when the fields below are valid, or never will be."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._node: TorchrunNode | None = None

        self._changed = threading.Condition()
        """Guards the fields below, which both threads change."""
        self._round: Start | None = None
        """The round that torchrun has, or is about to get."""
        self.round_over = False
        """Whether torchrun's round is over, so that it should ask for another."""
        self.succeeded = False
        """Whether all workers of this torchrun have exited with 0."""
        self._is_finished = False
        """Whether torchrun's workers are dead, and it will not ask for another round."""
        self._ending: Exit | None = None
        """How the membership ended."""
        self._waiting_for = "the coordinator"
        """Why there is no round yet, for people."""

    @property
    def ended(self) -> bool:
        """Whether the membership is over."""
        return self._ending is not None

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
        """Wait for a round. torchrun's last one, if any, is over by now. Raises `EndedError`."""
        self._report_dead_workers("a worker of this torchrun failed, see its own output")
        with self._changed:
            while self._round is None:
                if self._ending is not None:
                    raise EndedError(self._ending)
                if not self._changed.wait(REMIND_S):
                    logger.warning("job %s: no round yet: %s", self._config.job, self._waiting_for)
            return self._round

    def on_started(self) -> None:
        """Record that torchrun starts the workers of its round."""
        self._post(lambda node: node.on_started())

    def on_succeeded(self) -> None:
        """Record that all workers of this torchrun have exited with 0, and that it will start no more."""
        with self._changed:
            round_, self._round = self._round, None
            self.succeeded = self._is_finished = True
        if round_ is not None:
            self._post(lambda node: node.on_succeeded())

    def wait_until_over(self, timeout_s: float) -> bool:
        """Wait until the round or the membership is over; return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self.round_over or self.ended, timeout_s)

    def give_up(self, why: str) -> None:
        """Leave the job, because this torchrun cannot take part in its round."""
        with self._changed:
            round_, self._round, self._is_finished = self._round, None, True
        if round_ is not None:
            self._post(lambda node: node.give_up(why))

    def leave(self, within_s: float, *, failed: bool) -> None:
        """Leave the job after all workers are dead; wait for the coordinator's decision, at most `within_s`.

        `failed` says that torchrun ends because of its workers. A second call does nothing.
        """
        if failed:
            self._report_dead_workers("the workers of this torchrun failed for good, see its own output")
        with self._changed:
            self._is_finished = True
        self._post(lambda node: node.leave())
        self.wait_until_ended(within_s)

    def wait_until_ended(self, within_s: float) -> None:
        """Wait until the membership is over, at most `within_s`."""
        with self._changed:
            self._changed.wait_for(lambda: self.ended or not self.begun, within_s)

    def end(self, within_s: float) -> None:
        """End the thread in any case, and wait for its end, at most `within_s`."""
        if self.begun:
            self._post(lambda node: node.end())
            self._thread.join(within_s)

    def _report_dead_workers(self, why_failed: str) -> None:
        """Report that the workers of torchrun's round are dead, if it has a round."""
        with self._changed:
            round_, self._round, self.round_over = self._round, None, False
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
            self._round, self.round_over = start, False
            self._changed.notify_all()

    def end_round(self) -> bool:
        """Make torchrun end its round; return whether its workers are already dead."""
        with self._changed:
            has_round, is_finished = self._round is not None, self._is_finished
            if is_finished:
                self._round = None
            self.round_over = has_round or is_finished
            self._changed.notify_all()
            return has_round and is_finished

    def on_waiting(self, reason: str) -> None:
        """Record why the node waits."""
        self._waiting_for = reason

    def _run(self) -> None:
        try:
            ending = asyncio.run(self._run_node())
        except Exception as error:  # noqa: BLE001 - the last resort of the thread, which reports every error
            ending = _ending(error)
        self._ready.set()
        with self._changed:
            self._ending = ending
            self.round_over = self._round is not None
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
