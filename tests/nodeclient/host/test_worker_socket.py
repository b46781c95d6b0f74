"""The socket at which workers connect, while the node is short of descriptors."""

import asyncio
import os
import resource
import socket
from contextlib import closing
from pathlib import Path

from nodeclient.host.worker_socket import Connection, WorkerSocket
from tests.support.environments import environment
from tests.support.programs import TIMEOUT_S
from workerlib.reuse.reused_worker import round_channel


async def test_workers_connect_below_a_directory_with_a_long_name(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    heard = asyncio.Event()
    listening = WorkerSocket("workers", Connection, lambda _: heard.set())
    with closing(round_channel(listening.listen(folder, 1), environment(0, 1, 1, 1))):
        await asyncio.wait_for(heard.wait(), TIMEOUT_S)
    listening.close()


async def test_without_descriptors_nobody_is_accepted_until_there_are_some_again(tmp_path: Path) -> None:
    limits, loop = resource.getrlimit(resource.RLIMIT_NOFILE), asyncio.get_running_loop()
    heard = asyncio.Queue[Connection]()
    listening = WorkerSocket("workers", Connection, heard.put_nowait)
    path = listening.listen(tmp_path, 1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as worker:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            worker.connect(path)
            acceptor = listening._acceptor
            assert acceptor is not None
            async with asyncio.timeout(TIMEOUT_S):
                while acceptor._resuming is None:  # noqa: ASYNC110 - it has not come to the connection yet
                    await asyncio.sleep(0)
            assert not loop.remove_reader(acceptor._listener), "it would be tried again at once"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        worker.send(b"hello")
        connection = await asyncio.wait_for(heard.get(), TIMEOUT_S)
        listening.close()
    assert connection.pid == os.getpid()


async def test_strangers_take_at_most_as_many_descriptors_as_the_workers(tmp_path: Path) -> None:
    listening = WorkerSocket("workers", Connection, lambda _: None)
    path = listening.listen(tmp_path, 1)
    strangers = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(3)]
    for stranger in strangers:
        stranger.connect(path)
    strangers[2].setblocking(False)
    ended = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(strangers[2], 1), TIMEOUT_S)
    assert (ended, len(listening.connections)) == (b"", 2)
    listening.close()
    for stranger in strangers:
        stranger.close()
