"""Reads the facts for the health check: GPUs, the kernel's log, network, disks. The node itself judges them.

A broken driver or disk may hang its readers for ever. So a process of its own reads the facts, each in a thread,
and tells those that it could read in time.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import json
from msgspec.structs import replace

from coordinatord.hints.xid import OF_THE_NODE
from coordinatord.protocol.text import clip
from coordinatord.runtime.own_python import isolated
from coordinatord.runtime.tasks import in_thread
from nodeclient.core.host_health import SHARED_MEMORY, GpuFacts, HostFacts, Interface, Space, Xid
from nodeclient.host.devices import THIS_HOST, Host, visible_gpus
from nodeclient.host.gpu_memory import uses_of
from nodeclient.host.kernel_log import read_records, xids
from nodeclient.host.process_state import read_if_there, read_number

ANSWER_WITHIN_S = 8.0
"""How long to wait for a fact. The whole check may take 2 s more, in which Python starts."""

NICENESS = 10
"""How much this process yields to workers that start at the same time (nice(2)): it gets a tenth of their time."""

XIDS_MAX = 32
"""The most errors of GPUs to report. A GPU that fails again and again writes thousands."""

_MOUNT = re.compile(r"(\d+) (\d+) \S+ \S+ (\S+) (?:\S+ )*?- (\S+) (\S*)")
"""A line of mountinfo: the ids of the mount and of its parent, the mount point, the file system's type and device."""

_OCTAL = re.compile(r"\\([0-7]{3})")
"""A character of a mount point or a device that the kernel does not write as it is, such as a blank."""

_PROGRAM = f"import os\nos.nice({NICENESS})\nfrom nodeclient.host.host_facts import main\nmain()\n"
"""It yields before its imports, which are most of its work."""


def facts_command(folders: Mapping[str, Path]) -> list[str]:
    """Return the command line that reads the facts; `folders` have the directories that need space, by their use."""
    return isolated(_PROGRAM, *(f"{what}={folder}" for what, folder in folders.items()))


def main() -> None:
    """Print the facts as one line of JSON, and end at once, whatever still hangs."""
    folders = {what: Path(folder) for what, _, folder in (word.partition("=") for word in sys.argv[1:])}
    temporary = Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - the place as tempfile chooses it
    folders = {"temporary files": temporary, SHARED_MEMORY: Path("/dev/shm"), **folders}  # noqa: S108
    facts = read_facts(folders, os.environ, THIS_HOST)
    os.write(1, json.encode(facts) + b"\n")
    os._exit(0)


def read_facts(
    folders: Mapping[str, Path],
    environ: Mapping[str, str],
    host: Host,
    within_s: float = ANSWER_WITHIN_S,
) -> HostFacts:
    """Return the facts that can be read within this time, each by a thread of its own. Never raises."""
    readers: dict[str, Callable[[], dict[str, Any] | Space]] = {
        "GPUs": lambda: _gpus(environ, host),
        "the kernel's log": lambda: _xids(host),
        "network interfaces": lambda: _interfaces(host.system / "class/net"),
        "InfiniBand ports": lambda: _lost_links(host.system / "class/infiniband"),
    }
    for what, folder in folders.items():
        readers[f"the space of {clip(str(folder))} ({what})"] = partial(_space, what, folder)
    facts = HostFacts(has_driver=(host.devices / "nvidiactl").exists())
    return asyncio.run(_with_answers(facts, readers, within_s))


async def _with_answers(
    facts: HostFacts, readers: Mapping[str, Callable[[], dict[str, Any] | Space]], within_s: float
) -> HostFacts:
    """Return the facts with the answers of these readers, each of which gives fields of `HostFacts`, or a space."""
    unread = []
    reading = {in_thread(read, name): name for name, read in readers.items()}
    await asyncio.wait(reading, timeout=within_s)
    for future, name in reading.items():
        if not future.done():
            unread.append(f"{name} (no answer within {within_s:g} s)")
        elif error := future.exception():  # it is reported, and makes no host unfit
            unread.append(f"{name} ({getattr(error, 'strerror', None) or repr(error)})")
        elif isinstance(found := future.result(), Space):
            facts = replace(facts, spaces=(*facts.spaces, found))
        else:
            facts = replace(facts, **found)
    return replace(facts, spaces=tuple(sorted(facts.spaces, key=lambda space: space.what)), unread=tuple(unread))


