"""The worker's end of the channel to nodeclient about kept state; `channel_messages` has its messages."""

from __future__ import annotations

from workerlib.agent_channel import AgentChannel
from workerlib.contract.channel_messages import CODEC, Hello, Message
from workerlib.contract.env import WorkerEnvironment


class KeepChannel(AgentChannel[Message]):
    """The channel of one worker about kept state, for one round."""

    def __init__(self, path: str, environment: WorkerEnvironment) -> None:
        """Connect at a path. Raises `OSError`."""
        super().__init__(path, CODEC, Hello(environment.worker, environment.round))
