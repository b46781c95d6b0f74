"""Parses addresses of coordinators from command lines, from URLs of pages, and from standbys that name a leader."""

from __future__ import annotations

import argparse

from coordinatord.protocol.fields import DEFAULT_PORT
from coordinatord.protocol.ip_addresses import Endpoint, parse_endpoint

__all__ = ["Endpoint", "read_endpoint"]


def read_endpoint(text: str, least_port: int = 1) -> Endpoint:
    """Parse one `HOST[:PORT]`, or a URL as a browser shows it: `https://HOST:PORT/`. Raises `ArgumentTypeError`.

    `least_port` is 0 if that port may stand for any free one.
    """
    plain = text.removeprefix("https://").removeprefix("http://").removesuffix("/")
    found = parse_endpoint(plain, DEFAULT_PORT, least_port)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no HOST[:PORT], such as coord.example:29400 or [fd00::5]:29400")
    return found