def _gpus(environ: Mapping[str, str], host: Host) -> dict[str, Any]:
    gpus = visible_gpus(environ, host)
    return {
        "gpus": tuple(GpuFacts(gpu.name, gpu.pci_address, gpu.recovery) for gpu in gpus),
        "in_use": uses_of(gpus, host, os.getppid()),  # the parent is nodeclient, which adopts its workers' orphans
    }


def _xids(host: Host) -> dict[str, Any]:
    """Return the errors in the kernel's log that no script has caused; no field without a record: it is unreadable."""
    records = read_records(host)
    found: tuple[Xid, ...] = tuple(xid for xid in xids(records) if xid.code in OF_THE_NODE)[-XIDS_MAX:]
    return {"xids": found} if records else {}


def _interfaces(folder: Path) -> dict[str, Any]:
    """Return the network interfaces, by sysfs-class-net and sysfs-class-net-statistics of the kernel."""
    interfaces = {}
    for link in folder.iterdir():
        if state := read_if_there(link / "operstate").strip():
            errors = sum(read_number(link / f"statistics/{which}_errors") or 0 for which in ("rx", "tx"))
            interfaces[link.name] = Interface(state, errors)
    return {"interfaces": interfaces}


def _lost_links(folder: Path) -> dict[str, Any]:
    """Return the counters `link_downed` (sysfs-class-infiniband of the kernel); none without InfiniBand."""
    counters = folder.glob("*/ports/*/counters/link_downed")
    counts = {f"{path.parts[-5]}/{path.parts[-3]}": read_number(path) for path in counters}
    return {"lost_links": {port: count for port, count in counts.items() if count is not None}}


def _space(what: str, folder: Path) -> Space:
    """Return the space of a directory, or of the nearest one above it if it does not exist yet. Raises `OSError`."""
    there = folder = folder.absolute()
    while not there.exists():
        there = there.parent
    state = os.statvfs(there)
    if state.f_blocks == 0:
        raise OSError(0, "its file system has no size")
    return Space(
        what,
        clip(str(folder)),
        total=state.f_blocks * state.f_frsize,
        free=state.f_bavail * state.f_frsize,
        is_read_only=bool(state.f_flag & os.ST_RDONLY),
        lacks_inodes=state.f_files > 0 and state.f_favail == 0,
        above="" if there == folder else clip(str(there)),
        mount=mount_of(there),
    )


def mount_of(folder: Path) -> str:
    """Describe the mount that a directory is on: `on the root file system / (ext4, /dev/sda1)`. Raises `OSError`."""
    return describe_mount(folder.resolve(), read_if_there(Path("/proc/self/mountinfo")))


def describe_mount(folder: Path, mounts: str) -> str:
    """Describe the mount that a directory is on, by the text of a mountinfo file; empty if it has none.

    proc_pid_mountinfo(5) has its format. `folder` is without links. The line of a mount may come before that of its
    parent. So the search follows the ids, from the root of the tree to the last mount on the way to the directory.

    Several mounts on this way may have one parent. Then the one with the shortest path was mounted last, or it would be
    the parent of the others, and it hides them. If two have the same path, the later line hides the earlier one.
    """
    lines = [match.groups() for line in mounts.split("\n") if (match := _MOUNT.match(line))]
    ids = {mount for mount, *_ in lines}
    above = defaultdict[str, list[tuple[Path, str, str]]](list)
    """The mounts on the way to the directory, by their parents' ids; empty for a parent that is not visible."""
    for mount, parent, escaped, kind, device in lines:
        point = Path(_unescaped(escaped))
        if folder.is_relative_to(point):
            place = "the root file system /" if point == Path("/") else point
            text = f"on {place} ({kind}, {_unescaped(device)})"
            above[parent if parent in ids - {mount} else ""].append((point, mount, text))
    here, described = "", ""
    while here in above:
        _, here, described = min(reversed(above.pop(here)), key=lambda each: len(each[0].parts))
    return described


def _unescaped(text: str) -> str:
    return _OCTAL.sub(lambda code: chr(int(code[1], 8)), text)
