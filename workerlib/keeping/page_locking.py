"""Has CUDA lock the pages of the memory for big states, so that saves from a GPU run at the speed of the bus.

Into other memory CUDA copies through a small buffer of its own, many times slower. To map and lock pages takes some
seconds for tens of gigabytes. So threads beside training do it, in pieces: while CUDA locks a piece, other calls of
CUDA may wait. If CUDA refuses a piece, saves go there all the same, and nodeclient is told why they are slow.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import mmap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import torch

from workerlib.contract.arena import PAGE_BYTES, map_pages

PIECE_BYTES = 128 << 20
"""The size of a piece. CUDA refuses a copy into two of them at once, so `in_pieces` splits copies."""

THREADS = 4
"""How many threads map pages at the same time."""

READY_WITHIN_S = 10.0
"""How long saves at an interval are put off while pages are locked, which takes some seconds for tens of gigabytes."""

JOINED_WITHIN_S = 5.0
"""How long the end of the process waits for the pieces that are being locked: each takes hundredths of a second."""

_CAPTURE_RELAXED = 2
"""The value of CU_STREAM_CAPTURE_MODE_RELAXED in cuda.h."""


class CudaDriver:
    """The functions of CUDA's driver that lock pages, for the GPU that is current where this is made.

    torch has `cudaHostRegister` too, but its C++ code aborts the process if Python ends meanwhile.
    """

    def __init__(self, library: str = "libcuda.so.1") -> None:
        """Use the context of the current GPU. Raises `OSError` without NVIDIA's driver, or without a context."""
        self._library = ctypes.CDLL(library)
        self._context = ctypes.c_void_p()
        if self._library.cuCtxGetCurrent(ctypes.byref(self._context)) or self._context.value is None:
            raise OSError("the thread that called ctx.keep has no context of CUDA")

    def lock(self, address: int, length: int) -> str:
        """Lock pages; return why that failed, empty if it did not."""
        self._enter()
        no_flags = ctypes.c_uint(0)
        code = self._library.cuMemHostRegister_v2(ctypes.c_void_p(address), ctypes.c_size_t(length), no_flags)
        text = ctypes.c_char_p()
        if code:
            self._library.cuGetErrorString(code, ctypes.byref(text))
        return (text.value or b"").decode() or (f"error {code}" if code else "")

    def unlock(self, address: int) -> None:
        """Unlock the pages that one call of `lock` has locked."""
        self._enter()
        self._library.cuMemHostUnregister(ctypes.c_void_p(address))

    def _enter(self) -> None:
        """Set what each thread has of its own: its context, and that its calls break no capture of a CUDA graph."""
        self._library.cuCtxSetCurrent(self._context)
        self._library.cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(_CAPTURE_RELAXED)))


class PageLocks:
    """The locked pages of this process, those of one arena at a time."""

    def __init__(self, driver: CudaDriver) -> None:
        """Begin without any; `driver` locks them."""
        self._driver = driver
        self._locked: list[tuple[int, memoryview]] = []
        """The address of each locked piece, and its memory, which must stay mapped until it is unlocked."""
        self._has_ended = False
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        """Set to have that thread lock no further piece."""
        self._is_ready = threading.Event()
        """Set when that thread locks no further piece."""
        self._is_ready.set()
        self._began_at = 0.0

    def lock(self, generations: Sequence[memoryview], report: Callable[[str], None]) -> None:
        """Begin to lock the pages of this memory, once others are unlocked; `report` is told why, if that fails."""
        if self._has_ended:
            return
        if self._thread is None:
            atexit.register(self.end)
        self._stop.set()
        before, self._stop, self._is_ready = self._thread, threading.Event(), threading.Event()
        args = before, generations, report, self._stop, self._is_ready
        self._thread = threading.Thread(target=self._lock_instead, args=args, daemon=True, name="page-locks")
        self._began_at = time.monotonic()
        self._thread.start()

    @property
    def is_at_work(self) -> bool:
        """Whether pages are being locked, for `READY_WITHIN_S` at most."""
        return not self._is_ready.is_set() and time.monotonic() < self._began_at + READY_WITHIN_S

    def end(self) -> None:
        """Lock no further piece, and wait for those that are being locked: CUDA is about to end."""
        self._has_ended = True
        self._stop.set()
        if self._thread is not None:
            self._thread.join(JOINED_WITHIN_S)

    def _lock_instead(
        self,
        before: threading.Thread | None,
        generations: Sequence[memoryview],
        report: Callable[[str], None],
        stop: threading.Event,
        is_ready: threading.Event,
    ) -> None:
        if before is not None:
            before.join()
        while self._locked and not stop.is_set():
            address, _ = self._locked.pop()
            self._driver.unlock(address)  # it fails only if CUDA does, which the locks below tell
        refusals: list[str] = []
        pieces, taking = itertools.chain.from_iterable(map(_pieces_of, generations)), threading.Lock()

        def lock_pieces() -> None:
            while not (stop.is_set() or refusals):
                with taking:
                    piece = next(pieces, None)
                if piece is None:
                    return
                map_pages(piece)
                address = ctypes.addressof(ctypes.c_char.from_buffer(piece))
                if why := self._driver.lock(address, len(piece)):
                    refusals.append(f"CUDA has refused to lock {len(piece) / 1e6:.1f} MB: {why}")
                else:
                    self._locked.append((address, piece))

        threads = [threading.Thread(target=lock_pieces, daemon=True) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        is_ready.set()
        if refusals:
            report(refusals[0])


@cache
def page_locks() -> PageLocks:
    """Return the page locks of this process, for the GPU that is current at the first call. Raises as `CudaDriver`."""
    if mmap.PAGESIZE != PAGE_BYTES:
        raise OSError(f"an arena is made of pages of {PAGE_BYTES} bytes, and those of this host have {mmap.PAGESIZE}")
    return PageLocks(CudaDriver())


def _pieces_of(generation: memoryview) -> Iterator[memoryview]:
    for begin in range(0, len(generation), PIECE_BYTES):
        yield generation[begin : begin + PIECE_BYTES]


def in_pieces(
    targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], begins: Sequence[int]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return targets and sources of the same copies, of which each lies within one piece.

    `begins` are the offsets of the targets in the memory of a generation. Targets are contiguous. A source that is not
    may be copied for that, in the current stream: call this in the stream of the copies.
    """
    into: list[torch.Tensor] = []
    out_of: list[torch.Tensor] = []
    for target, source, begin in zip(targets, sources, begins, strict=True):
        room = PIECE_BYTES - begin % PIECE_BYTES
        if target.nbytes <= room:
            into.append(target)
            out_of.append(source)
            continue
        flat, at = source.contiguous().view(-1), 0
        while at < target.numel():
            count = min(room // target.itemsize, target.numel() - at)
            into.append(target.view(-1).narrow(0, at, count))
            out_of.append(flat.narrow(0, at, count))
            at, room = at + count, PIECE_BYTES
    return into, out_of
