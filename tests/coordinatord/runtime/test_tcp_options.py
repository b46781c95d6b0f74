"""TCP as both ends of a session want it."""

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from coordinatord.runtime.tcp_options import (
    RETRY_WITHIN_MS,
    TCP_RTO_MAX_MS,
    TCP_THIN_LINEAR_TIMEOUTS,
    retransmit_steadily,
)


@contextmanager
def skipping_the_unknown() -> Iterator[None]:
    """Skip the test where the kernel does not know an option."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
        pytest.skip("this kernel does not know the option")


@pytest.mark.parametrize(("option", "value"), [(TCP_THIN_LINEAR_TIMEOUTS, 1), (TCP_RTO_MAX_MS, RETRY_WITHIN_MS)])
def test_accepted_connections_inherit_what_the_kernel_knows_of(option: int, value: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        retransmit_steadily(listener)
        connected = socket.create_connection(listener.getsockname())
        with connected, listener.accept()[0] as accepted, skipping_the_unknown():
            assert accepted.getsockopt(socket.IPPROTO_TCP, option) == value


def test_an_end_that_is_no_tcp_socket_is_left_as_it_is() -> None:
    one, other = socket.socketpair()
    with one, other:
        retransmit_steadily(one)
        one.send(b"x")
        assert other.recv(1) == b"x"
