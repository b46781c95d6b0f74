"""Which CPUs workers are bound to, on hosts that are directory trees, and that it is what torch decides."""

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nodeclient.host.devices import Host
from nodeclient.host.numa import CHOICES, BindingError, bindings, core_of, format_cpus, parse_cpus
from tests.support.machines import Machine, gpu_address, write

DUAL = Machine(sockets=2, nodes_per_socket=2, complexes_per_node=2, cores_per_complex=4, threads_per_core=2)
"""Two sockets of two NUMA nodes of 8 cores each: 64 CPUs."""

EIGHT_GPUS = Machine(sockets=2, cores_per_complex=16, gpu_nodes=(0, 0, 0, 0, 1, 1, 1, 1))


def bind(choice: str, machine: Machine, workers: int, root: Path, **environ: str) -> tuple[frozenset[int], ...]:
    """Bind workers on a machine of which all CPUs may be used."""
    return bindings(choice, workers, environ, machine.build(root), machine.cpus)


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-3,8\n", {0, 1, 2, 3, 8}), ("5", {5}), ("\n", set()), ("", set()), ("0,2-2", {0, 2})]
)
def test_a_list_is_read_as_the_kernel_writes_it(text: str, cpus: set[int]) -> None:
    assert parse_cpus(text) == cpus


@given(st.frozensets(st.integers(0, 40)))
def test_what_is_written_is_read_back(cpus: frozenset[int]) -> None:
    assert parse_cpus(format_cpus(cpus)) == cpus


def test_what_is_in_a_row_is_written_as_a_range() -> None:
    assert format_cpus({8, 0, 2, 1, 11, 10}) == "0-2,8,10-11"


def test_the_threads_of_a_core_are_one_core(tmp_path: Path) -> None:
    host = Machine(cores_per_complex=2, threads_per_core=2).build(tmp_path)
    assert [core_of(cpu, host) for cpu in range(4)] == [0, 1, 0, 1]
    assert core_of(9, host) == 9


def test_the_gpu_is_that_of_the_local_rank_among_the_visible_ones(tmp_path: Path) -> None:
    found = bind("node", EIGHT_GPUS, 2, tmp_path, HIP_VISIBLE_DEVICES="5,1")
    assert found == (EIGHT_GPUS.of_node(1), EIGHT_GPUS.of_node(0))


