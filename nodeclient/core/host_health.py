"""Judges facts about this host: `judge` returns findings, each with its place and a remedy.

Facts that cannot be read count as good: elsewhere, checks that failed on unreadable output took whole fleets out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from coordinatord.hints.xid import OF_THE_NODE
from coordinatord.protocol.messages import CheckResult

CLOCK_WITHIN_S = 5.0
"""How far the clocks of a host and its coordinator may be apart. NTP keeps them within a tenth of a second. The logs of
hosts and the files on a shared disk are compared by these clocks."""

SPACE_LEAST = 1 << 30
"""The free space of a disk below which the check warns: enough for the logs and stacks of a failing round."""

SPACE_SHARE = 0.1
"""The same as a share of the disk. On a disk of less than 10 GiB this is the smaller limit, which counts."""

SHARED_MEMORY = "shared memory"
"""The name of /dev/shm in `Space.what`."""

SHARED_MEMORY_LEAST = 64 << 20
"""The free part of /dev/shm below which the check warns: two segments of NCCL, which are of 33 MB."""

_DOWN = frozenset({"down", "lowerlayerdown", "notpresent"})
"""The states of an interface that carries nothing (`operstate` in the kernel's sysfs-class-net). Drivers that do not
tell the state, such as that of loopback, say `unknown`."""

NO_ACTION = 0
"""The value of NVML_GPU_RECOVERY_ACTION_NONE: the GPU can be used as it is."""

_ACTIONS = {
    1: "a reset: nvidia-smi --gpu-reset",
    2: "a restart of the host: a reset would not be enough",
    3: "an end of the traffic between GPUs: end the programs that use them, and check again",
    4: "an end of the work on it and then a reset: nvidia-smi --gpu-reset",
}
"""The other values of `nvmlDeviceGpuRecoveryAction_t` in nvml.h. Those of later drivers count as good."""

_SEVERITY = {CheckResult.GOOD: 0, CheckResult.WARNING: 1, CheckResult.UNKNOWN: 2, CheckResult.BAD: 3}


class GpuProcess(Struct, frozen=True):
    """A process that uses GPUs and is no worker of this node."""

    pid: int
    user: str
    """The name of its user, or the number if there is no name."""
    left_behind: bool
    """Whether a worker may have left it behind: it is ending, or its parent has ended and a worker had started it."""


class GpuUse(Struct, frozen=True):
    """A GPU with memory in use."""

    name: str
    used_bytes: int
    processes: tuple[GpuProcess, ...] = ()
    """The visible processes that may have the memory."""


class GpuFacts(Struct, frozen=True):
    """A GPU that workers of this node see."""

    name: str
    """Its UUID, or another unique name."""
    pci_address: str | None = None
    recovery: int | None = None
    """The action that NVIDIA's driver (570 or later) wants before the GPU can be used; None if unknown."""


class Xid(Struct, frozen=True):
    """An error of a GPU in the kernel's log."""

    number: int
    """The number of its record."""
    code: int
    gpu: str
    """The PCI address without the function."""


class Space(Struct, frozen=True):
    """The free space of a file system; sizes in bytes."""

    what: str
    """Its purpose, such as `logs`."""
    path: str
    total: int
    free: int
    """The part that this user may write."""
    is_read_only: bool = False
    lacks_inodes: bool = False
    """Whether no further file can be made."""
    above: str = ""
    """The nearest directory above `path` that exists, whose space this is; empty if `path` exists."""
    mount: str = ""
    """The file system that it is on, where that is mounted and from where; empty if not known."""

    @property
    def is_new(self) -> bool:
        """Whether the directory does not exist, and the one around it does."""
        return (self.path.rpartition("/")[0] or "/") == self.above


class Interface(Struct, frozen=True):
    """A network interface."""

    state: str
    """Its `operstate`."""
    errors: int
    """The errors of receiving and sending since the interface was made."""


class HostFacts(Struct, frozen=True):
    """The facts of one check. A missing one could not be read, or is not on this host."""

    has_driver: bool = False
    """Whether NVIDIA's driver is there."""
    gpus: tuple[GpuFacts, ...] | None = None
    in_use: tuple[GpuUse, ...] = ()
    xids: tuple[Xid, ...] | None = None
    spaces: tuple[Space, ...] = ()
    interfaces: Mapping[str, Interface] = {}
    lost_links: Mapping[str, int] = {}
    """How often each InfiniBand port has lost its link."""
    route: str = ""
    """The interface by which this host reaches its coordinator."""
    clock_ahead_s: float | None = None
    """How far this host's clock is ahead of the coordinator's, or behind it if negative."""
    clock_unread: str = ""
    """Why the coordinator has not told the time. Only `nodeclient check` shows it: a node that reaches no coordinator
    says so by itself."""
    unread: tuple[str, ...] = ()
    """Other facts that could not be read, and why."""


class Finding(Struct, frozen=True):
    """A warning, or something bad."""

    result: CheckResult
    text: str


def judge(now: HostFacts, passed: HostFacts | None, *, is_idle: bool) -> tuple[Finding, ...]:
    """Return what is wrong with a host, by its facts `now` and those of the last check that passed, if any.

    `is_idle` says that no worker of this node lives, so that GPU memory in use is nobody's work.
    """
    before = passed or HostFacts()
    return (
        *_gpus(now, before),
        *_xids(now, passed),
        *(_memory(now) if is_idle else ()),
        *(finding for space in now.spaces for finding in _space(space)),
        *_clock(now),
        *_interfaces(now, before),
        *_lost_links(now, before),
    )


def conclude(findings: tuple[Finding, ...], facts: HostFacts) -> tuple[CheckResult, str]:
    """Return the worst result with its findings, or with what cannot be checked; unknown if nothing could be read."""
    worst = worst_of(*(finding.result for finding in findings))
    if findings:
        return worst, "; ".join(finding.text for finding in findings if finding.result is worst)
    if facts == HostFacts(unread=facts.unread, clock_unread=facts.clock_unread):
        worst = CheckResult.UNKNOWN
    unread = unchecked(facts)
    return worst, f"cannot be checked: {', '.join(unread)}" if unread else ""


def worst_of(*results: CheckResult) -> CheckResult:
    """Return the worst result; `GOOD` without any. One that is unknown is worse than a warning, which passes."""
    return max(results, key=_SEVERITY.__getitem__, default=CheckResult.GOOD)


def unchecked(facts: HostFacts) -> tuple[str, ...]:
    """Return what could not be checked, and why."""
    unread = list(facts.unread)
    if facts.has_driver and any(gpu.recovery is None for gpu in facts.gpus or ()):
        unread.append("what recovery GPUs need (NVIDIA's driver tells it since 570)")
    if facts.has_driver and facts.xids is None:
        unread.append("errors of GPUs (this user may not read the kernel's log, /dev/kmsg)")
    return tuple(unread)


def remembered(now: HostFacts, passed: HostFacts | None) -> HostFacts:
    """Return the facts to compare the next ones with: those of `now`, and the older ones where some are missing."""
    if passed is None:
        return now
    return replace(
        now,
        gpus=passed.gpus if now.gpus is None else now.gpus,
        xids=passed.xids if now.xids is None else now.xids,
        interfaces=now.interfaces or passed.interfaces,
        lost_links=now.lost_links or passed.lost_links,
        route=now.route or passed.route,
    )


def _gpus(now: HostFacts, before: HostFacts) -> Iterator[Finding]:
    if now.gpus is None:
        return
    names = {gpu.name for gpu in now.gpus}
    gone = [gpu for gpu in before.gpus or () if gpu.name not in names]
    if len(now.gpus) == len(gone) == len(before.gpus or ()) and _is_by_uuid(now) is not _is_by_uuid(before):
        gone = []  # the driver's library is there in one of the checks only, and gives other names
    for gpu in gone:
        yield _bad(f"{_named(gpu)} is gone: look at nvidia-smi and the kernel's log (dmesg), then restart the host")
    for gpu in now.gpus:
        if gpu.recovery in _ACTIONS:
            yield _bad(f"{_named(gpu)} needs {_ACTIONS[gpu.recovery]}")


def _is_by_uuid(facts: HostFacts) -> bool:
    return any(gpu.name.startswith("GPU-") for gpu in facts.gpus or ())


def _xids(now: HostFacts, passed: HostFacts | None) -> Iterator[Finding]:
    """Find errors of the host (`OF_THE_NODE`) that are new, or all of them in a first check.

    New ones are bad, unless the driver says that the GPUs need no recovery. Those of a first check may be long over, so
    they are only warnings.
    """
    before = passed or HostFacts()
    last = max((xid.number for xid in before.xids or ()), default=-1)
    ours = {gpu.pci_address.rpartition(".")[0] for gpu in (*(now.gpus or ()), *(before.gpus or ())) if gpu.pci_address}
    new = {(xid.gpu, xid.code): None for xid in now.xids or () if xid.number > last and xid.gpu in ours}
    is_recovered = bool(now.gpus) and all(gpu.recovery == NO_ACTION for gpu in now.gpus or ())
    make = _warning if passed is None or passed.xids is None or is_recovered else _bad
    for gpu, code in new:
        if code in OF_THE_NODE:
            yield make(f"GPU {gpu} had Xid {code} ({OF_THE_NODE[code]}): see dmesg; if it comes again, reset the GPU")


def _memory(now: HostFacts) -> Iterator[Finding]:
    for use in now.in_use:
        if all(process.left_behind for process in use.processes):  # else somebody may use the GPU on purpose
            holders = ", ".join(str(process.pid) for process in use.processes)
            who = (
                f"processes that were left behind ({holders}): end them" if holders else "no process that is seen here"
            )
            remedy = "" if holders else f": fuser -v /dev/{use.name} names the holder"
            yield _warning(f"{use.used_bytes >> 20:,} MiB of {use.name} are in use by {who}{remedy}")


def _space(space: Space) -> Iterator[Finding]:
    where = f"{space.path} ({space.what})"
    least = SPACE_LEAST if space.what != SHARED_MEMORY else SHARED_MEMORY_LEAST
    if space.what != SHARED_MEMORY:
        least = min(least, int(space.total * SPACE_SHARE))
    if space.is_read_only:
        yield _bad(f"{where} is read-only: look in the kernel's log (dmesg), and mount it for writing")
    elif space.free == 0:
        yield _bad(f"{where} is full: delete what is not needed there")
    elif space.lacks_inodes:
        yield _bad(f"{where} has no inode left for another file: delete what is not needed there")
    elif space.above and not space.is_new:
        yield _warning(f"{where} does not exist, nor does the directory around it: is it mounted, and spelled right?")
    elif space.free < least:
        yield _warning(f"{where} has only {space.free >> 20:,} MiB left: delete what is not needed there")


def _clock(now: HostFacts) -> Iterator[Finding]:
    ahead_s = now.clock_ahead_s or 0.0
    if abs(ahead_s) > CLOCK_WITHIN_S:
        how = "ahead of" if ahead_s > 0 else "behind"
        yield _warning(
            f"the clock of this host is {abs(ahead_s):,.0f} s {how} the coordinator's: does NTP run on both"
            " (timedatectl)?"
        )


def _interfaces(now: HostFacts, before: HostFacts) -> Iterator[Finding]:
    for name in dict.fromkeys(filter(None, (before.route, now.route))):
        interface, old = now.interfaces.get(name), before.interfaces.get(name)
        state = interface.state if interface else "gone"
        if now.interfaces and (interface is None or state in _DOWN):
            make = _bad if now.route in {"", name} else _warning  # another interface may do as well
            yield make(f"network interface {name}, on the way to the coordinator, is {state}: see ip link")
        elif interface and old and interface.errors > old.errors:
            yield _warning(
                f"network interface {name}, on the way to the coordinator, had {interface.errors - old.errors:,} errors"
                f" since the last check: see ip -s link show {name}, and its cable"
            )


def _lost_links(now: HostFacts, before: HostFacts) -> Iterator[Finding]:
    for port, count in now.lost_links.items():
        more = count - before.lost_links.get(port, count)
        if more > 0:
            yield _warning(
                f"InfiniBand port {port} lost its link {more:,} times since the last check: see ibstat, and its cable"
            )


def _named(gpu: GpuFacts) -> str:
    return f"GPU {gpu.name}" + (f" at {gpu.pci_address}" if gpu.pci_address else "")


def _bad(text: str) -> Finding:
    return Finding(CheckResult.BAD, text)


def _warning(text: str) -> Finding:
    return Finding(CheckResult.WARNING, text)
