"""A worker's channel to its nodeclient, whose end a test has."""

import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.support.environments import environment
from tests.support.programs import TIMEOUT_S
from workerlib import WorkerEnvironment
from workerlib.agent_channel import AgentChannel

Channel = TypeVar("Channel", bound=AgentChannel[Any])


@contextmanager
def connected(
    folder: Path, kind: Callable[[str, WorkerEnvironment], Channel], worker: WorkerEnvironment | None = None
) -> Iterator[tuple[Channel, socket.socket]]:
    """Connect a channel; by default it is that of a lone worker of round 1. Its first message is still to be read."""
    path = str(folder / "node")
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as listener:
        listener.bind(path)
        listener.listen()
        channel = kind(path, worker or environment(0, 1, 1, 1))
        node, _ = listener.accept()
    node.settimeout(TIMEOUT_S)
    with closing(channel), node:
        yield channel, node
