"""Formats the prefix of each worker's lines on a shared terminal."""

from __future__ import annotations

import ipaddress
from string import Template

from msgspec import Struct

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
"""Foreground colours (ECMA-48, SGR), without red, which is for errors; those of adjacent ranks differ."""


class WorkerLabel(Struct, frozen=True):
    """The worker of a line."""

    rank: int
    local_rank: int
    role: str
    host: str


def make_prefix(label: WorkerLabel, template: str | None, *, several_hosts: bool, coloured: bool) -> bytes:
    """Return the prefix of a worker's lines: by default its rank, and its host if there are several.

    The template is torchrun's (`--log-line-prefix-template`), with ${host} besides, the host name without its domain;
    as there, nothing follows it before the line.
    """
    if template is not None:
        values: dict[str, object] = {"role_name": label.role, "rank": label.rank, "local_rank": label.local_rank}
        values |= {"hostname": label.host, "host": _short(label.host)}
        text, gap = Template(template).safe_substitute(values), ""
    else:
        host = f"{_short(label.host)} " if several_hosts else ""
        text, gap = f"[{host}rank {label.rank}]", " "
    if coloured:
        text = f"\x1b[{_COLOURS[label.rank % len(_COLOURS)]}m{text}\x1b[0m"
    return f"{text}{gap}".encode()


def _short(host: str) -> str:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host.partition(".")[0]
    return host
