"""accelerate, and the Trainer of transformers, under nodeclient."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integrations.conftest import Train, check_order, need

pytestmark = need("accelerate", "transformers")


@pytest.mark.parametrize("kept", [True, False], ids=["from memory", "from checkpoints"])
def test_accelerate(train: Train, tmp_path: Path, kept: bool) -> None:
    flags = () if kept else ("--keep-memory", "0")
    job = train("accelerate_loop.py", "--checkpoints", tmp_path, preload="accelerate", flags=flags)
    job.break_twice(kept=kept)
    job.finish()
    assert "done after step 2000" in job.output


def test_a_killed_node_does_not_change_the_order_of_the_data(train: Train, tmp_path: Path) -> None:
    check_order(train, tmp_path, "accelerate_loop.py", 300, "accelerate")


def test_trainer(train: Train, tmp_path: Path) -> None:
    modules = "transformers.trainer,transformers.models.gpt2.modeling_gpt2"
    job = train("transformers_trainer.py", "--checkpoints", tmp_path, preload=modules)
    job.break_twice()
    job.finish()
    assert "done after step 1500" in job.output


def test_a_checkpoint_that_was_being_written_is_passed_over(tmp_path: Path) -> None:
    from workerlib.integrations.transformers import last_checkpoint  # noqa: PLC0415  # transformers may be missing

    assert last_checkpoint(tmp_path) is None
    assert last_checkpoint(tmp_path / "missing") is None
    for step, content in ((90, "{}"), (100, "{}"), (200, "{"), (300, None), (400, "{}")):
        checkpoint = tmp_path / f"checkpoint-{step}"
        checkpoint.mkdir()
        if content is not None:
            (checkpoint / "trainer_state.json").write_text(content)
    (tmp_path / "checkpoint-400" / "checkpoint-is-incomplete.txt").touch()
    for copy in ("checkpoint-final", "checkpoint-500-best"):
        (tmp_path / copy).mkdir()
        (tmp_path / copy / "trainer_state.json").write_text("{}")
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-100")


def test_workers_that_do_not_see_each_other_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library takes each worker of a host without GPUs for the only one, unless `use_cpu=True` is set."""
    from transformers import TrainerControl, TrainerState, TrainingArguments  # noqa: PLC0415  # may be missing

    from workerlib.integrations.transformers import ElasticTrainerCallback  # noqa: PLC0415  # as above

    monkeypatch.setenv("WORLD_SIZE", "2")
    alone = TrainingArguments(str(tmp_path))
    with pytest.raises(RuntimeError, match=r"sees 1 of the 2 workers.*use_cpu=True"):
        ElasticTrainerCallback().on_init_end(alone, TrainerState(), TrainerControl())
