"""Each sample of an epoch is dealt out once, whatever happens to the ranks; exceptions are declared."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from workerlib import ElasticDistributedSampler
from workerlib.sampler import Remainder

pytestmark = pytest.mark.slow

REMAINDERS: tuple[Remainder, ...] = ("exact", "pad", "drop")


@dataclass(frozen=True)
class Round:
    """So many ranks train with such batches, for so many steps: none for as many as there are."""

    world_size: int
    batch_size: int
    steps: int | None = None
    micro: int | None = None

    def samplers(self, length: int, **options: Any) -> list[ElasticDistributedSampler]:
        """Return one sampler a rank."""
        world_size = self.world_size
        return [
            ElasticDistributedSampler(
                range(length), self.batch_size, micro=self.micro, rank=rank, world_size=world_size, **options
            )
            for rank in range(world_size)
        ]


@dataclass(frozen=True)
class Step:
    """What each rank got in one step, in its micro-batches, and the weights of these."""

    parts: Sequence[Sequence[Sequence[int]]]
    weights: Sequence[Sequence[float]]

    @property
    def shares(self) -> list[list[int]]:
        """The samples of each rank, without stand-ins."""
        return [
            [sample for part, weight in zip(parts, weights, strict=True) if weight for sample in part]
            for parts, weights in zip(self.parts, self.weights, strict=True)
        ]

    @property
    def samples(self) -> list[int]:
        """The samples of all ranks."""
        return [sample for share in self.shares for sample in share]


@dataclass
class Epoch:
    """An epoch through several rounds: each loads the state that the last one left."""

    length: int
    rounds: Sequence[Round]
    options: dict[str, Any]
    epoch: int = 0

    def __post_init__(self) -> None:
        self.repeats: list[int] = []
        self.left_out: list[int] = []
        self.state: dict[str, int] | None = None

    def train(self) -> list[Step]:
        """Return the steps of all rounds; at the end, `repeats` and `left_out` are those declared last."""
        return [step for round_ in self.rounds for step in self._round(round_)]

    def _round(self, round_: Round) -> Iterator[Step]:
        samplers = round_.samplers(self.length, **self.options)
        for sampler in samplers:
            if self.state is not None:
                sampler.load_state_dict(self.state)
            sampler.set_epoch(self.epoch)
        self.left_out = samplers[0].left_out()
        if len(samplers[0]):
            self.repeats = samplers[0].repeats()

        ahead = [list(sampler) for sampler in samplers]  # read ahead, as a DataLoader may, to the very end
        announced = [list(sampler.micro_batches()) for sampler in samplers]
        counts = {*map(len, ahead), *map(len, announced), *map(len, samplers)}
        assert len(counts) == 1, "every rank has the same number of micro-batches"
        ends = [place for place, micro in enumerate(announced[0], 1) if micro.last]
        for begin, end in list(pairwise([0, *ends]))[: round_.steps]:
            step = [micros[begin:end] for micros in announced]
            assert [[micro.last for micro in micros] for micros in step] == [
                [False] * (end - begin - 1) + [True] for _ in samplers
            ]
            parts = [share[begin:end] for share in ahead]
            assert [[len(micro.samples) for micro in micros] for micros in step] == [
                [len(part) for part in share] for share in parts
            ]
            yield Step(parts, [[micro.weight for micro in micros] for micros in step])
            for sampler in samplers:
                sampler.advance()
        states = [sampler.state_dict() for sampler in samplers]
        assert all(state == states[0] for state in states)
        self.state = states[0]


@st.composite
def _round(draw: st.DrawFn, *, last: bool = False) -> Round:
    world_size = draw(st.integers(1, 9))
    batch_size = draw(st.integers(world_size, 40))
    micro = draw(st.none() | st.integers(1, 12))
    return Round(world_size, batch_size, None if last else draw(st.integers(0, 6)), micro)


@st.composite
def _epoch(draw: st.DrawFn, remainder: Remainder) -> Epoch:
    options = {"shuffle": draw(st.booleans()), "seed": draw(st.integers(-9, 2**40)), "remainder": remainder}
    rounds = [*draw(st.lists(_round(), max_size=5)), draw(_round(last=True))]
    return Epoch(draw(st.integers(0, 150)), rounds, options, epoch=draw(st.integers(0, 5)))


@given(_epoch("exact"))
@settings(max_examples=200)
def test_each_sample_comes_once_whatever_becomes_of_the_ranks(epoch: Epoch) -> None:
    steps = epoch.train()
    samples = [sample for step in steps for sample in step.samples]
    assert sorted(samples) == list(range(epoch.length))
    assert (epoch.repeats, epoch.left_out) == ([], [])


@given(_epoch("pad"))
def test_padding_repeats_the_declared_samples_and_no_others(epoch: Epoch) -> None:
    steps = epoch.train()
    samples = Counter(sample for step in steps for sample in step.samples)
    assert samples == Counter(range(epoch.length)) + Counter(epoch.repeats)
    assert len(epoch.repeats) < max(round_.batch_size for round_ in epoch.rounds)


@given(_epoch("drop"))
def test_dropping_leaves_out_the_declared_samples_and_no_others(epoch: Epoch) -> None:
    steps = epoch.train()
    samples = [sample for step in steps for sample in step.samples]
    assert sorted(samples + epoch.left_out) == list(range(epoch.length))
    assert len(epoch.left_out) < epoch.rounds[-1].batch_size


@given(st.sampled_from(REMAINDERS).flatmap(_epoch))
def test_shares_differ_by_one_at_most_and_batches_are_as_large_as_said(epoch: Epoch) -> None:
    for step in epoch.train():
        sizes = [len(share) for share in step.shares]
        assert max(sizes) - min(sizes) <= 1
        assert sizes == sorted(sizes, reverse=True), "if ranks have less, it is the last ones"
        for parts, weights in zip(step.parts, step.weights, strict=True):  # the ranks' average is that of the batch
            for part, weight in zip(parts, weights, strict=True):
                assert weight in {0, len(part) * len(sizes) / sum(sizes)}


@given(_round(last=True), st.integers(0, 200), st.sampled_from(["pad", "drop"]))
def test_where_asked_for_all_batches_are_full(round_: Round, length: int, remainder: Remainder) -> None:
    for step in Epoch(length, [round_], {"remainder": remainder}).train():
        assert len(step.samples) == round_.batch_size


@given(st.sampled_from(REMAINDERS).flatmap(_epoch), st.integers(9, 40))
def test_the_batches_are_the_same_on_any_number_of_ranks(epoch: Epoch, batch_size: int) -> None:
    epoch.rounds = [replace(round_, batch_size=batch_size) for round_ in epoch.rounds]
    alone = Epoch(epoch.length, [Round(1, batch_size)], epoch.options, epoch.epoch)
    batches, batches_alone = ([sorted(step.samples) for step in either.train()] for either in (epoch, alone))
    assert batches == batches_alone


def test_a_rest_smaller_than_the_number_of_ranks_has_stand_ins() -> None:
    steps = Epoch(6, [Round(2, 4, steps=1), Round(3, 4)], {"shuffle": False}).train()
    assert [step.parts for step in steps] == [[[[0, 2]], [[1, 3]]], [[[4]], [[5]], [[4]]]]
    assert steps[1].weights == [[1.5], [1.5], [0]]


def test_padding_begins_again_at_the_beginning_of_the_order() -> None:
    steps = Epoch(3, [Round(2, 8)], {"shuffle": False, "remainder": "pad"}).train()
    assert [step.shares for step in steps] == [[[0, 2, 1, 0], [1, 0, 2, 1]]]


def test_the_order_is_the_same_everywhere_and_for_ever() -> None:
    """A release that changed it would break epochs that are under way."""
    [batch] = _alone(10, 10, seed=1, epoch=2)
    assert batch == [4, 3, 5, 6, 7, 9, 0, 8, 1, 2]
    [imagenet] = _alone(1_281_167, 1_281_167)
    digest = hashlib.sha256(repr(imagenet).encode()).hexdigest()
    assert digest == "8411f2ee935dc796bb6b46a258912b589c2434c2affdda85024118b20329083b"


def test_every_order_is_as_likely_as_any_other() -> None:
    orders = Counter(tuple(*_alone(4, 4, seed=seed)) for seed in range(2400))
    assert len(orders) == 24
    assert all(60 < count < 140 for count in orders.values()), "some 100 are expected, give or take 10"


def test_seeds_and_epochs_have_orders_of_their_own() -> None:
    orders = {tuple(*_alone(50, 50, seed=seed, epoch=epoch)) for seed in (0, 1, 11) for epoch in (0, 1, 11)}
    assert len(orders) == 9
    assert list(_alone(50, 50, shuffle=False)) == [list(range(50))]


def _alone(length: int, batch_size: int, *, epoch: int = 0, **options: Any) -> ElasticDistributedSampler:
    [sampler] = Round(1, batch_size).samplers(length, **options)
    sampler.set_epoch(epoch)
    return sampler


def test_a_data_loader_goes_on_after_what_was_trained_on_not_after_what_was_read() -> None:
    dataset = [float(sample) for sample in range(10)]
    sampler = _alone(10, 4, shuffle=False)
    loader: DataLoader[float] = DataLoader(dataset, batch_sampler=sampler)  # type: ignore[arg-type]
    assert len(loader) == 3
    batches = iter(loader)
    assert next(batches).tolist() == [0, 1, 2, 3]
    sampler.advance()
    assert next(batches).tolist() == [4, 5, 6, 7]

    resumed = _alone(10, 3, shuffle=False)
    resumed.load_state_dict(sampler.state_dict())
    assert [batch.tolist() for batch in DataLoader(dataset, batch_sampler=resumed)] == [[4, 5, 6], [7, 8, 9]]  # type: ignore[arg-type]
    assert [batch.tolist() for batch in loader] == [[4, 5, 6, 7], [8, 9]]


def test_an_epoch_that_was_trained_on_is_not_taken_for_one_without_samples() -> None:
    sampler = _alone(4, 4)
    sampler.advance()
    assert (sampler.samples_done, len(sampler)) == (4, 0)
    with pytest.raises(RuntimeError, match=r"epoch 0 has been trained on: call set_epoch\(1\)"):
        iter(sampler)
    with pytest.raises(RuntimeError, match="more often than epoch 0 has batches"):
        sampler.advance()
    sampler.set_epoch(0)
    with pytest.raises(RuntimeError, match="epoch 0 has been trained on"):
        iter(sampler)
    sampler.set_epoch(1)
    assert sampler.epoch == 1
    assert len(list(sampler)) == 1


def test_who_stops_after_the_last_step_comes_back_to_the_end_of_the_epoch() -> None:
    sampler, resumed = _alone(4, 4, epoch=7), _alone(4, 4)
    sampler.advance()
    resumed.load_state_dict(sampler.state_dict())
    assert (resumed.epoch, resumed.samples_done) == (7, 4)
    resumed.set_epoch(7)
    assert list(resumed) == []


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (_alone(11, 4), "length 10, but here it is 11"),
        (_alone(10, 4, seed=1), "seed 0, but here it is 1"),
        (_alone(10, 4, shuffle=False), "shuffle True, but here it is False"),
    ],
)
def test_a_state_of_other_samples_is_refused(other: ElasticDistributedSampler, difference: str) -> None:
    state = _alone(10, 4, epoch=3).state_dict()
    with pytest.raises(ValueError, match=rf"{difference}, .* set_epoch\(4\) instead"):
        other.load_state_dict(state)


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"rank": 2}, "rank 2 is not one of 2 ranks"),
        ({"rank": -1}, "rank -1 is not one of 2 ranks"),
        ({"batch_size": 1}, "a batch of 1 samples is too small for 2 ranks"),
        ({"micro": 0}, "micro is 0, but should be an int of at least 1"),
        ({"remainder": "keep"}, "remainder is 'keep', but should be one of exact, pad, drop"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(wrong: dict[str, Any], what: str) -> None:
    arguments: dict[str, Any] = {"batch_size": 4, "rank": 0, "world_size": 2, **wrong}
    with pytest.raises(ValueError, match=what):
        ElasticDistributedSampler(range(10), **arguments)


def test_rank_and_world_size_are_by_default_those_of_the_process_group(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert list(ElasticDistributedSampler(range(3), 2, shuffle=False)) == [[0, 1], [2]]
    finally:
        dist.destroy_process_group()


def test_an_iterator_that_is_made_before_its_epoch_begins_has_the_order_of_that_epoch() -> None:
    """StatefulDataLoader of torchdata makes one if its state is read before the loop."""
    early, late = Round(1, 4).samplers(12) + Round(1, 4).samplers(12)
    shares = iter(early)
    for sampler in (early, late):
        sampler.set_epoch(1)
    assert list(shares) == list(late)
