"""Tells IP addresses from names, writes each in one way, and parses and formats HOST:PORT. Pure."""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache

from msgspec import Struct

from coordinatord.protocol.fields import PORT_MAX

KNOWN_MAX = 1_024
"""The most addresses whose parsed forms are cached. A join needs the node's address and that of this host twice, a
round needs them once more, and this host has only a few. To parse both takes 25 us, a tenth of the cost of a join."""


def is_address(text: str) -> bool:
    """Whether a text is an IP address and not a name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


@lru_cache(KNOWN_MAX)
def is_loopback(address: str) -> bool:
    """Whether an address is a loopback address; a host name is none."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


@lru_cache(KNOWN_MAX)
def plain_address(address: str) -> str:
    """Return an address without its zone, which names an interface; a mapped one (`::ffff:10.0.0.5`) as IPv4."""
    address = address.partition("%")[0]
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


_ENDPOINT = re.compile(
    r"""(?: \[ (?P<bracketed> [0-9a-fA-F:.]+ ) \]  |  (?P<host> [\w.-]{1,253} ) )  (?: : (?P<port> [0-9]{1,5} ) )?
        | (?P<bare> [0-9a-fA-F]* : [0-9a-fA-F:.]* : [0-9a-fA-F:.]* )""",
    re.VERBOSE,
)
"""A host name or address with or without a port; an IPv6 address with a port stands in brackets."""


class Endpoint(Struct, frozen=True):
    """The address of a program."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoint(text: str, default_port: int, least_port: int = 1) -> Endpoint | None:
    """Parse `HOST[:PORT]`; None if the text is invalid. A given port is at least `least_port`."""
    match = _ENDPOINT.fullmatch(text)
    # Without a port, the highest one passes the check.
    if match is None or not least_port <= int(match["port"] or PORT_MAX) <= PORT_MAX:
        return None
    ipv6 = match["bracketed"] or match["bare"]
    if ipv6 and not is_address(ipv6):
        return None
    return Endpoint(ipv6 or match["host"], int(match["port"] or default_port))