@pytest.mark.parametrize(
    ("choice", "machine", "allowed", "expected"),
    [
        ("node", DUAL, DUAL.of_cores(6, 4), (DUAL.of_cores(6, 2), DUAL.of_cores(8, 2))),
        ("core-complex", Machine(complexes_per_node=2, cores_per_complex=3), {2, 3, 4, 5}, ({3, 4, 5}, {2})),
        ("exclusive", Machine(cores_per_complex=2, threads_per_core=2), {1, 2, 3}, ({2}, {1, 3})),
    ],
)
def test_only_allowed_cpus_are_taken(
    choice: str, machine: Machine, allowed: set[int], expected: tuple[set[int], ...], tmp_path: Path
) -> None:
    assert bindings(choice, 2, {}, machine.build(tmp_path), frozenset(allowed)) == expected


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize(
    ("gpu_nodes", "nodes"), [((), [0, 0, 1, 1]), ((1, 0), [1, 0, 1, 0])], ids=["dealt out to nodes", "GPUs again"]
)
def test_more_workers_than_gpus_are_dealt_out(
    choice: str, gpu_nodes: tuple[int, ...], nodes: list[int], tmp_path: Path
) -> None:
    found = bind(choice, Machine(sockets=2, cores_per_complex=4, gpu_nodes=gpu_nodes), 4, tmp_path)
    assert [min(cpus) // 4 for cpus in found] == nodes


@pytest.mark.parametrize("choice", CHOICES)
def test_on_one_numa_node_nobody_has_to_say_where_a_gpu_is(choice: str, tmp_path: Path) -> None:
    machine = Machine(cores_per_complex=4, gpu_nodes=(-1, -1))
    assert all(cpus <= machine.cpus for cpus in bind(choice, machine, 2, tmp_path))


def test_a_kernel_without_numa_has_one_node_with_all_cpus(tmp_path: Path) -> None:
    host = Host(tmp_path, tmp_path, nvml="none", processes=tmp_path)
    allowed = frozenset({0, 3})
    assert [bindings(choice, 1, {}, host, allowed) for choice in ("node", "socket")] == [(allowed,)] * 2


def test_a_node_of_memory_alone_is_no_place_for_workers(tmp_path: Path) -> None:
    machine = Machine(sockets=2, cores_per_complex=2)
    host = machine.build(tmp_path)
    write(host.system / "devices/system/node/node2/cpulist", "")
    assert bindings("node", 3, {}, host, machine.cpus) == (machine.of_node(0), machine.of_node(0), machine.of_node(1))


def test_a_gpu_that_the_kernel_knows_no_node_of_is_named(tmp_path: Path) -> None:
    machine = Machine(sockets=2, gpu_nodes=(0, -1))
    host = machine.build(tmp_path)
    with pytest.raises(BindingError, match=rf"2 NUMA nodes, .* GPU-0+2/1 is near .*{gpu_address(1)}/numa_node"):
        bindings("node", 2, {}, host, machine.cpus)
    assert bindings("node", 1, {}, host, machine.cpus) == (machine.of_node(0),)


def test_a_gpu_whose_cpus_may_not_be_used_is_named(tmp_path: Path) -> None:
    host = Machine(sockets=2, gpu_nodes=(1,)).build(tmp_path)
    with pytest.raises(BindingError, match="near NUMA node 1, but this process may only use the CPUs 0-1"):
        bindings("node", 1, {}, host, frozenset({0, 1}))


def test_a_choice_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    with pytest.raises(BindingError, match=r"NUMA node 0 has 2 cores .* and 3 GPUs or workers"):
        bind("exclusive", Machine(cores_per_complex=2), 3, tmp_path)


def test_this_host_can_bind(tmp_path: Path) -> None:
    for choice in CHOICES:
        [cpus] = bindings(choice, 1, {}, Host(devices=tmp_path, nvml="none"))
        assert cpus
        assert cpus <= os.sched_getaffinity(0)


def as_torch(host: Host, gpu_nodes: Sequence[int], allowed: frozenset[int]) -> Callable[[str, int], set[int]]:
    """Return torch's own decision, with its eyes turned to the tree."""
    binding: Any = pytest.importorskip("torch.numa.binding")

    def here(path: str) -> Path:
        return host.system / path.removeprefix("/sys/")

    def names(path: str) -> list[str]:
        return [entry.name for entry in here(path).iterdir()]

    def decide(choice: str, gpu: int) -> set[int]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(binding, "open", lambda path: here(path).open(), raising=False)
            patch.setattr(binding, "os", SimpleNamespace(path=os.path, listdir=names))
            patch.setattr(binding, "_get_gpu_count", lambda: len(gpu_nodes))
            patch.setattr(binding, "_get_numa_node_index_for_gpu_index", lambda *, gpu_index: gpu_nodes[gpu_index])
            patch.setattr(binding, "_get_allowed_cpu_indices_for_current_thread", lambda: set(allowed))
            options = binding.NumaOptions(affinity_mode=binding.AffinityMode(choice))
            decided: set[int] = binding._get_logical_cpus_to_bind_to(gpu_index=gpu, numa_options=options)
            return decided

    return decide


UNEVEN = Machine(cores_per_complex=8, threads_per_core=2, gpu_nodes=(0, 0, 0))
"""Its GPUs cannot have the same number of cores each."""


@st.composite
def machines_with_gpus(draw: st.DrawFn) -> tuple[Machine, frozenset[int]]:
    """Draw a machine with GPUs, and which of its CPUs may be used: some of each NUMA node."""
    small = st.integers(1, 3)
    sockets, nodes = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    gpus = draw(st.lists(st.integers(0, sockets * nodes - 1), min_size=1, max_size=5))
    machine = Machine(sockets, nodes, draw(small), draw(small), draw(st.integers(1, 2)), tuple(gpus))
    parts = [draw(st.sets(st.sampled_from(sorted(machine.of_node(n))), min_size=1)) for n in range(machine.nodes)]
    return machine, frozenset().union(*parts)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(machines_with_gpus(), st.sampled_from(sorted(CHOICES)))
@example((UNEVEN, UNEVEN.cpus), "exclusive")
def test_where_each_worker_has_a_gpu_torch_decides_the_same(drawn: tuple[Machine, frozenset[int]], choice: str) -> None:
    machine, allowed = drawn
    workers = len(machine.gpu_nodes)
    with tempfile.TemporaryDirectory() as root:
        host = machine.build(Path(root))
        torch = as_torch(host, machine.gpu_nodes, allowed)
        try:
            found = bindings(choice, workers, {}, host, allowed)
        except BindingError:
            with pytest.raises(RuntimeError, match="physical cores"):
                [torch(choice, gpu) for gpu in range(workers)]
        else:
            assert list(found) == [torch(choice, gpu) for gpu in range(workers)]
