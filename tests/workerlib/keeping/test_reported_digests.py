"""The digests that a worker leaves in its slot: at which steps, and of which states."""

import pytest

from tests.support.kept_script import Script, train
from workerlib import progress
from workerlib.contract.env import DIGEST_AT, DIGEST_WORDS, PROGRESS, unpack_digest
from workerlib.keeping.pieces import digest_of

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
        for step in range(5):
            train(model, optimizer)
            kept.step(step)
            if step in (0, 4):  # the others are not due
                assert reported() == (step, 0, digest_of(kept._saver._generations.tensors()))
        train(model, optimizer)
        found = reported()
        assert found is not None
        assert found[2] != digest_of(kept._saver._generations.tensors()), "the state of the next step is another"


def test_no_digest_is_reported_of_a_state_that_no_other_rank_should_have(script: Script) -> None:
    with script.trains() as (model, optimizer, kept):
        kept._saver.record_comparison(alike=False)
        for step in range(9):
            train(model, optimizer)
            kept.step(step)
        assert reported() is None
