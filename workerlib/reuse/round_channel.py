"""The worker's end of the channel to nodeclient about rounds in place: this process goes on in the next round.

`round_messages` has the messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from queue import SimpleQueue

from workerlib.agent_channel import AgentChannel
from workerlib.contract.env import WorkerEnvironment
from workerlib.contract.round_messages import ROUND_CODEC, AskToLeave, NextRound, Reusable, RoundMessage

LOG = logging.getLogger(__name__)


class RoundChannel(AgentChannel[RoundMessage]):
    """The channel over which nodeclient asks this worker to leave its round, and sends the next one.

    It lasts as long as this process.
    """

    def __init__(self, path: str, environment: WorkerEnvironment) -> None:
        """Connect at a path. Raises `OSError`."""
        super().__init__(path, ROUND_CODEC, Reusable(environment.worker, environment.round))
        self._rounds: SimpleQueue[tuple[NextRound, list[int]] | str] = SimpleQueue()
        """Received rounds with their descriptors; at the end, why no more will come."""

    def await_requests(self, leave: Callable[[AskToLeave], None]) -> None:
        """Read messages in a thread from now on, which calls `leave` when nodeclient asks to leave the round."""

        def on_message(message: RoundMessage, files: list[int]) -> None:
            if isinstance(message, NextRound):
                self._rounds.put((message, files))
            elif isinstance(message, AskToLeave):
                leave(message)

        def on_end(failure: Exception | None) -> None:
            if failure is not None:
                LOG.warning("this process cannot go into another round: %r", failure)
            self._rounds.put("the connection to nodeclient has ended" if failure is None else repr(failure))

        self.listen("workerlib-rounds", on_message, on_end)

    def next_round(self) -> tuple[NextRound, list[int]] | str:
        """Wait for the next round; return it with its descriptors, which the caller closes, or why none comes."""
        return self._rounds.get()
