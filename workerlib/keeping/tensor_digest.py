"""Computes a digest of tensors, by which ranks that should have the same state are compared.

A digest is a checksum that a GPU computes at the speed of its memory. Each tensor is read as integers, and each integer
or block of them is multiplied by a factor of its own, so that their order counts.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import torch

from workerlib.keeping.pieces import local_part

_WORD = 8
"""The bytes of an integer of 64 bits."""

_BLOCK = 255
"""The words in a block of a large tensor, which is added up before it gets its factor. Smaller blocks take longer. The
number is odd, or the sum would stay the same when the highest bits of all words flip."""

_UNBLOCKED = 512
"""The most words of a tensor that is not divided into blocks. Each of its words has a factor of its own, so that
changes within a block cannot cancel each other."""

_GOLDEN = 0x1E3779B97F4A7C15
"""An odd number with irregular bits, those of the golden ratio without the highest one: so it fits into a signed word.
The factors are made of its multiples."""


def digest_of(tensors: Iterable[tuple[str, torch.Tensor]]) -> int:
    """Return a crc32 of tensors with their names; the order in which they come does not matter.

    It shows each bit that flips, and words that change places. It may miss changes within one block of a large tensor
    that cancel each other: words that change places, or the highest bits of an even number of words that flip.
    """
    pairs = sorted(((name, local_part(tensor)) for name, tensor in tensors), key=lambda pair: pair[0])
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for _, tensor in pairs:
        by_device.setdefault(tensor.device, []).extend(_sums_of(tensor))
    mixed = [_mixed(torch.cat(sums)) for sums in by_device.values()]
    crc = zlib.crc32(repr([(name, tensor.dtype, tensor.shape) for name, tensor in pairs]).encode())
    return zlib.crc32(repr([int(each) for each in mixed]).encode(), crc)


def _sums_of(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the sums of a tensor's blocks, read as integers of eight bytes, and the words that are left over.

    On a CPU and on a GPU, this takes as long as to read the tensor from memory. A tensor is copied only if it is not
    contiguous, or does not consist of whole, aligned integers.
    """
    data = tensor.resolve_conj().resolve_neg().contiguous().flatten()
    if data.nbytes % _WORD or data.storage_offset() * data.itemsize % _WORD:
        data = torch.nn.functional.pad(data.view(torch.uint8), (0, -data.nbytes % _WORD))
    words = data.view(torch.int64)
    if len(words) <= _UNBLOCKED:
        return (words,)
    end = len(words) - len(words) % _BLOCK
    sums = words[:end].view(-1, _BLOCK).sum(1)
    return (sums,) if end == len(words) else (sums, words[end:])


def _mixed(sums: torch.Tensor) -> torch.Tensor:
    """Return one integer for all sums: the total of each sum times a factor, and of its high half times another one.

    Products and totals are taken modulo 2**64. An odd factor loses no bit of a sum, but the highest bit stays the
    highest bit, whatever the factor is. If the highest bits of two sums flip, they cancel each other in the total. So
    the high halves are added once more, with other factors.

    The factors are no plain multiples: with these, changes by d, -2d and d in three sums at equal distances would
    cancel each other.
    """
    factors = torch.arange(len(sums) + 1, device=sums.device).mul_(_GOLDEN)
    factors.bitwise_xor_(factors >> 32).bitwise_or_(1)
    return (sums * factors[1:]).sum() + (sums >> 32).mul_(factors[:-1]).sum()
