"""The channels of a worker to its nodeclient belong to the worker's own process."""

import os
import socket
from pathlib import Path

import pytest

from tests.support.environments import environment
from tests.support.programs import TIMEOUT_S
from workerlib.contract.packets import PACKET_BYTES, ChannelError
from workerlib.keeping.keep_channel import KeepChannel


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")  # of Python 3.12, at each fork
@pytest.mark.slow
def test_a_forked_child_does_not_keep_a_channel_open(tmp_path: Path) -> None:
    """Its node would believe that a worker that has ended is still there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "keep"))
        listener.listen()
        channel = KeepChannel(str(tmp_path / "keep"), environment(0, 1, 1, 1))
        node, _ = listener.accept()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)  # until this test is over
        os._exit(0)
    with node:
        node.settimeout(TIMEOUT_S)
        assert b"Hello" in node.recv(PACKET_BYTES)
        channel.close()
        assert node.recv(PACKET_BYTES) == b""
    for end in (reader, writer):
        os.close(end)
    assert os.waitpid(child, 0) == (child, 0)


def test_a_packet_that_is_too_long_is_not_taken_for_the_end(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "keep"))
        listener.listen()
        channel = KeepChannel(str(tmp_path / "keep"), environment(0, 1, 1, 1))
        node, _ = listener.accept()
    with node:
        node.send(b" " * (PACKET_BYTES + 1))
        try:
            with pytest.raises(ChannelError, match=f"^a packet is longer than {PACKET_BYTES} bytes$"):
                channel.receive()
        finally:
            channel.close()
