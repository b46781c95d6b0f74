"""A step has the same result on any number of ranks, and each rank has as many micro-batches as the others."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workerlib import global_batch
from workerlib.micro_batches import MicroBatch


def plans(batch: int, micro: int, world_size: int) -> list[tuple[MicroBatch, ...]]:
    """Return what each rank does in a step."""
    return [global_batch(batch, micro=micro, rank=rank, world_size=world_size) for rank in range(world_size)]


@given(st.data())
def test_all_ranks_together_do_the_step_of_the_batch(data: st.DataObject) -> None:
    world_size = data.draw(st.integers(1, 40))
    batch, micro = data.draw(st.integers(world_size, 3000)), data.draw(st.integers(1, 70))
    ranks = plans(batch, micro, world_size)

    samples = chain.from_iterable(part.samples for plan in ranks for part in plan if part.weight)
    assert sorted(samples) == list(range(batch)), "each sample counts once"
    losses = [number**2 % 17 for number in range(batch)]
    sums = [
        sum(part.weight * sum(losses[place] for place in part.samples) / len(part.samples) for part in plan)
        for plan in ranks
    ]
    assert sum(sums) / world_size == pytest.approx(sum(losses) / batch, rel=1e-12), "the average is that of the batch"

    # FSDP2 and DDP wait for ever if one rank has more micro-batches than another, or ends its step sooner.
    count = -(-batch // (world_size * micro))
    assert {tuple(part.last for part in plan) for plan in ranks} == {(False,) * (count - 1) + (True,)}
    sizes = {len(part.samples) for plan in ranks for part in plan}
    assert 1 <= min(sizes) <= max(sizes) <= micro
    assert max(sizes) - min(sizes) <= 1
    for rank, plan in enumerate(ranks):  # only the last may stand in, and only for a micro-batch of one
        stand_ins = [part for part in plan if not part.weight]
        missing = micro == 1 and len(range(rank, batch, world_size)) < len(plan)
        assert stand_ins == [MicroBatch(range(1), 0, last=True)] * missing
        assert all(part.weight for part in plan[:-1])


def test_the_samples_of_a_rank_are_dealt_out_in_turn_as_the_sampler_does() -> None:
    assert plans(7, 2, 2) == [
        (MicroBatch(range(0, 4, 2), 4 / 7, last=False), MicroBatch(range(4, 8, 2), 4 / 7, last=True)),
        (MicroBatch(range(1, 5, 2), 4 / 7, last=False), MicroBatch(range(5, 7, 2), 2 / 7, last=True)),
    ]


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"batch": 0}, "the batch is 0, but should be an int of at least 1"),
        ({"batch": 1024.0}, r"the batch is 1024\.0, but should be an int"),
        ({"micro": 0}, "micro is 0, but should be an int of at least 1"),
        ({"micro": "16"}, "micro is '16', but should be an int"),
        ({"world_size": 0}, "world_size is 0, but should be an int of at least 1"),
        ({"rank": 4}, "rank 4 is not one of 4 ranks, which count from 0"),
        ({"rank": -1}, "rank -1 is not one of 4 ranks"),
        ({"batch": 3}, "a batch of 3 samples is too small for 4 ranks: .*, or let fewer nodes join"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(wrong: dict[str, int], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        global_batch(**{"batch": 1024, "micro": 16, "rank": 0, "world_size": 4, **wrong})


@pytest.mark.slow  # for torch
@pytest.mark.parametrize("known", [{}, {"rank": 0}, {"world_size": 2}])
def test_before_there_is_a_process_group_it_says_what_to_do(known: dict[str, int]) -> None:
    with pytest.raises(
        ValueError, match=r"no process group yet: call workerlib\.init\(\) first, or give rank and world"
    ):
        global_batch(8, micro=4, **known)
