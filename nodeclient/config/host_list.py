"""Parses the hosts of `nodeclient up`: those of its flag, and the host files of DeepSpeed and of MPI."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from pathlib import Path

from coordinatord.protocol.text import clip
from coordinatord.runtime.private_files import PrivateFileError, read_given
from nodeclient.config import flag_values

HOSTS_MAX = 128
"""The limit of hosts. Each costs an ssh and four descriptors, of which a process usually has 1,024."""

_HOST = re.compile(
    r"""(?P<user> \w[\w.-]*@ )?
        (?: (?P<name> \w[\w.-]* ) | \[ (?P<bracketed> [0-9a-f:.]+ ) \] | (?P<bare> [0-9a-f]*:[0-9a-f.]*:[0-9a-f:.]* ) )
        (?: : (?P<slots> \d+ ) )?
        (?: \s+ (?: slots \s*=\s* (?P<named_slots> \S+ ) | max[_-]slots \s*=\s* \S+ ) )*""",
    re.VERBOSE | re.ASCII | re.IGNORECASE,
)
"""A host as ssh(1) takes it, with or without slots; an IPv6 address with slots stands in brackets. None begins with a
dash, so ssh takes none for a flag. `max_slots` says how far Open MPI may overload a host: here nothing does."""


Hosts = dict[str, int | None]
"""The names of hosts for ssh, such as `gpu1` or `ana@gpu1`, each with its number of workers; None for the default."""


def read_hosts(text: str) -> Hosts:
    """Parse `HOST[:SLOTS][,...]`. Raises `ArgumentTypeError`."""
    return _merged(_host(part.strip()) for part in text.split(",") if part.strip())


def read_hostfile(path: str) -> Hosts:
    """Parse a host file: `gpu1 slots=8` (DeepSpeed), `gpu1 slots=8 max_slots=8` (Open MPI) or `gpu1:8` (MPICH).

    Raises `ArgumentTypeError`, which names the line.
    """
    hosts = []
    try:
        text = read_given(Path(path)).removeprefix("\ufeff")  # an editor may begin it so
    except PrivateFileError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    for number, line in enumerate(text.splitlines(), 1):
        if words := line.partition("#")[0].strip():
            try:
                hosts.append(_host(words))
            except argparse.ArgumentTypeError as error:
                raise argparse.ArgumentTypeError(f"line {number}: {error}") from None
    return _merged(hosts)


def _host(text: str) -> tuple[str, int | None]:
    match = _HOST.fullmatch(text)
    if match is None:
        expected = "expected HOST, HOST:SLOTS or HOST slots=SLOTS, such as gpu1, ana@gpu1:8 or [fd00::5]:8"
        raise argparse.ArgumentTypeError(f"{clip(text)!r}: {expected}")
    name = (match["user"] or "") + (match["name"] or match["bracketed"] or match["bare"])
    slots = match["named_slots"] or match["slots"]
    return name, None if slots is None else flag_values.slots(slots)


def _merged(hosts: Iterable[tuple[str, int | None]]) -> Hosts:
    """Add up the slots of a host that is named more than once. As in MPI, a host without slots then counts as one."""
    merged: Hosts = {}
    for name, slots in hosts:
        merged[name] = flag_values.slots(str((merged[name] or 1) + (slots or 1))) if name in merged else slots
    if len(merged) > HOSTS_MAX:
        text = f"{len(merged)} hosts are more than {HOSTS_MAX}: have a scheduler start nodeclient join"
        raise argparse.ArgumentTypeError(text)
    return merged
