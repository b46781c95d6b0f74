"""Takes the random state of a process, and puts it back: Python's, numpy's and torch's, on the CPU and on the GPU.

It is taken at each step, so it must be cheap. numpy's own function takes 0.1 ms for its legacy state of 2,500 bytes,
since it makes a Python number of each word; here the bytes are read from memory in a microsecond.
"""

from __future__ import annotations

import ctypes
import hashlib
import random
import sys
from array import array
from importlib import import_module
from typing import Any

import torch

_MT19937_BYTES = 2500
"""numpy's `mt19937_state`: 624 words, and the position in them as one more."""


class RandomState:
    """Looks at the random state of this process again and again."""

    def __init__(self) -> None:
        self._raw = b""
        self._gauss: tuple[int, float] = (0, 0.0)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return what has a fixed size: torch's states of the CPU and of a GPU in use, Python's and numpy's."""
        _, words, self._python_gauss = random.getstate()
        found = {"cpu": torch.get_rng_state(), "python": torch.frombuffer(array("q", words), dtype=torch.int64)}
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch has no types here
            found["cuda"] = torch.cuda.get_rng_state()
        if (raw := self._numpy()) is not None:
            found["numpy"] = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
        return found

    def plain(self) -> dict[str, Any]:
        """Return the rest of what `tensors` saw: normal numbers that are drawn, and not given out yet."""
        return {"python": self._python_gauss, "numpy": self._gauss}

    def _numpy(self) -> bytes | None:
        """Return numpy's legacy state; None where numpy's random numbers are not in use, or are of another kind."""
        module = sys.modules.get("numpy.random")
        generator: Any = getattr(getattr(getattr(module, "mtrand", None), "_rand", None), "_bit_generator", None)
        if module is None or type(generator).__name__ != "MT19937":
            return None
        raw = ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)
        # The second of two normal numbers is given out without a change of these bytes.
        if raw != self._raw or self._gauss[0]:
            *_, has_gauss, gauss = module.get_state()
            self._raw, self._gauss = raw, (has_gauss, gauss)
        return raw


def restore(tensors: dict[str, torch.Tensor], plain: dict[str, Any]) -> None:
    """Put back what `RandomState` saw."""
    torch.set_rng_state(tensors["cpu"].clone())
    random.setstate((random.getstate()[0], tuple(tensors["python"].tolist()), plain["python"]))
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"].clone())
    if "numpy" in tensors:
        np = import_module("numpy")  # which this training used, so it is there
        words = np.frombuffer(bytes(tensors["numpy"].numpy()), dtype=np.uint32)
        np.random.set_state(("MT19937", words[:-1], int(words[-1]), *plain["numpy"]))


def reseed(round_: int, step: int, rank: int) -> int:
    """Give this process random numbers of its own that depend on nothing else; return the seed."""
    digest = hashlib.blake2b(f"{round_} {step} {rank}".encode(), digest_size=4).digest()
    seed = int.from_bytes(digest, "little")
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(seed)
    return seed
