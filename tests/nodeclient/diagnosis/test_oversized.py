"""Allocations that are larger than all memory of the host or the GPU are mistakes of the script."""

from pathlib import Path

import pytest

from nodeclient.diagnosis.diagnose import diagnose
from nodeclient.diagnosis.oom import OomKills, explain_oversized

TORCH = (
    "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate {} bytes. Error code 12 (Cannot allocate memory)"
)
NUMPY = (
    "numpy._core._exceptions._ArrayMemoryError: Unable to allocate {} for an array with shape (4503599627370496,) and "
    "data type uint8"
)
GPU = "torch.OutOfMemoryError: {} out of memory. Tried to allocate {}. GPU 0 has a total capacity of 23.69 GiB of which"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make the file system of a host with 64 GiB of memory, and as much swap space."""
    (tmp_path / "proc").mkdir()
    kilobytes = 64 * 2**20
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: {kilobytes} kB\nMemFree: 1 kB\nSwapTotal: {kilobytes} kB\n")
    return tmp_path


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TORCH.format(2**52), "it asked for 4 PiB at once, and the host has 128 GiB in all"),
        (TORCH.format(2**37 + 2**30), "it asked for 129 GiB at once, and the host has 128 GiB in all"),
        (TORCH.format(2**37), ""),
        (NUMPY.format("7.11 PiB"), "it asked for 7.11 PiB at once, and the host has 128 GiB in all"),
        (NUMPY.format("4.00 GiB"), ""),
        (NUMPY.format("1.2.3 GiB"), ""),
        (NUMPY.format("9" * 400 + " GiB"), ""),
        (GPU.format("CUDA", "4096.00 GiB"), "it asked for 4 TiB at once, and the GPU has 23.7 GiB in all"),
        (GPU.format("HIP", "23.70 GiB"), "it asked for 23.7 GiB at once, and the GPU has 23.7 GiB in all"),
        (GPU.format("CUDA", "158.00 MiB"), ""),
        ("MemoryError", ""),
        ("", ""),
    ],
)
def test_what_is_said_of_an_allocation_that_failed(root: Path, error: str, said: str) -> None:
    assert explain_oversized(error, root) == said


def test_without_knowing_the_memory_of_the_host_nothing_is_said(tmp_path: Path) -> None:
    assert explain_oversized(TORCH.format(2**52), tmp_path) == ""


def test_a_diagnosis_says_it(root: Path) -> None:
    written = f'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n{TORCH.format(2**52)}\n'
    found = diagnose(1, 7, None, written.encode(), OomKills(), root)
    assert found.message == "it asked for 4 PiB at once, and the host has 128 GiB in all"
