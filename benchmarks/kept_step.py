"""Times what keeping state costs while nothing breaks: `ctx.step`, whole small steps, and a save beside a bare copy.

python -m benchmarks.kept_step

It starts `nodeclient join --standalone` with itself as the script. Two workers have the same state, which is saved only
when a round breaks; a single worker saves at an interval, here at each step that finds a place. Bare copies are made in
turn with the steps, so that both meet the same load. Before that the two train, and the digests that they make of the
state since the beginning of the round are timed. A whole step of a small network, without keep and with it, shows
what the hooks in forward and before the optimizer cost as well: it is timed on the processor, beside nothing else.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from threading import Event

import torch
from tables import BenchmarkError, Table, add_flags, positive, runs_words, spread, write_report
from torch import nn

import workerlib
from tests.support.programs import BIN, clean_environ
from workerlib.contract.arena import GENERATIONS
from workerlib.keeping import intervals

WIDTH = 512
"""A layer of this width has a megabyte of parameters."""

STEPS = 240
"""The steps with a pause after each; as many follow without."""

SMALL_WIDTH = 32

SMALL_LAYERS = 20

MEMORY_S = 5.0
"""The time for the node to make its memory, between the first step that is kept and those that are timed."""

BATCH = 64

WITHIN_S = 300


@dataclass(frozen=True, slots=True)
class Costs:
    """Medians of one run, in seconds."""

    step_s: float
    loop_s: float
    """A step right after that of the optimizer."""
    save_s: float
    """A save at an interval, of a single worker; 0 for others."""
    copy_s: float
    """A bare copy of the same tensors, into memory that was touched before."""
    train_s: float
    """A whole step while digests are timed."""
    digests: float
    """How many digests were made meanwhile; 0 by a single worker."""
    digests_share: float
    """The part of that time that they took."""


@dataclass(frozen=True, slots=True)
class StepCosts:
    """The processor's time of a whole step of a small network, in seconds: of those steps that others disturb least."""

    bare_s: float
    kept_s: float


