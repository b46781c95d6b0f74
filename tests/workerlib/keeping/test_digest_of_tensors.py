"""The digest by which the states of ranks are compared after their first step."""

import random

import pytest
import torch

from workerlib.keeping.tensor_digest import digest_of

pytestmark = pytest.mark.slow

TYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool, torch.complex64)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_equal_tensors_have_one_digest_in_any_order_and_others_another(dtype: torch.dtype) -> None:
    def tensors() -> list[tuple[str, torch.Tensor]]:
        return [("a", torch.ones(3, 5, dtype=dtype)), ("b", torch.zeros((), dtype=dtype)), ("c", torch.empty(0))]

    alike, changed = digest_of(tensors()), tensors()
    assert digest_of(reversed(tensors())) == alike
    changed[0][1][2, 4] = 0
    assert digest_of(changed) != alike
    assert digest_of([("d", tensor) for _, tensor in tensors()[:1]]) != digest_of(tensors()[:1]), "another name"
    assert digest_of([("a", torch.ones(5, 3, dtype=dtype))]) != digest_of(tensors()[:1]), "another size"


def test_a_digest_shows_any_bit_that_flips() -> None:
    chance = random.Random(1)  # noqa: S311 - repeatable on purpose
    tensors = [(str(size), torch.randn(size, generator=torch.Generator().manual_seed(size))) for size in (1, 70, 4000)]
    before = digest_of(tensors)
    for _ in range(200):
        bits = chance.choice(tensors)[1].view(torch.int32)
        at, bit = chance.randrange(len(bits)), chance.choice([-(2**31), *(2**each for each in range(31))])
        bits[at] ^= bit
        assert digest_of(tensors) != before, f"bit {bit} of element {at} of {len(bits)}"
        bits[at] ^= bit
    assert digest_of(tensors) == before
    assert digest_of([("a", torch.zeros(3, dtype=torch.int64))]) != digest_of([("a", torch.full((3,), -1))])


@pytest.mark.parametrize("size", [2, 4, 64, 1024, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_digest_shows_that_all_signs_change(size: int, dtype: torch.dtype) -> None:
    tensor = torch.randn(size, generator=torch.Generator().manual_seed(size), dtype=dtype)
    for each in (tensor, torch.zeros_like(tensor)):
        assert digest_of([("a", each)]) != digest_of([("a", -each)])


@pytest.mark.parametrize("dtype", TYPES[:5], ids=str)
def test_a_digest_shows_words_that_change_places(dtype: torch.dtype) -> None:
    small = torch.arange(16).to(dtype)
    large = torch.arange(40_000).remainder(251).to(dtype)
    digests = {digest_of([("a", tensor)]) for tensor in (small, small.roll(8), small.flip(0), small.roll(1))}
    swapped, half = large.clone(), len(large) // 2
    swapped[:1024], swapped[half : half + 1024] = large[half : half + 1024], large[:1024]
    digests |= {digest_of([("a", tensor)]) for tensor in (large, large.roll(1), large.roll(half), swapped)}
    assert len(digests) == 8
    both = [digest_of([("a", first), ("b", other)]) for first, other in ((large, swapped), (swapped, large))]
    assert both[0] != both[1]


def test_a_view_has_the_digest_of_its_elements() -> None:
    whole = torch.arange(24, dtype=torch.bfloat16)
    part = whole[1:13].view(3, 4).t()
    assert digest_of([("a", part)]) == digest_of([("a", part.contiguous())])
