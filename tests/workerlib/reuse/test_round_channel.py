"""The connection over which a worker hears of rounds: what becomes of a worker whose connection or thread ends."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import pytest

from tests.support.programs import TIMEOUT_S
from tests.support.worker_channels import connected
from workerlib.contract.channel_messages import DESCRIPTORS_MAX
from workerlib.contract.packets import PACKET_BYTES
from workerlib.contract.round_messages import ROUND_CODEC, AskToLeave, NextRound, Reusable, RoundMessage
from workerlib.reuse.round_channel import RoundChannel


@contextmanager
def listening(folder: Path, leave: Callable[[AskToLeave], None]) -> Iterator[tuple[RoundChannel, socket.socket]]:
    """Connect a worker of round 1 to this test, which plays its nodeclient."""
    with connected(folder, RoundChannel) as (line, node):
        assert isinstance(ROUND_CODEC.decode(node.recv(PACKET_BYTES)), Reusable)
        line.await_requests(leave)
        yield line, node


def send(node: socket.socket, message: RoundMessage, *files: int) -> None:
    socket.send_fds(node, [ROUND_CODEC.encode(message)], files)


def test_a_worker_hears_that_it_is_to_leave_and_of_the_next_round(tmp_path: Path) -> None:
    left = SimpleQueue[AskToLeave]()
    with listening(tmp_path, left.put) as (line, node), (tmp_path / "out").open("w") as out:
        send(node, AskToLeave(1))
        assert left.get(timeout=TIMEOUT_S) == AskToLeave(1)
        send(node, NextRound(2, {"RANK": "1"}), out.fileno(), out.fileno())
        got = line.next_round()
        assert not isinstance(got, str)
        message, files = got
        assert message == NextRound(2, {"RANK": "1"})
        for file in files:
            os.close(file)


def test_there_is_no_next_round_when_nodeclient_has_gone(tmp_path: Path) -> None:
    with listening(tmp_path, lambda _: None) as (line, node):
        node.close()
        assert line.next_round() == "the connection to nodeclient has ended"


def test_a_worker_that_fails_to_leave_waits_for_no_round_and_seems_not_to(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It would be held, and given a round that it never hears of, while all others wait for it there."""

    def leave(_: AskToLeave) -> None:
        raise AttributeError("no such thing")

    with listening(tmp_path, leave) as (line, node):
        send(node, AskToLeave(1))
        assert node.recv(PACKET_BYTES) == b"", "its node knows that it cannot stay"
        assert line.next_round() == "AttributeError('no such thing')"
    assert "this process cannot go into another round: AttributeError('no such thing')" in caplog.text


def test_a_worker_that_cannot_take_its_next_round_knows_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """More descriptors than it takes are cut in the same way as where it has too many files open."""
    with listening(tmp_path, lambda _: None) as (line, node), (tmp_path / "out").open("w") as out:
        send(node, NextRound(2, {}), *[out.fileno()] * (DESCRIPTORS_MAX + 1))
        assert node.recv(PACKET_BYTES) == b""
        assert "cannot open more files: raise ulimit -n" in line.next_round()
    assert "this process cannot go into another round: ChannelError" in caplog.text
