"""Networks as labs have them: name servers that do not answer, IPv6 alone."""

import signal
import sys
from pathlib import Path

import pytest

from tests.support.namespaces import apart
from tests.support.programs import BIN, Program, clean_environ, wait_until
from tests.surroundings.support import went

pytestmark = pytest.mark.slow

ADDRESS = "10.231.18.1"
"""An address that exists in these namespaces only."""

LONG_S = 120.0
"""The time for an import of torch and eleven seconds without an answer."""

NO_ANSWER = """
import socket, time

def wait_for_ever(*_, **__):
    print("asked", flush=True)
    while True: time.sleep(1000)

socket.getaddrinfo = wait_for_ever
"""
"""A sitecustomize.py with which no name server ever answers."""

DUMMY = "ip link set lo up; ip link add wire type veth peer name end; ip link set wire up; ip link set end up"


@pytest.mark.long
def test_torchrun_connects_to_a_store_though_no_name_server_answers(tmp_path: Path) -> None:
    resolver = tmp_path / "resolv.conf"
    resolver.write_text(f"nameserver {ADDRESS}\noptions timeout:11 attempts:1\n")
    setup = f"{DUMMY}; ip address add {ADDRESS}/24 dev wire; mount --bind {resolver} $(readlink -f /etc/resolv.conf)"
    script = Path(__file__).with_name("connect_to_store.py")
    with Program(*apart("--net", "--mount", setup=setup), sys.executable, script, ADDRESS) as program:
        said = program.await_line(r"^(?P<took_s>[\d.]+) b'value'$", LONG_S)
        assert float(said["took_s"]) > 10, "the name server was not asked"
        assert program.wait() == 0


def test_a_node_ends_though_no_name_server_answers(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_ANSWER)
    flags = ("--insecure", "--no-builtin-check", "--coord", "a.example.org,b.example.org")
    environ = clean_environ(PYTHONPATH=str(tmp_path))
    with Program(BIN / "nodeclient", "join", *flags, "--", "true", environ=environ) as node:
        # The second look-up, that of the connection, follows when the first one takes too long.
        wait_until("two look-ups", lambda: node.lines.count("asked") == 2 or not node.reading)
        node.process.send_signal(signal.SIGTERM)
        assert node.wait() == 128 + signal.SIGTERM


def test_a_coordinator_may_be_reached_by_ipv6_alone() -> None:
    address = "fd00:231::1"
    alone = apart(
        *("--net", "--pid", "--fork", "--mount-proc", "--kill-child"),
        setup=f"{DUMMY}; ip -6 address add {address}/64 dev wire nodad",
    )
    both = 'coordinatord --host "$1" --ephemeral --log-level error >&2 & nodeclient join --coord "[$1]" -- sh -c "$2"'
    ended = went(
        *alone, "sh", "-c", both, "sh", address, "echo trained", environ={"PATH": f"{BIN}:/usr/sbin:/usr/bin:/bin"}
    )
    assert ended.stdout == "trained\n"
