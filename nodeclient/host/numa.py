"""Chooses the CPUs of each worker, so that it runs near its GPU and its memory.

A host has several NUMA nodes: groups of CPUs with memory of their own, and each GPU is attached to one of them. A
worker on a CPU elsewhere reaches its memory and its GPU more slowly.

The choices are those of torchrun's `--numa-binding` (torch/numa/binding.py). Here no `numactl` is needed, and workers
are bound even with fewer GPUs than workers, or none. `workers.spawn` applies the binding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.text import spans
from nodeclient.host.capacity import allowed_cpus
from nodeclient.host.devices import THIS_HOST, Gpu, Host, visible_gpus
from nodeclient.host.process_state import read_if_there, read_number

UNKNOWN = -1
"""The kernel's value for a device of an unknown NUMA node. Torch takes it for node 0, and binds all workers there."""


class BindingError(OperationalError):
    """Workers cannot be bound as requested; the text says why and what to do."""

    exit_code = ExitCode.USAGE


def bindings(
    choice: str,
    workers: int,
    environ: Mapping[str, str],
    host: Host = THIS_HOST,
    allowed: frozenset[int] | None = None,
) -> tuple[frozenset[int], ...]:
    """Return the CPUs of each worker, by local rank, from those that are `allowed` (by default to this process).

    `choice` is one of `CHOICES`.

    A worker's own GPU is the visible one with its local rank. With more workers than GPUs, the GPUs are counted again
    from the first. Without GPUs, the workers are distributed evenly over the NUMA nodes. Raises `BindingError`.
    """
    seats = _seats(workers, visible_gpus(environ, host), _nodes(host, allowed or allowed_cpus()), host)
    return tuple(CHOICES[choice](seats, local_rank) for local_rank in range(workers))


class _Seats(Struct, frozen=True):
    """Seats, one for each GPU or each worker, whichever are more. The worker with local rank n is bound to seat n.

    GPUs that no worker uses have seats too: an exclusive share of cores is the same however many workers start. A
    method for each choice returns the CPUs of a seat.
    """

    nodes: Mapping[int, frozenset[int]]
    """The CPUs of each NUMA node that this process may use, without nodes that have none."""
    node_numbers: tuple[int, ...]
    """The NUMA node of each seat."""
    host: Host

    def node(self, seat: int) -> frozenset[int]:
        """Return all CPUs of the seat's NUMA node."""
        return self.nodes[self.node_numbers[seat]]

    def socket(self, seat: int) -> frozenset[int]:
        """Return all CPUs of the socket of the seat's NUMA node."""
        wanted = _socket(self.node(seat), self.host)
        same = (cpus for cpus in self.nodes.values() if _socket(cpus, self.host) == wanted)
        return frozenset().union(*same)

    def exclusive(self, seat: int) -> frozenset[int]:
        """Return an exclusive share of the node's cores. Raises `BindingError` if there are too few."""
        index, count = self._place(seat)
        cores = [cpus for _, cpus in sorted(_grouped(self.node(seat), lambda cpu: core_of(cpu, self.host)).items())]
        if len(cores) < count:
            raise BindingError(
                "--numa-binding exclusive gives no two workers the same core, but NUMA node "
                f"{self.node_numbers[seat]} has {len(cores)} cores that may be used and {count} GPUs or workers: use "
                "node or core-complex, or fewer workers"
            )
        # If the division leaves a remainder, the first seats get one more core each.
        each, remainder = divmod(len(cores), count)
        start = index * each + min(index, remainder)
        return frozenset().union(*cores[start : start + each + (index < remainder)])

    def core_complex(self, seat: int) -> frozenset[int]:
        """Return cores of the node that share a last-level cache, different ones for each seat if possible."""
        index, _ = self._place(seat)
        complexes = _grouped(self.node(seat), lambda cpu: _last_cache_of(cpu, self.host))
        # Complexes with the most CPUs come first, because this process may not use all CPUs of the others.
        ordered = sorted(complexes.items(), key=lambda item: (-len(item[1]), item[0]))
        return ordered[index % len(ordered)][1]

    def _place(self, seat: int) -> tuple[int, int]:
        """Return the index of a seat within its NUMA node, and the number of seats there."""
        node = self.node_numbers[seat]
        return self.node_numbers[:seat].count(node), self.node_numbers.count(node)


