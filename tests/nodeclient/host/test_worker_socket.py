"""The socket at which workers connect, while the node is short of descriptors."""

import asyncio
import os
import resource
import socket
from contextlib import closing
from pathlib import Path

from nodeclient.host.worker_socket import WorkerSocket
from tests.support.environments import environment
from tests.support.programs import TIMEOUT_S
from workerlib.reuse.round_channel import RoundChannel


async def test_workers_connect_below_a_directory_with_a_long_name(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    accepted: asyncio.Future[tuple[socket.socket, int]] = asyncio.get_running_loop().create_future()
    listening = WorkerSocket(folder, "workers", lambda *connection: accepted.set_result(connection))
    with closing(RoundChannel(listening.path, environment(0, 1, 1, 1))):
        connection, _ = await asyncio.wait_for(accepted, TIMEOUT_S)
    connection.close()
    listening.close()


async def test_without_descriptors_nobody_is_accepted_until_there_are_some_again(tmp_path: Path) -> None:
    limits, loop = resource.getrlimit(resource.RLIMIT_NOFILE), asyncio.get_running_loop()
    accepted: asyncio.Future[tuple[socket.socket, int]] = loop.create_future()
    listening = WorkerSocket(tmp_path, "workers", lambda *connection: accepted.set_result(connection))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as worker:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            worker.connect(listening.path)
            async with asyncio.timeout(TIMEOUT_S):
                while listening._acceptor._resuming is None:  # noqa: ASYNC110 - it has not come to the connection yet
                    await asyncio.sleep(0)
            assert not loop.remove_reader(listening._acceptor._listener), "it would be tried again at once"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        connection, pid = await asyncio.wait_for(accepted, TIMEOUT_S)
        connection.close()
    listening.close()
    assert pid == os.getpid()
