"""Parses and formats addresses of coordinators, from command lines, URLs of pages, and standbys that name a leader."""

from __future__ import annotations

import argparse
import re

from msgspec import Struct

from coordinatord.protocol.fields import DEFAULT_PORT, PORT_MAX
from coordinatord.protocol.ip_addresses import is_address

_ENDPOINT = re.compile(
    r"""(?: \[ (?P<bracketed> [0-9a-fA-F:.]+ ) \]  |  (?P<host> [^\s:/\[\],]+ ) )  (?: : (?P<port> \d{1,5} ) )?
        | (?P<bare> [0-9a-fA-F]* : [0-9a-fA-F:.]* : [0-9a-fA-F:.]* )""",
    re.VERBOSE,
)
"""A host name or address with or without a port; an IPv6 address with a port stands in brackets."""


class Endpoint(Struct, frozen=True):
    """The address of a coordinator."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_endpoint(text: str, least_port: int = 1) -> Endpoint:
    """Parse one `HOST[:PORT]`, or a URL as a browser shows it: `https://HOST:PORT/`. Raises `ArgumentTypeError`.

    `least_port` is 0 if that port may stand for any free one.
    """
    match = _ENDPOINT.fullmatch(text.removeprefix("https://").removeprefix("http://").removesuffix("/"))
    port = int((match and match["port"]) or DEFAULT_PORT)
    ipv6 = match and (match["bracketed"] or match["bare"])
    if match is None or not least_port <= port <= PORT_MAX or (ipv6 and not is_address(ipv6)):
        raise argparse.ArgumentTypeError(f"{text!r} is no HOST[:PORT], such as coord.example:29400 or [fd00::5]:29400")
    return Endpoint(ipv6 or match["host"], port)
