"""Locking the pages of memory for states with CUDA's driver, and splitting copies where CUDA refuses them whole.

No GPU is needed: a library with the driver's functions stands for it. `tests/gpu/test_kept_state.py` has the real one.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.machines import compile_c
from tests.support.programs import TIMEOUT_S
from workerlib.contract.arena import ALIGNMENT, PAGE_BYTES
from workerlib.keeping import page_locking
from workerlib.keeping.page_locking import CudaDriver, PageLocks, in_pieces

pytestmark = pytest.mark.slow

DRIVER = """
#define _GNU_SOURCE
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
static void *places[64];
static size_t sizes[64];
static int order[64], count, last;
static __thread void *current;
int cuCtxGetCurrent(void **context) { *context = getenv("TEST_NO_CONTEXT") ? 0 : (void *)7; return 0; }
int cuCtxSetCurrent(void *context) { current = context; return 0; }
static __thread int mode;
int cuThreadExchangeStreamCaptureMode(int *other) { int before = mode; mode = *other; *other = before; return 0; }
int cuGetErrorString(int code, const char **text) { *text = code == 2 ? "out of memory" : "invalid"; return 0; }
int cuMemHostRegister_v2(void *place, size_t size, unsigned flags) {
    unsigned char is_mapped[16];
    if (current != (void *)7 || mode != 2 || flags || mincore(place, size, is_mapped)) return 1;
    for (size_t page = 0; page < size / 4096; page++) if (!is_mapped[page]) return 1;
    int at = __sync_fetch_and_add(&count, 1);
    while (getenv("TEST_HELD") && access(getenv("TEST_HELD"), F_OK)) usleep(1000);
    if (getenv("TEST_REFUSED_FROM") && at >= atoi(getenv("TEST_REFUSED_FROM"))) return 2;
    places[at] = place; sizes[at] = size; order[at] = __sync_add_and_fetch(&last, 1);
    return 0;
}
int cuMemHostUnregister(void *place) {
    for (int at = 0; at < count; at++) if (places[at] == place && sizes[at]) { sizes[at] = 0; return 0; }
    return 1;
}
int called(void) { return count; }
size_t locked_bytes(void *from, size_t length) {
    size_t sum = 0;
    for (int at = 0; at < count; at++)
        if (places[at] >= from && (char *)places[at] < (char *)from + length) sum += sizes[at];
    return sum;
}
"""
"""Locks mapped pages, in threads that have the context. `TEST_REFUSED_FROM` is the first piece that it refuses. With
`TEST_HELD` a call returns once that file exists."""

GENERATION = 5 * PAGE_BYTES


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of the library."""
    path = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    compile_c(DRIVER, "-shared", "-fPIC", "-o", path)
    return str(path)


@pytest.fixture
def own_library(library: str, tmp_path: Path) -> str:
    """Return the path of a copy of the library, which has locked nothing yet."""
    return shutil.copy(library, str(tmp_path / "libcuda.so.1"))


@pytest.fixture
def locks(own_library: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[PageLocks]:
    """Return the locks of this process, in pieces of two pages."""
    monkeypatch.setattr(page_locking, "PIECE_BYTES", 2 * PAGE_BYTES)
    locks = PageLocks(CudaDriver(own_library))
    yield locks
    locks.end()


def memory() -> list[memoryview]:
    """Return the memory of three generations, no page of which is mapped."""
    file = os.memfd_create("kept")
    os.ftruncate(file, 3 * GENERATION)
    whole = memoryview(mmap.mmap(file, 3 * GENERATION))
    os.close(file)
    return [whole[at * GENERATION : (at + 1) * GENERATION] for at in range(3)]


def locked_bytes(library: str, generations: list[memoryview]) -> list[int]:
    """Return how much of the memory of each generation is locked."""
    count = ctypes.CDLL(library).locked_bytes
    count.restype = ctypes.c_size_t
    places = [ctypes.addressof(ctypes.c_char.from_buffer(each)) for each in generations]
    return [count(ctypes.c_void_p(place), ctypes.c_size_t(GENERATION)) for place in places]


def test_other_memory_takes_their_place(locks: PageLocks, own_library: str) -> None:
    before, after, told = memory(), memory(), list[str]()
    for generations in (before, after):  # the second call comes while the first one may still be at work
        locks.lock(generations, told.append)
    assert locks._is_ready.wait(TIMEOUT_S)
    assert not told
    assert locked_bytes(own_library, before) == [0] * 3
    assert locked_bytes(own_library, after) == [GENERATION] * 3


def test_memory_that_is_replaced_is_not_locked_to_the_end(
    locks: PageLocks, own_library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_HELD", str(tmp_path / "goes on"))
    before, after = memory(), memory()
    locks.lock(before, print)
    locks.lock(after, print)
    assert locks.is_at_work
    (tmp_path / "goes on").touch()
    assert locks._is_ready.wait(TIMEOUT_S)
    assert locked_bytes(own_library, after) == [GENERATION] * 3
    pieces = 3 * 3
    assert ctypes.CDLL(own_library).called() <= page_locking.THREADS + pieces


def test_a_refusal_is_told_once(locks: PageLocks, own_library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_REFUSED_FROM", "2")
    generations, told = memory(), list[str]()
    locks.lock(generations, told.append)
    assert locks._is_ready.wait(TIMEOUT_S)
    locks.end()
    assert sum(locked_bytes(own_library, generations)) <= 4 * PAGE_BYTES
    [why] = told
    assert why.startswith("CUDA has refused to lock 0.0 MB: out of memory")


def test_nothing_is_locked_once_the_process_ends(locks: PageLocks, own_library: str) -> None:
    generations = memory()
    locks.end()
    locks.lock(generations, print)
    assert locks._is_ready.wait(TIMEOUT_S)
    assert locked_bytes(own_library, generations) == [0] * 3


def test_without_the_driver_or_a_context_an_error_says_so(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match=r"libnothing\.so\.1"):
        CudaDriver("libnothing.so.1")
    monkeypatch.setenv("TEST_NO_CONTEXT", "1")
    with pytest.raises(OSError, match="no context"):
        CudaDriver(library)


@given(st.lists(st.tuples(st.integers(0, 400), st.sampled_from(["uint8", "float32", "complex128"]), st.booleans())))
def test_a_copy_in_pieces_is_the_same_copy(shapes: list[tuple[int, str, bool]]) -> None:
    begins, targets, sources, end = list[int](), list[torch.Tensor](), list[torch.Tensor](), ALIGNMENT
    for rows, dtype, is_transposed in shapes:
        source = torch.arange(3 * rows).to(getattr(torch, dtype)).view(3, rows)
        sources.append(source.t() if is_transposed else source)
        targets.append(torch.zeros(sources[-1].shape, dtype=source.dtype))
        begins.append(end)
        end = -(-(end + source.nbytes) // ALIGNMENT) * ALIGNMENT
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(page_locking, "PIECE_BYTES", 5 * ALIGNMENT)
        into, out_of = in_pieces(targets, sources, begins)
    base = {target.untyped_storage().data_ptr(): begin for begin, target in zip(begins, targets, strict=True)}
    for target, source in zip(into, out_of, strict=True):
        target.copy_(source)
        begin = base[target.untyped_storage().data_ptr()] + target.storage_offset() * target.itemsize
        assert not target.nbytes or begin // (5 * ALIGNMENT) == (begin + target.nbytes - 1) // (5 * ALIGNMENT)
    assert all(map(torch.equal, targets, sources))
