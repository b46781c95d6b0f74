"""The digests by which the states of ranks are compared: after their first step, and again and again later."""

import random

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.support.kept_script import Script, Stateful, network, train
from tests.support.late_device import Device
from workerlib import progress
from workerlib.contract.channel_messages import FirstState, NotSaved
from workerlib.contract.env import DIGEST_AT, DIGEST_WORDS, DIGESTS, PROGRESS, unpack_digest
from workerlib.keeping.intervals import DIGESTS_SHARE_MAX, HEARD_S
from workerlib.keeping.plain_values import BYTES_MAX
from workerlib.keeping.step_saver import COMPARED_AFTER
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


def test_a_state_is_compared_once_an_optimizer_has_changed_it(script: Script) -> None:
    """A gradient scaler leaves out steps: until the first one, ranks that will differ have the same state."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight])
    with script.runs({"weight": weight, "optimizer": optimizer}) as (_, kept):
        kept.step(0)
        assert kept._saver.commits.problem
        weight.grad = torch.ones(2)
        optimizer.step()
        kept.step(1)
        assert not kept._saver.commits.problem
        script.node.await_message(0, FirstState)
    assert sum(isinstance(message, FirstState) for message in script.node.nodes[0].messages) == 1


def test_numbers_are_kept_from_the_first_step_on(script: Script) -> None:
    numbers = {"tokens": 0}
    with script.runs({"numbers": numbers}) as (_, kept):
        numbers["tokens"] = 5
        kept.step(0)
        script.saved(kept)
    with script.runs({"numbers": (fresh := {"tokens": 0})}) as (done, _):
        assert (done, fresh) == (0, numbers)


@pytest.mark.usefixtures("group")
def test_a_tensor_that_only_collectives_change_is_saved_at_intervals(script: Script) -> None:
    """No such change is counted, and a rank that waits in a collective may have a part of its result."""
    tensor = torch.zeros(2)
    with script.runs({"tensor": tensor}) as (_, kept):
        kept._saver.interval.raise_pause(3600.0)  # the next step is not due, however slow this machine is
        for step in range(COMPARED_AFTER + 1):
            dist.broadcast(tensor, 0)
            kept.step(step)
            script.await_memory(kept)
        dist.broadcast(tensor, 0)
        kept.step(step + 1)
        dist.broadcast(tensor, 0)
        assert script.not_saved(kept) == "tensors have changed since the last step was done"
    assert script.node.resume.step == COMPARED_AFTER


def test_a_state_that_can_no_longer_be_kept_when_it_is_compared_ends_no_training(script: Script) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    with script.runs({"model": model, "optimizer": optimizer}) as (_, kept):
        model.register_parameter("late", nn.Parameter(torch.ones(1)))
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        kept.step(0)
        script.node.await_message(0, NotSaved)
        assert not any(isinstance(message, FirstState) for message in script.node.nodes[0].messages)


def reported() -> tuple[int, int, int] | None:
    """Return the step, the shard and the digest in the slot of this worker."""
    return unpack_digest(progress._own_slot()[DIGEST_AT : DIGEST_AT + DIGEST_WORDS].tolist())


@pytest.fixture(autouse=True)
def _new_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a slot of its own, which no node reads."""
    monkeypatch.setattr(progress, "_slot", None)
    monkeypatch.delenv(PROGRESS, raising=False)


def test_a_digest_is_of_the_state_after_its_step(script: Script) -> None:
    with script.trains() as (model, optimizer, kept):
        kept._saver.record_comparison(alike=True)
        train(model, optimizer)
        kept.step(0)
        assert reported() == (0, 0, digest_of(kept._saver._generations.tensors()))
        train(model, optimizer)
        assert reported() != (0, 0, digest_of(kept._saver._generations.tensors())), (
            "the state of the next step is another"
        )


@pytest.mark.parametrize(("before", "own", "least_s"), [(900, 0, HEARD_S), (0, 9, 9 / DIGESTS_SHARE_MAX)])
def test_on_a_device_a_digest_takes_the_time_of_its_own_work_only(
    script: Script, before: int, own: int, least_s: float
) -> None:
    device = Device(lambda: None)

    def tensors() -> list[tuple[str, torch.Tensor]]:
        for _ in range(own):
            device.give(lambda: None)
        return [("a", torch.ones(3))]

    for _ in range(before):
        device.give(lambda: None)
    with script.trains() as (_, _, kept):
        kept._saver._generations._queue = device
        assert kept._saver._digest(tensors) == digest_of(tensors())
        assert kept._saver._digests._least_s == least_s
        kept._saver._generations._queue = None


@pytest.mark.parametrize("alike", [True, False])
def test_no_digest_is_reported_of_what_no_other_rank_should_have_nor_where_it_is_switched_off(
    script: Script, alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if alike:
        monkeypatch.setenv(DIGESTS, "0")
    with script.trains() as (model, optimizer, kept):
        kept._saver.record_comparison(alike=alike)
        for step in range(9):
            train(model, optimizer)
            kept.step(step)
        assert reported() is None


@pytest.mark.usefixtures("group")
def test_no_digest_is_reported_where_ranks_may_do_different_numbers_of_steps(script: Script) -> None:
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with script.runs({"model": model, "optimizer": optimizer}) as (_, kept), model.join():
        kept._saver.record_comparison(alike=True)
        train(model, optimizer)
        kept.step(0)
        assert reported() is None


def test_parameters_and_what_training_adds_to_them_are_compared_and_what_ranks_may_have_apart_is_not(
    script: Script,
) -> None:
    model, sums, factors = network(), torch.zeros(BYTES_MAX), [torch.ones(2)]  # more sums than are kept at each step
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    objects = {"model": model, "optimizer": optimizer, "metric": Stateful({"sums": sums}), "factors": factors}
    with script.runs(objects) as (_, kept):
        train(model, optimizer)
        kept.step(0)
        weight = model.get_parameter("0.weight")
        compared = [weight, optimizer.state[weight]["momentum_buffer"], *factors]
        for changed in (*compared, model.get_buffer("1.running_mean"), sums):
            before = digest_of(kept._saver._generations.replicas())
            with torch.no_grad():
                changed[0] += 1
            is_compared = any(changed is each for each in compared)
            assert (digest_of(kept._saver._generations.replicas()) != before) is is_compared
