"""Train a small convolutional network on handwritten digits, on however many workers there are.

    nodeclient join --coord HOST --job-id digits -- python examples/digits.py --checkpoint digits.pt

Workers may come and go while it trains. Three habits make that harmless, and a script needs no more
to be elastic:

* The batch is global. Its size is fixed and each worker takes a share of it, so a step has the same
  result on two workers as on five, except for the rounding of sums.
* The checkpoint holds everything that the next step depends on: model, optimizer and the number of steps.
  The epoch, the place in it and the order of the images follow from that number.
* It is written often, and right before a planned end. A new run goes on from it: rank 0 reads it and
  sends it to the others. On a shared disk it outlives rank 0's host, too.

Within a run nothing is read from the disk, and no step is lost: `ctx.keep` keeps the same state in the
memory of the nodes, as of the last step, and the next round goes on from there. With `--persist DIR`
the nodes write it to a disk as well, and a new run goes on from that.

The data are 1,797 images of 8 x 8 pixels that come inside the scikit-learn package.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import workerlib

SEED = 0
TEST_IMAGES = 360
STEPS_PER_CHECKPOINT = 10


def main() -> None:
    """Run as one worker of the group, as long as the group stays as it is."""
    parser = argparse.ArgumentParser(description="Train on handwritten digits, elastically.")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=64, help="images of all workers together")
    parser.add_argument("--checkpoint", type=Path, default=Path("digits.pt"))
    parser.add_argument("--progress", type=Path, help="append one line of JSON for each step here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with workerlib.init() as ctx:
        train(ctx, arguments)


def train(ctx: workerlib.Context, arguments: argparse.Namespace) -> None:
    """Go on from the newest state, until all epochs are done or the workers are asked to stop."""
    images, labels, *test = load_images(ctx.device)
    torch.manual_seed(SEED)
    model = make_model().to(ctx.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    steps, source = ctx.keep(model=model, optimizer=optimizer), "what was kept"
    if steps < 0:
        steps, source = restore(ctx, arguments.checkpoint, model, optimizer), str(arguments.checkpoint)
    replica = DistributedDataParallel(model)
    batches = math.ceil(len(images) / arguments.batch_size)
    if steps:
        log(ctx, f"goes on after step {steps} of {arguments.epochs * batches}, from {source}")
    if steps >= arguments.epochs * batches:
        log(ctx, f"all steps are done: remove {source} to train anew")

    while steps < arguments.epochs * batches:
        epoch, place = divmod(steps, batches)
        start = place * arguments.batch_size
        batch = shuffled(len(images), epoch)[start : start + arguments.batch_size]
        share = batch[ctx.rank :: ctx.world_size]
        loss = cross_entropy(replica(images[share]), labels[share], reduction="sum")
        optimizer.zero_grad()
        # DDP averages over the workers, whose shares may differ in size: this turns it into the average over the images
        # of the batch.
        loss = loss * ctx.world_size / len(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        steps += 1
        ctx.step(steps)

        write_progress(ctx, arguments.progress, steps, epoch)
        if (ends := ctx.should_checkpoint()) or steps % STEPS_PER_CHECKPOINT == 0:
            save(ctx, arguments.checkpoint, model, optimizer, steps)
            if ends:
                log(ctx, f"asked to end: saved after step {steps}")
            ctx.checkpointed(steps)  # a worker that is asked to end does so here
        if steps % batches == 0:
            test_loss, accuracy = evaluate(ctx, model, *test)
            group = f"round {ctx.round} world size {ctx.world_size}"
            log(ctx, f"epoch {epoch + 1} {group} loss {test_loss:.4f} accuracy {accuracy:.3f}")

    save(ctx, arguments.checkpoint, model, optimizer, steps)
    _, accuracy = evaluate(ctx, model, *test)
    log(ctx, f"accuracy {accuracy:.4f}")


def load_images(device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Load training images and their labels, then those to test with: the same split everywhere."""
    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.get_default_dtype(), device=device)
    labels = torch.tensor(digits.target, device=device)
    order = shuffled(len(images), epoch=0)
    test, training = order[:TEST_IMAGES], order[TEST_IMAGES:]
    images = images.unsqueeze(dim=1)  # one channel, grey
    return images[training], labels[training], images[test], labels[test]


def make_model() -> nn.Module:
    """Build the network. It has no dropout, whose random numbers would depend on the number of workers."""
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def shuffled(count: int, epoch: int) -> Tensor:
    """Return the indices up to `count` in an order that depends only on the epoch."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(SEED + epoch))


def evaluate(ctx: workerlib.Context, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return loss and accuracy over the test images; each worker evaluates its share."""
    share = slice(ctx.rank, None, ctx.world_size)
    with torch.no_grad():
        output = model(images[share])
    loss = cross_entropy(output, labels[share], reduction="sum")
    correct = (output.argmax(dim=1) == labels[share]).sum()
    sums = torch.stack([loss, correct])
    dist.all_reduce(sums)
    mean_loss, accuracy = (sums / len(images)).tolist()
    return mean_loss, accuracy


def save(ctx: workerlib.Context, path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Have rank 0 replace the checkpoint, atomically."""
    if ctx.rank != 0:
        return
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "steps": steps}
    unfinished = path.with_name(f"{path.name}.unfinished")
    with unfinished.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def restore(ctx: workerlib.Context, path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load rank 0's checkpoint on all workers, and return the steps done: 0 if there is none."""
    content = [path.read_bytes() if ctx.rank == 0 and path.exists() else b""]
    dist.broadcast_object_list(content, src=0, device=ctx.device)
    if not content[0]:
        return 0
    state = torch.load(io.BytesIO(content[0]), map_location=ctx.device, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    steps: int = state["steps"]
    return steps


def write_progress(ctx: workerlib.Context, path: Path | None, steps: int, epoch: int) -> None:
    """Have rank 0 append a line for a step, from which pauses are measured."""
    if ctx.rank != 0 or path is None:
        return
    line = {
        "step": steps,
        "epoch": epoch,
        "round": ctx.round,
        "world_size": ctx.world_size,
        "monotonic_s": time.monotonic(),
    }
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def log(ctx: workerlib.Context, text: str) -> None:
    """Print a line, once for the whole group."""
    if ctx.rank == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
