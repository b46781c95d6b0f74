"""torchtitan's trainer, with that of workerlib in front, on two nodes without GPUs: see `titan_on_cpu`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.integrations.conftest import EXAMPLES, Training, need
from tests.support.cluster import Cluster

pytestmark = need("torchtitan", "triton")

ON_CPU = Path(__file__).with_name("titan_on_cpu.py")

STEPS = 240

EVERY = 20

WORDS = [f"w{number}" for number in range(500)]


def test_trainer(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_data(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    flags = {
        "--module": "titan_config",
        "--config": "debug",
        "--dump_folder": tmp_path / "out",
        "--hf_assets_path": tmp_path / "tokenizer",
        "--dataloader.dataset_path": tmp_path / "texts",
        "--training.local_batch_size": 1,
        "--training.seq_len": 16,
        "--training.steps": STEPS,
        "--parallelism.spmd_backend": "partial_dtensor",  # the other ones need a later torch
        "--parallelism.fsdp_reshard_after_forward": "never",  # fewer collectives, which are slow here
        "--checkpoint.interval": EVERY,
        "--metrics.log_freq": 100,
    }
    words = [str(word) for flag in flags.items() for word in flag]
    words += ["--checkpoint.enable", "--training.disable_cuda_graphs"]
    job = Training(cluster, ("--preload", "torch.distributed.fsdp"), (sys.executable, str(ON_CPU), *words))
    job.break_twice(EVERY, r"Training starts at step (\d+)", ahead=1)
    job.await_step(3, STEPS // 2)
    job.finish()
    assert (tmp_path / "out" / "checkpoint" / f"step-{STEPS}" / ".metadata").exists()


def make_data(folder: Path) -> None:
    """Write a tokenizer and texts."""
    from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: PLC0415  # may be missing

    tokens = {word: number for number, word in enumerate(["<bos>", "<eos>", "<unk>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(tokens, unk_token="<unk>"))  # noqa: S106  # no password
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    (folder / "tokenizer").mkdir()
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    special = {"bos_token": "<bos>", "eos_token": "<eos>"}
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(special))
    (folder / "texts").mkdir()
    texts = (" ".join((WORDS * 2)[start : start + 200]) for start in range(300))
    (folder / "texts" / "data.json").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
