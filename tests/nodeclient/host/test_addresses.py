"""The values of a host about itself, in network namespaces where these can be known."""

import subprocess
import sys

import pytest

from nodeclient.host.addresses import host_id
from tests.support.namespaces import apart

pytestmark = pytest.mark.slow


def _python(expression: str, *wrapper: str) -> str:
    program = f"from nodeclient.host.addresses import *; print({expression})"
    return subprocess.check_output([*wrapper, sys.executable, "-c", program], text=True).strip()


def _in_namespace(setup: str, expression: str) -> str:
    return _python(expression, *apart("--net", setup=setup))


PAIR = """\
ip link set lo up
ip link add first type veth peer name second
ip address add 10.20.0.1/24 dev first
ip -6 address add fd00::1/64 dev first nodad
ip address add 10.30.0.1/24 dev second
ip link set first up
ip link set second up"""


def test_processes_of_a_network_namespace_have_one_host_id() -> None:
    # It is as long as a name may be in the protocol.
    assert _python("host_id()") == host_id()
    assert 1 <= len(host_id()) <= 128
    assert _in_namespace("true", "host_id()") not in {"", host_id()}


def test_an_interface_has_the_address_that_others_can_use() -> None:
    assert _in_namespace(PAIR, "address_of('first'), address_of('second')") == "10.20.0.1 10.30.0.1"
    only_ipv6 = f"{PAIR}\nip -4 address flush dev first"
    assert _in_namespace(only_ipv6, "address_of('first')") == "fd00::1"
    assert _in_namespace(f"{only_ipv6}\nip -6 address del fd00::1/64 dev first", "address_of('first')") == "None"
    assert _in_namespace(PAIR, "interfaces()") == "['first', 'lo', 'second']"


@pytest.mark.parametrize(
    ("route", "address"),
    [
        ("ip route add default via 10.20.0.2", "10.20.0.1"),
        ("ip route add default via 10.30.0.2", "10.30.0.1"),
        ("ip -6 route add default via fd00::2", "fd00::1"),
        ("true", "None"),
    ],
)
def test_the_routable_address_is_the_one_towards_the_default_route(route: str, address: str) -> None:
    assert _in_namespace(f"{PAIR}\n{route}", "routable_address()") == address


def test_an_address_is_traced_to_its_interface() -> None:
    asked = ["10.20.0.1", "10.30.0.1", "fd00::1", "127.0.0.1", "::1", "10.20.0.2", "fd00::2", "some.host"]
    answers = ["first", "second", "first", "lo", "lo", None, None, None]
    assert _in_namespace(PAIR, f"[interface_of(address) for address in {asked}]") == str(answers)


@pytest.mark.parametrize("number", [1, 12, 300])
def test_secondary_addresses_belong_to_their_interface(number: int) -> None:
    """The list that the kernel gives may fill its first buffer exactly, or outgrow it."""
    batch = "".join(f"address add 10.20.{at // 200}.{at % 200 + 2}/16 dev first\n" for at in range(number))
    setup = f"{PAIR}\necho '{batch}address add 10.40.0.1/32 dev first label first:vip' | ip -batch -"
    last = f"10.20.{(number - 1) // 200}.{(number - 1) % 200 + 2}"
    expression = f"interface_of('{last}'), interface_of('10.40.0.1'), address_of('first')"
    assert _in_namespace(setup, expression) == "first first 10.20.0.1"


def test_the_interface_towards_a_peer_is_the_routes_and_of_an_own_address_the_one_that_carries_it() -> None:
    asked = ["10.20.0.7", "10.30.0.9", "fd00::7", "10.20.0.1", "127.0.0.1", "10.99.0.1", "no.such.host.invalid"]
    answers = ["first", "second", "first", "first", "lo", None, None]
    assert _in_namespace(PAIR, f"[interface_towards(address) for address in {asked}]") == str(answers)
