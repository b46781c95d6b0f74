"""Tells IP addresses from names, and writes each in one way. Pure."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

KNOWN_MAX = 1_024
"""The most parsed addresses that are cached. Each is needed twice at a join and once more at a round, and all nodes
connect to the same few addresses of this host. To parse two takes 25 us, a tenth of the cost of a join."""


def is_address(text: str) -> bool:
    """Whether a text is an IP address and not a name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


@lru_cache(KNOWN_MAX)
def is_loopback(address: str) -> bool:
    """Whether an address is one of the host's own loopback; a host name counts as none."""
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
