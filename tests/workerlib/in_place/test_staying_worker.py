"""A worker between two rounds: what it is told of the next one before it takes part in it."""

from __future__ import annotations

import socket
import struct
import termios
from contextlib import closing
from fcntl import ioctl
from pathlib import Path

from tests.support.programs import TIMEOUT_S, wait_until
from workerlib.in_place.round_line import RoundLine
from workerlib.in_place.round_messages import ROUND_CODEC, AskToLeave, NextRound, Refusing, RoundMessage
from workerlib.in_place.staying_worker import StayingWorker
from workerlib.packets import PACKET_BYTES


def connected(folder: Path) -> tuple[RoundLine, socket.socket]:
    """Connect a worker of round 1 to this test, which plays its nodeclient and has heard that it can stay."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as listener:
        listener.bind(str(folder / "rounds"))
        listener.listen()
        line = RoundLine(str(folder / "rounds"), 0, 1)
        node, _ = listener.accept()
    node.settimeout(TIMEOUT_S)
    node.recv(PACKET_BYTES)
    return line, node


def tell(node: socket.socket, message: RoundMessage, *files: int) -> None:
    """Send a message, and wait until the thread of the worker that listens has read it."""
    socket.send_fds(node, [ROUND_CODEC.encode(message)], files)
    wait_until("the message is read", lambda: _unread(node) == 0)


def _unread(node: socket.socket) -> int:
    (number,) = struct.unpack("i", ioctl(node, termios.TIOCOUTQ, bytes(4)))
    return int(number)


def test_a_round_that_is_over_before_the_worker_has_taken_it_is_left(tmp_path: Path) -> None:
    """Its node would wait for `--abort-timeout`, and end a worker that could have stayed."""
    line, node = connected(tmp_path)
    with node:
        staying = StayingWorker(line, 1)
        tell(node, NextRound(2, {}), 1, 2)  # the streams that this process has already
        tell(node, AskToLeave(2))
        staying.take_next_round()
        answer = ROUND_CODEC.decode(node.recv(PACKET_BYTES))
        assert isinstance(answer, Refusing), "nothing was given to ctx.keep"
        assert answer.round == 2


def test_a_worker_that_takes_no_further_round_says_so_of_one_that_it_was_given(tmp_path: Path) -> None:
    line, node = connected(tmp_path)
    with node:
        staying = StayingWorker(line, 1)
        tell(node, NextRound(2, {}), 1, 2)
        tell(node, AskToLeave(2))
        staying.end()
        assert ROUND_CODEC.decode(node.recv(PACKET_BYTES)) == Refusing(2, "the script has left its loop of rounds")


def test_a_round_that_the_worker_has_left_behind_is_not_left_again(tmp_path: Path) -> None:
    line, node = connected(tmp_path)
    with node:
        staying = StayingWorker(line, 1)
        tell(node, NextRound(2, {}), 1, 2)
        staying.take_next_round()
        tell(node, AskToLeave(1))
        tell(node, AskToLeave(2))
        answer = ROUND_CODEC.decode(node.recv(PACKET_BYTES))
        assert isinstance(answer, Refusing)
        assert answer.round == 2
