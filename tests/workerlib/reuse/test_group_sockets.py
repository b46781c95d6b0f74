"""A worker that waits in a collective for a peer that is stopped gets out of it; nothing else of it is touched."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support import stopped_peer
from tests.support.programs import TIMEOUT_S, wait_until
from workerlib import responder
from workerlib.reuse.group_sockets import GroupSockets

pytestmark = pytest.mark.slow

PROGRAM = Path(stopped_peer.__file__)


class Foreign(socket.socket):
    """A socket as a native library makes it: Python's own way to make one is not taken."""

    __init__ = socket.socket.__init__


def a_pair(kind: type[socket.socket] = Foreign) -> tuple[socket.socket, socket.socket]:
    """Connect two TCP sockets of this process."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = kind(socket.AF_INET, socket.SOCK_STREAM)
        near.connect(listener.getsockname())
        far = kind(fileno=listener._accept()[0])  # type: ignore[attr-defined]  # `accept` makes a socket of Python's
    return near, far


def check_open(near: socket.socket, far: socket.socket) -> None:
    """Check that one of two connected sockets still hears the other."""
    near.sendall(b"x")
    assert far.recv(1) == b"x"


@pytest.fixture
def sockets() -> Iterator[GroupSockets]:
    """Return those of a round, which is over at the end."""
    of_round = GroupSockets()
    yield of_round
    of_round.close()


def test_only_what_came_in_the_block_is_shut_and_listeners_are_left_alone(sockets: GroupSockets) -> None:
    own_near, own_far = a_pair()
    with sockets.gathering():
        near, far = a_pair()
        listener = socket.create_server(("127.0.0.1", 0))
    with own_near, own_far, near, far, listener:
        assert sockets.shut() == 2
        assert near.recv(1) == far.recv(1) == b""
        near.sendall(b"a write of gloo's never fails")
        check_open(own_near, own_far)
        with socket.create_connection(listener.getsockname()) as caller:
            listener.accept()[0].close()
            assert caller.recv(1) == b""
        assert sockets.shut() == 0


def test_what_python_connects_meanwhile_is_the_scripts(sockets: GroupSockets) -> None:
    with sockets.gathering(), ThreadPoolExecutor(1) as others:
        near, far = others.submit(a_pair, socket.socket).result()
        of_group, peer = a_pair()
        assert sockets.shut(socket.SHUT_WR) == 2
        near.sendall(b"while the group is made")
    with near, far, of_group, peer:
        assert sockets.shut() == 0
        assert far.recv(100) == b"while the group is made"
        far.sendall(b"and afterwards")
        assert near.recv(100) == b"and afterwards"


def test_a_connection_that_python_accepts_while_the_block_ends_is_the_scripts(sockets: GroupSockets) -> None:
    """The kernel has made it in the block. `accept` makes an object of it a moment later."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        with sockets.gathering():
            descriptor, _ = listener._accept()  # type: ignore[attr-defined]  # the first half of `accept`
        far = socket.socket(fileno=descriptor)
    with near, far:
        assert sockets.shut() == 0
        check_open(far, near)


def test_python_makes_sockets_as_before_once_the_round_is_over() -> None:
    original = socket.socket.__init__
    sockets = GroupSockets()
    with sockets.gathering():
        pass
    assert socket.socket.__init__ is not original
    sockets.close()
    assert socket.socket.__init__ is original


def test_a_look_at_the_counters_of_a_connection_does_not_make_it_the_scripts(sockets: GroupSockets) -> None:
    """A worker is asked where it stands if its group takes long to be made."""
    with sockets.gathering():
        near, far = a_pair()
        responder._network_bytes()
    with near, far:
        assert sockets.shut() == 2


def test_a_connection_that_python_hands_on_is_the_scripts(sockets: GroupSockets) -> None:
    """`ssl` hands it to another object, and `multiprocessing.connection` to none."""
    with sockets.gathering():
        descriptors = [connection.detach() for connection in a_pair(socket.socket)]
        assert sockets.shut() == 0
    near, far = (Foreign(fileno=descriptor) for descriptor in descriptors)
    with near, far:
        assert sockets.shut() == 0
        check_open(near, far)


def test_what_is_no_tcp_connection_is_left_alone(sockets: GroupSockets) -> None:
    with sockets.gathering():
        fds = [other.detach() for other in socket.socketpair()]
    near, far = (socket.socket(fileno=fd) for fd in fds)
    with near, far:
        assert sockets.shut() == 0
        check_open(near, far)


def test_a_descriptor_that_has_another_use_by_now_is_left_alone(sockets: GroupSockets) -> None:
    with sockets.gathering():
        near, far = a_pair()
    number = near.fileno()
    near.close()
    far.close()
    other, peer = a_pair()
    with other, peer:
        assert number in {other.fileno(), peer.fileno()}
        assert sockets.shut() == 0
        check_open(other, peer)


@pytest.mark.parametrize("side", [socket.SHUT_RD, socket.SHUT_WR], ids=["asked", "failed"])
def test_a_peer_can_write_until_all_are_out(sockets: GroupSockets, side: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with sockets.gathering():
            near = Foreign(socket.AF_INET, socket.SOCK_STREAM)
            near.connect(listener.getsockname())
        far, _ = listener.accept()
    with far:
        far.settimeout(TIMEOUT_S)
        near.sendall(b"what was on its way")
        sockets.shut(side)
        near.close()  # as gloo does where it reads the end
        for _ in range(3):
            far.sendall(b"a connection that is closed would be reset by this")
        assert far.recv(100) == b"what was on its way"
        if side == socket.SHUT_WR:
            assert far.recv(1) == b""
        far.sendall(b"and by this")
        sockets.close()
        wait_until("the connection to be gone", lambda: is_reset(far))


def is_reset(connection: socket.socket) -> bool:
    """Whether a write in a connection fails."""
    try:
        connection.sendall(b"x")
    except OSError:
        return True
    return False


def test_a_collective_with_a_stopped_peer_fails_and_a_new_group_trains_on() -> None:
    command = [sys.executable, str(PROGRAM)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(rank["rank"] for rank in told) == [0, 1]
    assert all("gloo/transport" in rank["error"] for rank in told)
    assert {rank["sum"] for rank in told} == {2.0}
