"""Reads the hosts of `nodeclient up`: those of its flag, and the host files of DeepSpeed and of MPI."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.fields import WORKERS_MAX
from coordinatord.protocol.text import clip

HOSTS_MAX = 128
"""The limit of hosts: each costs this host an ssh and four descriptors, of the usual 1,024. Larger clusters have a
scheduler."""

_HOST = re.compile(
    r"""(?P<user> \w[\w.-]*@ )?
        (?: (?P<name> \w[\w.-]* ) | \[ (?P<bracketed> [0-9a-f:.]+ ) \] | (?P<bare> [0-9a-f]*:[0-9a-f.]*:[0-9a-f:.]* ) )
        (?: : (?P<slots> \d{1,5} ) )?""",
    re.VERBOSE | re.ASCII | re.IGNORECASE,
)
"""A host as ssh(1) takes it, with or without slots; an IPv6 address with slots stands in brackets. None begins with a
dash, so ssh takes none for a flag."""

_SETTING = re.compile(r"(?P<key>[a-z][a-z_-]*)\s*=\s*(?P<value>\S+)", re.ASCII)

_IGNORED = frozenset({"max_slots", "max-slots"})
"""Settings of Open MPI's host files that say how far a host may be overloaded: here nothing overloads one."""


class HostListError(OperationalError):
    """A text is no list of hosts; the error quotes the place."""

    exit_code = ExitCode.USAGE


class TrainingHost(Struct, frozen=True):
    """A host on which `nodeclient up` starts a node."""

    name: str
    """The name for ssh, such as `gpu1` or `ana@gpu1`."""
    slots: int | None = None
    """The number of workers; None for the default of `nodeclient join`."""


def read_hosts(text: str) -> tuple[TrainingHost, ...]:
    """Parse `HOST[:SLOTS][,...]`. Raises `HostListError`."""
    return _merged(_host(part.strip()) for part in text.split(",") if part.strip())


def read_hostfile(text: str) -> tuple[TrainingHost, ...]:
    """Parse a host file: `gpu1 slots=8` (DeepSpeed), `gpu1 slots=8 max_slots=8` (Open MPI) or `gpu1:8` (MPICH).

    Raises `HostListError`, which names the line.
    """
    hosts = []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):  # an editor may begin it so
        if words := line.partition("#")[0].strip():
            try:
                hosts.append(_host_of_line(words))
            except HostListError as error:
                raise HostListError(f"line {number}: {error}") from None
    return _merged(hosts)


def _host_of_line(words: str) -> TrainingHost:
    first, *rest = words.split(maxsplit=1)
    host, left = _host(first), rest[0] if rest else ""
    for setting in _SETTING.finditer(left):
        if setting["key"] == "slots":
            host = TrainingHost(host.name, _slots(setting["value"]))
        elif setting["key"] not in _IGNORED:
            raise HostListError(f"{clip(setting[0])!r} is not known: expected HOST, HOST:SLOTS or HOST slots=SLOTS")
    if unknown := _SETTING.sub("", left).strip():
        raise HostListError(f"{clip(unknown)!r} is not known: expected HOST, HOST:SLOTS or HOST slots=SLOTS")
    return host


def _host(text: str) -> TrainingHost:
    match = _HOST.fullmatch(text)
    if match is None:
        raise HostListError(f"{clip(text)!r} is no HOST or HOST:SLOTS, such as gpu1, ana@gpu1:8 or [fd00::5]:8")
    name = (match["user"] or "") + (match["name"] or match["bracketed"] or match["bare"])
    return TrainingHost(name, None if match["slots"] is None else _slots(match["slots"]))


def _slots(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= WORKERS_MAX):
        raise HostListError(f"{clip(text)!r} slots: expected a number of workers from 1 to {WORKERS_MAX}")
    return int(text)


def _merged(hosts: Iterable[TrainingHost]) -> tuple[TrainingHost, ...]:
    """Add up the slots of a host that is named more than once, each time for one slot or more, as in MPI."""
    merged: dict[str, TrainingHost] = {}
    for host in hosts:
        before = merged.get(host.name)
        slots = host.slots if before is None else (before.slots or 1) + (host.slots or 1)
        merged[host.name] = TrainingHost(host.name, slots)
    if len(merged) > HOSTS_MAX:
        raise HostListError(f"{len(merged)} hosts are more than {HOSTS_MAX}: have a scheduler start nodeclient join")
    return tuple(merged.values())
