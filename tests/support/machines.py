"""Directory trees that look like a host's /sys and /proc: CPUs with their cores, caches, sockets, NUMA nodes; GPUs."""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from nodeclient.host.devices import Host
from nodeclient.host.numa import format_cpus


@dataclass(frozen=True)
class Machine:
    """What a host is built of; its CPUs are numbered as usual, first one of each core, then the other threads."""

    sockets: int = 1
    nodes_per_socket: int = 1
    complexes_per_node: int = 1
    cores_per_complex: int = 2
    threads_per_core: int = 1
    gpu_nodes: Sequence[int] = ()
    """The kernel's NUMA node of each GPU."""

    @property
    def nodes(self) -> int:
        """How many NUMA nodes there are."""
        return self.sockets * self.nodes_per_socket

    @property
    def cores_per_node(self) -> int:
        """How many cores a NUMA node has."""
        return self.complexes_per_node * self.cores_per_complex

    @property
    def cores(self) -> int:
        """How many cores there are in all."""
        return self.nodes * self.cores_per_node

    @property
    def cpus(self) -> frozenset[int]:
        """All CPUs of the machine."""
        return frozenset(range(self.cores * self.threads_per_core))

    def of_cores(self, first: int, number: int) -> frozenset[int]:
        """Return the CPUs of some cores in a row."""
        threads = range(self.threads_per_core)
        return frozenset(core + thread * self.cores for core in range(first, first + number) for thread in threads)

    def of_node(self, node: int) -> frozenset[int]:
        """Return the CPUs of a NUMA node."""
        return self.of_cores(node * self.cores_per_node, self.cores_per_node)

    def build(self, root: Path) -> Host:
        """Write the machine's trees below `root`."""
        host = Host(root / "dev", root / "sys", nvml=str(root / "no-such-library"), processes=root / "proc")
        host.devices.mkdir(parents=True)
        for node in range(self.nodes):
            write(host.system / f"devices/system/node/node{node}/cpulist", format_cpus(self.of_node(node)))
        write(host.system / "devices/system/node/possible", f"0-{self.nodes - 1}" if self.nodes > 1 else "0")
        for cpu in self.cpus:
            self._build_cpu(host.system / f"devices/system/cpu/cpu{cpu}", cpu % self.cores)
        for gpu, node in enumerate(self.gpu_nodes):
            add_gpu(host, gpu, node)
        return host

    def _build_cpu(self, folder: Path, core: int) -> None:
        node = core // self.cores_per_node
        first_of_complex = core - core % self.cores_per_complex
        caches = count()
        write(folder / "topology/physical_package_id", str(node // self.nodes_per_socket))
        write(folder / "topology/thread_siblings_list", format_cpus(self.of_cores(core, 1)))
        for level, kind, shared in (
            (1, "Data", self.of_cores(core, 1)),
            (4, "Instruction", frozenset(self.cpus)),
            (3, "Unified", self.of_cores(first_of_complex, self.cores_per_complex)),
        ):
            cache = folder / f"cache/index{next(caches)}"
            write(cache / "level", str(level))
            write(cache / "type", kind)
            write(cache / "shared_cpu_list", format_cpus(shared))


def add_gpu(host: Host, gpu: int, node: int) -> None:
    """Add an AMD GPU, which the kernel describes without a library, at the PCI address of `gpu_address`."""
    topology = host.system / f"class/kfd/kfd/topology/nodes/{gpu}"
    write(topology / "properties", f"simd_count 304\nunique_id {gpu + 1}\ndomain 0\nlocation_id {(gpu + 1) << 8}\n")
    write(host.system / "bus/pci/devices" / gpu_address(gpu) / "numa_node", str(node))


def gpu_address(gpu: int) -> str:
    """Return the PCI address of a GPU."""
    return f"0000:{gpu + 1:02x}:00.0"


def write(file: Path, text: str) -> None:
    """Write a file with its folders, as the kernel does: with a newline at the end."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


def compile_c(text: str, *flags: str | Path) -> None:
    """Compile a program or a library; skip the test without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    subprocess.run([compiler, "-x", "c", "-", *flags], input=text, text=True, check=True)
