"""The agent's end of the channel to a worker, while the node is short of descriptors."""

import asyncio
import resource
import socket
from pathlib import Path

from nodeclient.keeping.worker_channel import WorkerChannel
from tests.support.programs import TIMEOUT_S
from workerlib.contract.channel_messages import CODEC, AskRestore, Hello, Reserved


async def test_a_channel_ends_where_a_descriptor_cannot_be_sent(tmp_path: Path) -> None:
    limits, gone = resource.getrlimit(resource.RLIMIT_NOFILE), list[int]()
    heard = asyncio.Event()
    channel = WorkerChannel(lambda *_: heard.set(), gone.append)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as worker:
        worker.connect(channel.listen(tmp_path, 1, 1))
        worker.send(CODEC.encode(Hello(0, 1)))
        worker.send(CODEC.encode(AskRestore()))
        await asyncio.wait_for(heard.wait(), TIMEOUT_S)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            channel.send(0, Reserved(), (worker.fileno(),))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert (gone, channel.connected) == ([0], frozenset())
        worker.settimeout(TIMEOUT_S)
        assert worker.recv(1) == b"", "the worker sees that it ended"
    channel.close()
