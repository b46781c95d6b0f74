"""The memory of a node is bounded by what the host has, also while several workers ask for some."""

import asyncio
import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeclient.keeping.parts.arena_memory import ArenaMemory, NoMemoryError
from nodeclient.keeping.parts.arenas import COPIES, Arenas
from tests.nodeclient.keeping.stage import Hanging
from tests.support.programs import TIMEOUT_S
from workerlib.contract.arena import ArenaSizes, Commit

CLAIMANT = """
import os, sys
from pathlib import Path
from nodeclient.keeping.parts.arena_memory import ArenaMemory
from workerlib.contract.arena import MEMORY_NAME, ArenaSizes

FREE = 200_000_000  # of a host on which nothing but these nodes takes memory
pids, left = [], [FREE]

def taken(file):
    try:
        return os.stat(file).st_blocks * 512 if MEMORY_NAME in os.readlink(file) else 0
    except FileNotFoundError:
        return 0

def available():
    left.append(FREE - sum(taken(file) for pid in pids for file in Path(f"/proc/{pid}/fd").iterdir()))
    return left[-1]

memory, sizes = ArenaMemory(2**40, available), ArenaSizes.at_least(50_000_000, 4_096)
memory.claim(sizes, sizes.total, "")
print("claimed", flush=True)
pids += map(int, sys.stdin.readline().split())
try:
    memory.allocate(sizes, sizes.total)
except OSError:
    print("refused", min(left), flush=True)
else:
    print("taken", min(left), flush=True)
sys.stdin.read()
"""
"""A node on a host that has memory for one of two."""

SIZES = ArenaSizes.at_least(1_000_000, 4_096)


async def test_memory_that_is_being_allocated_is_not_promised_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host shows it as free until its pages are there; who takes it once more is killed by the kernel."""
    slow = Hanging("posix_fallocate")
    monkeypatch.setattr(os, "posix_fallocate", slow)
    kept = Arenas(ArenaMemory(2**40, lambda: 2 * SIZES.total), COPIES)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(kept.reserve(0, SIZES))
        await asyncio.sleep(0)
        with pytest.raises(NoMemoryError, match=r"this host has .* to spare"):
            await kept.reserve(1, SIZES)
        slow.heal.set()
    await kept.reserve(1, SIZES)
    kept.drop()


async def test_memory_that_is_being_allocated_is_that_of_the_next_round_too() -> None:
    """A round may break within that time, and the worker in the same place asks for the same memory."""
    kept = Arenas(ArenaMemory(int(1.5 * SIZES.total), lambda: 2**40), COPIES)
    first, second = await asyncio.gather(kept.reserve(0, SIZES), kept.reserve(0, SIZES))
    assert first == second
    assert kept.memory.used_bytes == SIZES.total
    kept.drop()


async def test_memory_that_fits_is_found_behind_memory_that_does_not() -> None:
    kept, more = Arenas(ArenaMemory(2**40, lambda: 2**40), COPIES), ArenaSizes.at_least(0, 1_000_000)
    first, second = await kept.reserve(0, SIZES), await kept.reserve(0, more)
    assert kept.memory.used_bytes == SIZES.total + more.total
    assert await kept.reserve(0, SIZES) == first == kept.file_of(0)
    assert await kept.reserve(0, more) == second == kept.file_of(0)
    assert kept.memory.used_bytes == SIZES.total + more.total
    kept.drop()


def said_by(node: subprocess.Popen[str]) -> str:
    assert node.stdout is not None
    return node.stdout.readline()


@pytest.mark.slow
async def test_two_nodes_of_one_host_that_claim_at_once_take_no_more_than_there_is() -> None:
    """Both have seen the same memory free. The kernel would kill one of them, or another program."""
    nodes = [
        subprocess.Popen(  # noqa: ASYNC220 - nothing else runs in this loop
            [sys.executable, "-c", CLAIMANT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    pids = " ".join(str(node.pid) for node in nodes)
    results = []
    try:
        assert [said_by(node) for node in nodes] == ["claimed\n"] * 2
        for node in nodes:
            assert node.stdin is not None
            print(pids, file=node.stdin, flush=True)
        results = [said_by(node).split() for node in nodes]
    finally:
        for node in nodes:
            node.communicate()
    assert {result for result, _ in results} in ({"refused"}, {"refused", "taken"})
    assert all(int(least) >= 0 for _, least in results)


async def test_memory_of_a_copy_that_is_given_up_meanwhile_is_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeroing takes a second for each gigabyte, and the coordinator may name other copies within that."""
    slow = Hanging("posix_fallocate")
    monkeypatch.setattr(os, "posix_fallocate", slow)
    kept = Arenas(ArenaMemory(2**40, lambda: 2**40), COPIES)
    commit = Commit(step=1, round=1, length=1_000, rank=3, world_size=4, shard=3, shards=4, serial=1)
    copying = asyncio.ensure_future(kept.reserve_copy(commit))
    await asyncio.sleep(0)
    assert kept.memory.used_bytes > 0
    copying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await copying
    slow.heal.set()
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()}, timeout=TIMEOUT_S)
    await asyncio.sleep(0)
    assert kept.memory.used_bytes == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(slow.calls[0][0])