CHOICES: Mapping[str, Callable[[_Seats, int], frozenset[int]]] = {
    "node": _Seats.node,
    "socket": _Seats.socket,
    "exclusive": _Seats.exclusive,
    "core-complex": _Seats.core_complex,
}
"""The method that chooses the CPUs of a seat, by the value of `--numa-binding`."""


def _seats(workers: int, gpus: list[Gpu], nodes: Mapping[int, frozenset[int]], host: Host) -> _Seats:
    usable = {node: cpus for node, cpus in nodes.items() if cpus}
    if not gpus:
        names = sorted(usable)
        return _Seats(usable, tuple(names[seat * len(names) // workers] for seat in range(workers)), host)
    places = [_node_of(gpu, nodes, host) for gpu in gpus]
    for gpu, node in list(zip(gpus, places, strict=True))[:workers]:
        if node not in usable:
            raise BindingError(f"--numa-binding: {_problem(gpu, node, nodes)}, or leave --numa-binding out")
    return _Seats(usable, tuple(places[seat % len(places)] for seat in range(max(workers, len(gpus)))), host)


def _problem(gpu: Gpu, node: int, nodes: Mapping[int, frozenset[int]]) -> str:
    if node == UNKNOWN:
        return (
            f"this host has {len(nodes)} NUMA nodes, and the kernel does not know which one {gpu.name} is near (see "
            f"/sys/bus/pci/devices/{gpu.pci_address or '*'}/numa_node): correct the setup of the host"
        )
    return (
        f"{gpu.name} is near NUMA node {node}, but this process may only use the CPUs "
        f"{format_cpus(frozenset().union(*nodes.values()))}, which are elsewhere: ask the scheduler for other CPUs"
    )


def _nodes(host: Host, allowed: frozenset[int]) -> dict[int, frozenset[int]]:
    """Return the allowed CPUs of each NUMA node that has CPUs; a single node 0 if the kernel names none."""
    found = {}
    for folder in (host.system / "devices/system/node").glob("node[0-9]*"):
        cpus = parse_cpus((folder / "cpulist").read_text())
        if cpus:  # some nodes have only memory
            found[int(folder.name.removeprefix("node"))] = cpus & allowed
    return found or {0: allowed}


def _node_of(gpu: Gpu, nodes: Mapping[int, frozenset[int]], host: Host) -> int:
    if len(nodes) == 1:
        return next(iter(nodes))  # with a single node, the kernel need not say which it is
    if gpu.pci_address is None:
        return UNKNOWN
    node = read_number(host.system / "bus/pci/devices" / gpu.pci_address / "numa_node")
    return UNKNOWN if node is None else node


def parse_cpus(text: str) -> frozenset[int]:
    """Parse a list of the kernel: `0-3,8`."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first:
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def format_cpus(cpus: Iterable[int]) -> str:
    """Format a list as the kernel does."""
    return ",".join(spans(sorted(cpus)))


def core_of(cpu: int, host: Host) -> int:
    """Return the first CPU of a CPU's physical core; the CPU itself if the kernel does not describe it."""
    siblings = read_if_there(host.system / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return min(parse_cpus(siblings), default=cpu)


def _socket(cpus: Iterable[int], host: Host) -> int | None:
    return read_number(host.system / f"devices/system/cpu/cpu{min(cpus)}/topology/physical_package_id")


def _last_cache_of(cpu: int, host: Host) -> int:
    """Return the first of the CPUs that share this one's last-level cache."""
    levels = {}
    for index in (host.system / f"devices/system/cpu/cpu{cpu}/cache").glob("index[0-9]*"):
        level = read_number(index / "level")
        if level is not None and (index / "type").read_text().strip() in {"Unified", "Data"}:
            levels[level] = index / "shared_cpu_list"
    return min(parse_cpus(levels[max(levels)].read_text())) if levels else cpu


def _grouped(cpus: Iterable[int], key: Callable[[int], int]) -> dict[int, frozenset[int]]:
    groups: defaultdict[int, set[int]] = defaultdict(set)
    for cpu in cpus:
        groups[key(cpu)].add(cpu)
    return {name: frozenset(group) for name, group in groups.items()}
