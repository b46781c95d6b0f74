"""Hydra: one folder for a run of the job, whatever its rounds; a sweep trains one setting after the other.

    nodeclient join --standalone --nproc-per-node 2 -- python hydra_app.py
    nodeclient join --standalone --nproc-per-node 2 -- python hydra_app.py --multirun learning_rate=0.01,0.02

hydra_app.yaml beside it has the settings. Leave the launcher of sweeps as it is (`basic`): any other one starts
processes that are no workers.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import workerlib


def main() -> None:
    """Be one of the workers. The process group is made once, for all settings of a sweep."""
    with workerlib.init() as ctx:

        @hydra.main(version_base="1.3", config_path=".", config_name="hydra_app")
        def run(settings: Any) -> None:
            train(ctx, settings, Path(HydraConfig.get().runtime.output_dir) / "model.pt")

        run()


def train(ctx: workerlib.Context, settings: Any, path: Path) -> None:
    """Go on from the checkpoint, until all steps are done or the workers are asked to stop."""
    log = logging.getLogger(__name__)
    job = HydraConfig.get().job
    steps_before = 0 if OmegaConf.is_missing(job, "num") else job.num * settings.steps
    model = nn.Linear(1, 1).to(ctx.device)
    step = 0
    if path.exists():
        saved = torch.load(path, map_location=ctx.device, weights_only=True)
        model.load_state_dict(saved["model"])
        step = saved["step"]
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.learning_rate)
    if ctx.rank == 0:
        log.info("%s goes on after step %d with %d workers", path.parent.name, step, ctx.world_size)

    ctx.should_stop()
    while step < settings.steps:
        x = torch.randn(16, 1, device=ctx.device)
        loss = mse_loss(replica(x), 3 * x + 2)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        step += 1
        ctx.step(steps_before + step)
        stopping = step % 10 == 0 and ctx.should_stop()
        if ctx.rank == 0 and (stopping or step % 100 == 0):
            torch.save({"model": model.state_dict(), "step": step}, path.with_suffix(".unfinished"))
            path.with_suffix(".unfinished").replace(path)
        if stopping:
            sys.exit()  # not `return`, after which a sweep would begin with its next setting
    log.info("done after step %d", step)


if __name__ == "__main__":
    main()