def work(megabytes: int, seconds: float, count: int) -> None:
    """Measure, as a worker, digests for some seconds, so many steps with a pause after each, and as many without."""
    torch.set_num_threads(1)
    torch.manual_seed(0)  # otherwise each rank has a state of its own
    intervals.SHARE_MAX = 1e9
    saves, digests = note_saves(), note_digests()
    with workerlib.init() as ctx:
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(max(1, megabytes // 2))))
        optimizer = torch.optim.SGD(model.parameters(), 1e-3, 0.9)
        ctx.keep(model=model, optimizer=optimizer)

        def train() -> None:
            optimizer.zero_grad()
            model(torch.randn(BATCH, WIDTH)).square().mean().backward()
            optimizer.step()
            ctx.step(len(trained))

        trained, began_at = list[float](), time.perf_counter()
        while not trained or (ctx.world_size > 1 and time.perf_counter() < began_at + seconds):
            trained.append(timed(train))
        digested = len(digests), sum(digests) / (time.perf_counter() - began_at)
        tensors = [tensor.detach() for tensor in model.parameters()]
        tensors += [state["momentum_buffer"] for state in optimizer.state.values()]
        copies = [tensor.clone() for tensor in tensors]
        pause, steps, loop, bare = Event(), [], [], []
        for step in range(2 * count):
            optimizer.step()  # what no optimizer has changed is no new state
            took_s = timed(lambda: ctx.step(len(trained) + step))  # noqa: B023 - it is called at once
            if step < count:  # meanwhile the node makes the memory, and the coordinator says what may go
                steps.append(took_s)
                pause.wait(0.05)
                bare.append(timed(lambda: torch._foreach_copy_(copies, tensors)))
            else:
                loop.append(took_s)
        if ctx.world_size == 1 and not saves:
            raise BenchmarkError("no step was saved at an interval")
        if ctx.rank == 0:
            medians = map(statistics.median, (steps, loop, saves or [0.0], bare, trained))
            print(json.dumps(asdict(Costs(*[*medians, *digested]))), flush=True)


def note_saves() -> list[float]:
    """Return a list of what saves at an interval take, which grows with each: most steps find no place and make none.

    The first copy into new memory is not among them.
    """
    saves: list[float] = []
    record_save = intervals.SaveInterval.record_save
    places: list[float] = []

    def note(self: intervals.SaveInterval, seconds: float) -> None:
        (saves if len(places) == GENERATIONS else places).append(seconds)
        record_save(self, seconds)

    intervals.SaveInterval.record_save = note  # type: ignore[method-assign]  # to listen
    return saves


def note_digests() -> list[float]:
    """Return a list of what digests of the state take, which grows with each."""
    digests: list[float] = []
    record = intervals.DigestInterval.record

    def note(self: intervals.DigestInterval, step: int, seconds: float, now: float) -> None:
        digests.append(seconds)
        record(self, step, seconds, now)

    intervals.DigestInterval.record = note  # type: ignore[method-assign]  # to listen
    return digests


def work_small(norms: bool, count: int) -> None:
    """Measure, as a worker, whole steps of a small network before it is kept and after."""
    torch.set_num_threads(1)
    with workerlib.init() as ctx:
        layers = [nn.Linear(SMALL_WIDTH, SMALL_WIDTH) for _ in range(SMALL_LAYERS)]
        model = nn.Sequential(
            *(nn.Sequential(layer, nn.BatchNorm1d(SMALL_WIDTH)) if norms else layer for layer in layers)
        )
        optimizer = torch.optim.SGD(model.parameters(), 1e-3, 0.9)
        given = torch.randn(8, SMALL_WIDTH)

        def train() -> None:
            optimizer.zero_grad()
            model(given).square().mean().backward()
            optimizer.step()

        def step_of(step: int) -> None:
            train()
            ctx.step(step)

        bare = [timed(train, time.thread_time) for _ in range(count)]
        ctx.keep(model=model, optimizer=optimizer)
        step_of(0)
        Event().wait(MEMORY_S)
        kept = [timed(lambda: step_of(step), time.thread_time) for step in range(1, count)]  # noqa: B023 - as above
        if ctx.rank == 0:
            print(json.dumps(asdict(StepCosts(undisturbed(bare), undisturbed(kept)))), flush=True)


def undisturbed(seconds: Sequence[float]) -> float:
    """Return what nine of ten take at least: bare steps and kept ones are timed seconds apart, under another load."""
    return statistics.quantiles(seconds, n=10)[0]


def timed(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return how long a call takes."""
    began_at = clock()
    call()
    return clock() - began_at


def measure(workers: int, *flags: str) -> dict[str, float]:
    """Run a node; return what its first worker has measured. Raises `BenchmarkError`."""
    node = (str(BIN / "nodeclient"), "join", "--standalone", "--nproc-per-node", str(workers))
    script = (sys.executable, "-m", "benchmarks.kept_step", *flags)
    command = (*node, "--", *script)
    ended = subprocess.run(command, env=clean_environ(), capture_output=True, text=True, timeout=WITHIN_S, check=False)  # noqa: S603 - ours
    found = [line[line.index("{") :] for line in ended.stdout.splitlines() if '_s":' in line]
    if ended.returncode or not found:
        raise BenchmarkError(f"a node ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    measured: dict[str, float] = json.loads(found[0])
    return measured


def main() -> None:
    """Run as the flags say."""
    parser = argparse.ArgumentParser(prog="kept_step", description="Time what keeping state costs each step.")
    parser.add_argument("--megabytes", type=positive, default=100, help="of state (default: 100)")
    parser.add_argument("--steps", type=positive, default=STEPS, help=f"of each kind (default: {STEPS})")
    parser.add_argument(
        "--seconds", type=float, default=40, help="of training in which digests are timed (default: 40)"
    )
    parser.add_argument("--worker", choices=["big", "small", "norms"], help=argparse.SUPPRESS)
    add_flags(parser, repeat=3)
    options = parser.parse_args()
    if options.worker == "big":
        work(options.megabytes, options.seconds, options.steps)
        return
    if options.worker:
        work_small(options.worker == "norms", options.steps)
        return
    size = ["--worker", "big", "--megabytes", str(options.megabytes), "--steps", str(options.steps)]
    size += ["--seconds", str(options.seconds)]
    alike = [Costs(**measure(2, *size)) for _ in range(options.repeat)]
    alone = [Costs(**measure(1, *size)) for _ in range(options.repeat)]
    small = {
        kind: [StepCosts(**measure(2, "--worker", kind, "--steps", str(options.steps))) for _ in range(options.repeat)]
        for kind in ("small", "norms")
    }
    table = Table(runs_words(options.repeat), f"{options.megabytes} MB")
    table.add("a step of the training, ms", spread([run.train_s * 1e3 for run in alike], ".1f"))
    table.add(f"digests in its first {options.seconds:g} s", spread([run.digests for run in alike], ".0f"))
    table.add("their part of the time, %", spread([run.digests_share * 100 for run in alike], ".2f"))
    table.add("ctx.step, state that other ranks have too, us", spread([run.loop_s * 1e6 for run in alike], ".0f"))
    table.add("the same, 50 ms after the one before", spread([run.step_s * 1e6 for run in alike], ".0f"))
    for kind, words in (("small", "without buffers"), ("norms", "with batch norms")):
        table.add(
            f"a whole small step {words}, us of a processor", spread([run.bare_s * 1e6 for run in small[kind]], ".0f")
        )
        table.add("the same, kept", spread([run.kept_s * 1e6 for run in small[kind]], ".0f"))
    table.add("a save at an interval, ms", spread([run.save_s * 1e3 for run in alone], ".1f"))
    table.add("bare copy of the same tensors, ms", spread([run.copy_s * 1e3 for run in alone], ".1f"))
    table.add("a save, as bare copies", spread([run.save_s / run.copy_s for run in alone], ".2f"))
    print(table)
    runs: list[Costs | StepCosts] = [*alike, *alone, *small["small"], *small["norms"]]
    write_report(options.json, "kept_step", [asdict(run) for run in runs])


if __name__ == "__main__":
    main()