async def test_memory_that_cannot_be_mapped_is_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mapping takes a descriptor, of which there may be none left."""
    limits, allocate, files = resource.getrlimit(resource.RLIMIT_NOFILE), os.posix_fallocate, list[int]()

    def with_the_last_descriptor(file: int, begin: int, size: int) -> None:
        allocate(file, begin, size)
        files.append(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, limits[1]))

    monkeypatch.setattr(os, "posix_fallocate", with_the_last_descriptor)
    kept = Arenas(ArenaMemory(2**40, lambda: 2 * SIZES.total), COPIES)
    try:
        with pytest.raises(NoMemoryError, match="the system refused: Too many open files"):
            await kept.reserve(0, SIZES)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert kept.memory.used_bytes == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(files[0])


async def test_without_descriptors_the_memory_of_the_host_is_unknown_and_none_is_taken() -> None:
    """What was read from /proc is not there, and an error ends a node with its workers."""

    def no_descriptor() -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    kept = Arenas(ArenaMemory(2**40, no_descriptor), COPIES)
    with pytest.raises(NoMemoryError, match="and this host does not tell how much it has: Too many open files"):
        await kept.reserve(0, SIZES)
    assert kept.memory.used_bytes == 0


async def test_a_limit_on_files_is_named_as_one_on_memory() -> None:
    """Python ignores the signal that the kernel sends beside the error."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    kept = Arenas(ArenaMemory(2**40, lambda: 2 * SIZES.total), COPIES)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZES.total - 1, limits[1]))
    try:
        with pytest.raises(NoMemoryError, match="File too large; ulimit -f limits it"):
            await kept.reserve(0, SIZES)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert kept.memory.used_bytes == 0
    await kept.reserve(0, SIZES)
    kept.drop()


@contextmanager
def address_space_left(size: int) -> Iterator[None]:
    """Let this process map `size` more bytes."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


async def test_a_limit_on_address_space_refuses_memory_before_nodeclient_needs_it() -> None:
    """Where no address space is left, the next thread of nodeclient does not start. A copy is mapped with its hole."""
    kept, sizes = Arenas(ArenaMemory(2**40, lambda: 2**40), COPIES), ArenaSizes.at_least(100_000_000, 4_096)
    commit = Commit(step=1, round=1, length=sizes.generation, rank=3, world_size=4, shard=3, shards=4, serial=1)
    left = r"and 300 MB of address space, of which ulimit -v leaves 2\d\d MB: raise it"
    with address_space_left(500_000_000):
        with pytest.raises(NoMemoryError, match=f"worker's state takes 300 MB {left}"):
            await kept.reserve(0, sizes)
        with pytest.raises(NoMemoryError, match=f"2 copies of the state of rank 3 takes 200 MB {left}"):
            await kept.reserve_copy(commit)
    assert kept.memory.used_bytes == 0


def test_address_space_of_an_arena_that_is_being_allocated_is_not_promised_twice() -> None:
    memory, sizes = ArenaMemory(2**40, lambda: 2**40), ArenaSizes.at_least(100_000_000, 0)
    with address_space_left(700_000_000):
        memory.claim(sizes, sizes.one_of_each, "it takes 100 MB")
        with pytest.raises(NoMemoryError, match=r"of which ulimit -v leaves 1\d\d MB"):
            memory.claim(sizes, sizes.one_of_each, "it takes 100 MB")
    assert memory.used_bytes == sizes.one_of_each
