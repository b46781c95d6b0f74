r"""Train a small transformer on any number of workers, with the same batch in each step and so with the same losses.

    nodeclient join --coord HOST --job-id text --nnodes 1:4 --max-restarts 20 --preload torch -- \
        python examples/text.py --losses losses.jsonl

Start it on some hosts, then on more, or end some. The batch is that of all workers together, and each worker takes its
share of it in micro-batches that it has the memory for. Nothing in the script depends on how many workers there are.
docs/training-script.md shows the losses of a run on nodes that change twenty times.

The text is Python's own help, as in `help("for")`, which comes with Python: half a million letters.
"""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from pathlib import Path
from pydoc_data.topics import topics
from threading import Event

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import workerlib

LENGTH = 32
"""The letters of a sample; the network guesses each from those before it."""

WIDTH, HEADS, LAYERS = 32, 4, 2


class Transformer(nn.Module):
    """A decoder without dropout, whose random numbers would depend on the number of workers."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(letters, WIDTH)
        self.places = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.guess = nn.Linear(WIDTH, letters)
        self.register_buffer("later", torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, text: Tensor) -> Tensor:
        """Return the scores of the letters that may come next, after each letter."""
        hidden = self.layers(self.letters(text) + self.places, mask=self.later, is_causal=True)
        scores: Tensor = self.guess(hidden)
        return scores


def samples() -> TensorDataset:
    """Return the text in pieces of `LENGTH` letters, each with the letters that come next."""
    text = "\n".join(topics[name] for name in sorted(topics))
    numbers = {letter: number for number, letter in enumerate(sorted(set(text)))}
    letters = torch.tensor([numbers[letter] for letter in text])
    count = (len(letters) - 1) // LENGTH
    return TensorDataset(letters[: count * LENGTH].view(-1, LENGTH), letters[1 : count * LENGTH + 1].view(-1, LENGTH))


def train(ctx: workerlib.Context, arguments: argparse.Namespace) -> None:
    """Go on from the newest state, until all steps are done."""
    data = samples()
    torch.manual_seed(0)
    model = Transformer(int(data.tensors[0].max()) + 1).to(ctx.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    replica = DistributedDataParallel(model)
    sampler = workerlib.ElasticDistributedSampler(data, arguments.batch_size, micro=arguments.micro)
    loader = DataLoader(data, batch_sampler=sampler)
    step = max(ctx.keep(model=model, optimizer=optimizer, sampler=sampler), 0)
    for epoch in range(sampler.epoch, arguments.epochs):
        sampler.set_epoch(epoch)
        mean = torch.zeros((), device=ctx.device)
        for micro, (text, after) in zip(sampler.micro_batches(), loader, strict=True):
            with nullcontext() if micro.last else replica.no_sync():
                scores = replica(text.to(ctx.device))
                loss = cross_entropy(scores.flatten(0, 1), after.to(ctx.device).flatten()) * micro.weight
                loss.backward()  # type: ignore[no-untyped-call]
            mean += loss.detach() / ctx.world_size
            if not micro.last:
                continue
            dist.all_reduce(mean)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if arguments.losses:
                write_loss(arguments.losses, step, mean.item(), ctx.world_size)
            mean.zero_()
            sampler.advance()
            ctx.step(step)
            if step == arguments.steps:
                return
            Event().wait(arguments.pause)


def write_loss(path: Path, step: int, loss: float, workers: int) -> None:
    """Append a line for a step: each worker does, for the others may be killed before they have."""
    with path.open("a") as file:
        file.write(json.dumps({"step": step, "loss": loss, "workers": workers}) + "\n")


def main() -> None:
    """Run as one worker of the group, as long as the group stays as it is."""
    parser = argparse.ArgumentParser(description="Train a small transformer, elastically.")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, help="end after so many")
    parser.add_argument("--batch-size", type=int, default=32, help="samples of all workers together")
    parser.add_argument("--micro", type=int, default=8, help="samples that a worker takes at once")
    parser.add_argument("--pause", type=float, default=0, help="seconds after each step, to have time to disturb it")
    parser.add_argument("--double", action="store_true", help="compute in float64, which rounds less")
    parser.add_argument("--losses", type=Path, help="append one line of JSON for each step here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.double:
        torch.set_default_dtype(torch.float64)
    with workerlib.init() as ctx:
        train(ctx, arguments)


if __name__ == "__main__":
    main()
