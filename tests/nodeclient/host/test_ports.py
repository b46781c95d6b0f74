"""A reserved port goes to no process that asks for any port, and to the store that asks for this one."""

import socket
import subprocess
import sys

import pytest

from nodeclient.host.addresses import routable_address
from nodeclient.host.ports import PortReservation, listening_address, listening_socket
from tests.support.namespaces import apart

# Eight ports are all there are, and the reservation holds one of them.
EXHAUSTING = """
import socket, sys
from nodeclient.host.ports import PortReservation

reservation = PortReservation()
taken = []
for family in (socket.AF_INET, socket.AF_INET6):
    for reuse in (0, 1):
        while True:
            other = socket.socket(family)
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
            try:
                other.bind(("", 0))
                other.listen()
            except OSError:
                break
            taken.append(other)
ports = {other.getsockname()[1] for other in taken}
assert len(ports) == 7, ports
assert reservation.port not in ports
for other in taken:
    other.close()

target = socket.create_server(("", 30000))
connections = []
while True:
    try:
        connections.append(socket.create_connection(("127.0.0.1", 30000)))
    except OSError:
        break
assert len(connections) == 7, len(connections)
assert reservation.port not in {connection.getsockname()[1] for connection in connections}
"""


@pytest.mark.slow
def test_the_kernel_gives_a_reserved_port_to_nobody_else() -> None:
    setup = "ip link set lo up && echo 40000 40007 > /proc/sys/net/ipv4/ip_local_port_range"
    subprocess.run([*apart("--net", setup=setup), sys.executable, "-c", EXHAUSTING], check=True)


STORE = """
import os, sys
from datetime import timedelta
from torch.distributed import TCPStore

port = int(sys.argv[1])
for libuv in (True, True, False, False):  # each in a process of its own, which need not import torch
    child = os.fork()
    if child == 0:
        break
    assert os.waitpid(child, 0)[1] == 0, libuv
else:
    sys.exit()

server = TCPStore("127.0.0.1", port, 1, is_master=True, timeout=timedelta(seconds=30), use_libuv=libuv)
client = TCPStore("127.0.0.1", port, 1, is_master=False, timeout=timedelta(seconds=30), use_libuv=libuv)
client.set("key", "value")
assert server.get("key") == b"value"
"""


@pytest.mark.slow
def test_torchs_store_can_listen_on_a_reserved_port() -> None:
    reservation = PortReservation()
    subprocess.run([sys.executable, "-c", STORE, str(reservation.port)], check=True)
    reservation.close()


@pytest.mark.parametrize(
    ("advertised", "standalone", "address"),
    [
        (None, True, "127.0.0.1"),
        (None, False, ""),
        ("127.0.0.1", True, "127.0.0.1"),
        ("127.0.0.1", False, ""),  # other hosts are told another address
        ("192.0.2.1", True, ""),  # no host has this one: it may be a router's
        ("192.0.2.1", False, ""),
        ("fe80::1%nowhere", False, ""),
    ],
)
def test_agents_answer_where_others_are_told_to_ask(advertised: str | None, standalone: bool, address: str) -> None:
    assert listening_address(advertised, standalone=standalone) == address


def test_an_address_of_this_host_is_the_only_one_that_is_listened_at() -> None:
    own = routable_address()
    if own is None:
        pytest.skip("this host has no address but those of loopback")
    assert listening_address(own, standalone=False) == own
    with listening_socket(own, 1) as listener:
        port = listener.getsockname()[1]
        socket.create_connection((own, port)).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.1.2.3", port))  # where nobody else listens either
