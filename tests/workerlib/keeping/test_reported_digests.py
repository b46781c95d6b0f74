"""The digests that a worker leaves in its slot: at which steps, and of which states."""

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from tests.support.kept_script import Script, Stateful, network, train
from tests.support.late_device import Device
from workerlib import progress
from workerlib.contract.env import DIGEST_AT, DIGEST_WORDS, DIGESTS, PROGRESS, unpack_digest
from workerlib.keeping.intervals import DIGESTS_SHARE_MAX, HEARD_S
from workerlib.keeping.plain_values import BYTES_MAX
from workerlib.keeping.tensor_digest import digest_of

pytestmark = pytest.mark.slow


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
