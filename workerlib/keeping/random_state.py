"""Reads and restores the random state of a process: Python's, numpy's and torch's, on the CPU and on the GPU.

Each small state has it, and such a state may be saved after each forward, before the optimizer's step and at the end of
a step. So a read must be cheap. The functions of Python and numpy make an object of each word (0.02 ms and 0.1 ms, and
several times that when the caches are cold). So the words are read from memory, which takes a microsecond. Both
generators are a Mersenne Twister, and are kept in the same form: 624 words, and the number of those that are used.
"""

from __future__ import annotations

import ctypes
import hashlib
import random
import struct
import sys
from array import array
from importlib import import_module
from typing import Any

import torch

_WORDS = 624

_MT19937_BYTES = 4 * (_WORDS + 1)
"""The bytes of the words and of the position, in numpy (`mt19937_state`) and in Python (`RandomObject`)."""

_POSITION_BYTES = 4


class RandomState:
    """Reads the random state of this process again and again."""

    def __init__(self) -> None:
        self._python_at = _python_words_at()
        self._python_gauss: float | None = None
        self._numpy_raw = b""
        self._numpy_gauss: tuple[int, float] = (0, 0.0)

    def read(self) -> dict[str, bytes]:
        """Return the states of fixed size by generator: torch's of the CPU and of a GPU in use, Python's, numpy's."""
        found = {"cpu": _bytes_of(torch.default_generator.get_state()), "python": self._python()}
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch has no types here
            found["cuda"] = _bytes_of(torch.cuda.get_rng_state())
        if (raw := self._numpy()) is not None:
            found["numpy"] = raw
        return found

    def spare_normals(self) -> dict[str, Any]:
        """Return the rest of the state at the last `read`: the second one of a pair of normal numbers, if it is left.

        Both generators draw normal numbers in pairs, and return the second one at the next call.
        """
        return {"python": self._python_gauss, "numpy": self._numpy_gauss}

    def _python(self) -> bytes:
        if self._python_at is None:
            _, words, self._python_gauss = random.getstate()
            return array("I", words).tobytes()
        generator: Any = random.getstate.__self__  # type: ignore[attr-defined]  # it is a bound method
        self._python_gauss = generator.gauss_next
        raw = ctypes.string_at(self._python_at, _MT19937_BYTES)
        return raw[_POSITION_BYTES:] + raw[:_POSITION_BYTES]

    def _numpy(self) -> bytes | None:
        """Return numpy's legacy state; None if numpy's random numbers are not in use, or of another generator."""
        module = sys.modules.get("numpy.random")
        if module is None:
            return None
        generator: Any = getattr(getattr(getattr(module, "mtrand", None), "_rand", None), "_bit_generator", None)
        if type(generator).__name__ != "MT19937":
            return None
        raw = ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)
        # numpy returns the second of two normal numbers without a change of these bytes.
        if raw != self._numpy_raw or self._numpy_gauss[0]:
            *_, has_gauss, gauss = module.get_state()
            self._numpy_raw, self._numpy_gauss = raw, (has_gauss, gauss)
        return raw


def _python_words_at() -> int | None:
    """Return the address of the position and the words of Python's generator; None if they are not found there.

    In CPython they follow the head of the object (Modules/_randommodule.c).
    """
    generator: Any = random.getstate.__self__  # type: ignore[attr-defined]  # it is a bound method
    head = object.__basicsize__
    if sys.implementation.name != "cpython" or type(generator).__basicsize__ < head + _MT19937_BYTES:
        return None
    at = id(generator) + head
    position, *words = struct.unpack(f"={_WORDS + 1}I", ctypes.string_at(at, _MT19937_BYTES))
    return at if random.getstate()[1] == (*words, position) else None


def _bytes_of(state: torch.Tensor) -> bytes:
    return ctypes.string_at(state.data_ptr(), state.numel())


def restore(tensors: dict[str, torch.Tensor], plain: dict[str, Any]) -> None:
    """Restore the state that a `RandomState` has read: `tensors` its bytes, `plain` its spare normal numbers."""
    torch.set_rng_state(tensors["cpu"].clone())
    words = array("I", _bytes_of(tensors["python"]))
    random.setstate((random.getstate()[0], tuple(words), plain["python"]))
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"].clone())
    if "numpy" in tensors:
        np = import_module("numpy")  # this training used it, so it is installed
        words = np.frombuffer(_bytes_of(tensors["numpy"]), dtype=np.uint32)
        np.random.set_state(("MT19937", words[:-1], int(words[-1]), *plain["numpy"]))


def reseed(round_: int, step: int, rank: int) -> int:
    """Seed this process's random numbers from these three numbers only; return the seed.

    A rank without a random state gets numbers that no other rank has, and the same ones if the round begins again.
    """
    digest = hashlib.blake2b(f"{round_} {step} {rank}".encode(), digest_size=4).digest()  # numpy's seeds have 32 bits
    seed = int.from_bytes(digest, "little")
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(seed)
    return seed
