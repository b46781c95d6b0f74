"""Identifies this host, and finds an address at which others probably reach it, without sending anything."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import secrets
import socket
import struct
from array import array
from pathlib import Path

from coordinatord.runtime.boot import boot_id

_SIOCGIFCONF = 0x8912
"""The value in linux/sockios.h: list the IPv4 addresses of all interfaces (netdevice(7))."""

_IFCONF = struct.Struct("iP")
"""A `struct ifconf`: the length of the buffer for the answer, and where it is."""

_IFREQ = struct.Struct("16s4x4s16x")
"""A `struct ifreq` with a `sockaddr_in`: the name, then family and port (skipped), the address, and padding."""

_ELSEWHERE = ("192.0.2.1", "2001:db8::1")
"""Addresses reserved for documentation (RFC 5737, RFC 3849): no host has them, so the default route leads there."""

_DISCARD_PORT = 9
"""Any port: nothing is sent to it (RFC 863)."""

_PROCESS_TOKEN = secrets.token_hex(16)
"""The host id of a process that cannot learn which host it is on: nobody else has it."""


def fresh_node_id() -> str:
    """Return a node id that no other process has: this host's name and a random suffix."""
    return f"{socket.gethostname()[:100]}-{secrets.token_hex(3)}"


def host_id() -> str:
    """Return a text that is equal on two nodes if and only if they reach each other over loopback.

    It is the boot id with the number of the network namespace. The first differs between hosts, even cloned ones, and
    the second between a host's containers. A sandbox may hide the boot id. Then the node counts as the only one on its
    host, and others reach it over the network.
    """
    boot = boot_id()
    return f"{boot}-{Path('/proc/self/ns/net').stat().st_ino}" if boot else _PROCESS_TOKEN


def routable_address() -> str | None:
    """Return this host's own address towards the default route, IPv4 before IPv6; None if it has no such route."""
    return _source_towards(_ELSEWHERE[0]) or _source_towards(_ELSEWHERE[1])


def interface_towards(peer: str) -> str | None:
    """Return the network interface by which this host reaches the IP address `peer`, which may be its own.

    None if unknown, such as for a host name, whose lookup could take longer than a lease.

    GLOO_SOCKET_IFNAME needs the interface: by default, gloo listens at the address of the host's own name, which is
    127.0.1.1 on Debian.
    """
    source = _source_towards(peer)
    return source and interface_of(source)


def _source_towards(peer: str) -> str | None:
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(peer).version == 6 else socket.AF_INET  # noqa: PLR2004 - of IP
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            # With UDP this only looks up the route, and its source address; no packet is sent.
            probe.connect((peer, _DISCARD_PORT))
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        return None


def interfaces() -> list[str]:
    """Return the names of this host's network interfaces."""
    return sorted(name for _, name in socket.if_nameindex())


def address_of(interface: str) -> str | None:
    """Return the address of a network interface for other hosts, IPv4 before IPv6; None if there is none.

    A link-local address does not count: it has no meaning without the name of an interface.
    """
    return next((str(own) for name, own in _addresses() if name == interface and not own.is_link_local), None)


def interface_of(address: str) -> str | None:
    """Return the network interface that carries this local IP address; None if none does, or it is no IP address."""
    try:
        wanted = ipaddress.ip_address(address)
    except ValueError:
        return None
    return next((name for name, own in _addresses() if own == wanted), None)


def _addresses() -> list[tuple[str, ipaddress.IPv4Address | ipaddress.IPv6Address]]:
    """Return all interfaces with their addresses, IPv4 before IPv6, and the primary address before secondary ones."""
    return [*_ipv4_addresses(), *_ipv6_addresses()]


def _ipv4_addresses() -> list[tuple[str, ipaddress.IPv4Address]]:
    room = _IFREQ.size
    answer = array("B")
    length = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        while length == len(answer):  # an answer that fills its buffer may lack addresses
            room *= 16
            answer = array("B", bytes(room))
            request = _IFCONF.pack(room, answer.buffer_info()[0])
            length, _ = _IFCONF.unpack(fcntl.ioctl(control, _SIOCGIFCONF, request))
    found = _IFREQ.iter_unpack(answer[:length])
    # An address may have a label, such as eth0:1, which begins with the name of its interface.
    return [(os.fsdecode(label.rstrip(b"\0").partition(b":")[0]), ipaddress.IPv4Address(raw)) for label, raw in found]


def _ipv6_addresses() -> list[tuple[str, ipaddress.IPv6Address]]:
    """Return all interfaces with their IPv6 addresses; none where the kernel has no IPv6."""
    try:
        table = Path("/proc/net/if_inet6").read_text()
    except FileNotFoundError:
        return []
    lines = map(str.split, table.splitlines())
    return [(name, ipaddress.IPv6Address(bytes.fromhex(digits))) for digits, _, _, _, _, name in lines]
