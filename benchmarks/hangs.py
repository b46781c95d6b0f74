"""Hangs real trainings in eight ways, and counts how often the right worker is named, and how soon.

python -m benchmarks.hangs --repeat 20 --json hangs.json
python -m benchmarks.hangs --repeat 20 --json hangs.json --resume
python -m benchmarks.hangs --calm 30

Each round of a job is one hang: it is found, named and restarted, and the next one hangs in the next way. The report is
written after each, so `--resume` goes on where a run was interrupted. With `--calm` nobody hangs, and a worker that is
named is a false alarm. README.md beside this file explains the figures.
"""

import argparse
import json
import re
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from hangs_training import HANGS, hang_of
from tables import BenchmarkError, Table, add_flags, errors_in_one_line, positive, spread, write_report

from coordinatord.core.watching.look_comparison import APART_S
from tests.support.cluster import Cluster, Coordinator
from tests.support.programs import BIN, run, wait_until

TRAINING = Path(__file__).with_name("hangs_training.py")

JOB = "benchmark"

SEED = 1

RESTARTS = "100000"
"""More than there are rounds: each hang is charged."""

NAMED_WITHIN_S = 300.0
"""A bound for one round, so that a benchmark of something broken ends."""

NOTICED = {"loop", "gil", "disk"}
"""Who hangs in these ways computes, as far as anybody can see, or waits for a disk: it is noticed, and let alone."""

NAMES = re.compile(r"ranks? \d[^:]* on nodes? [^;]*?(is|are|stands?|computes?|waits?|does|do) ")
"""How the sentence begins that names a worker which others wait for."""

PROMISED_S = 1.0
"""A report comes at most so long after the alarm, which is two looks a second apart."""


EVENTS = 100
"""The last events, among which those of the present round are."""


class Answer(StrEnum):
    """Whom a round names."""

    RIGHT = "right"
    WRONG = "wrong"
    """Another worker."""
    NOBODY = "nobody"
    """No worker, in time, or the round has ended for another reason."""


@dataclass(frozen=True, slots=True)
class Hang:
    """One round, and what was said of it."""

    kind: str
    culprit: int
    layout: str
    """Nodes x workers on each, such as `2x2`."""
    sentence: str
    answer: Answer
    stalled_s: float
    """The time from the event of the stall to the sentence: two looks, which are a second apart."""


@contextmanager
def running_job(layout: str, training: Path, words: Sequence[str], *flags: str) -> Iterator[Cluster]:
    """Run a job of so many nodes with so many workers each, which run a training with these words."""
    nodes, workers = sizes_of(layout)
    command = (sys.executable, "-W", "ignore", str(training), *words)
    size = ("--nnodes", str(nodes), "--nproc-per-node", str(workers))
    with Coordinator() as coordinator:
        cluster = Cluster(coordinator, JOB)
        try:
            for number in range(nodes):
                cluster.join(f"n{number}", *size, "--preload", "torch", "--stop-timeout", "1", *flags, command=command)
            yield cluster
        finally:
            for node in cluster.nodes:
                node.close()


@contextmanager
def hanging_job(kinds: list[str], seed: int, layout: str, *flags: str) -> Iterator[Cluster]:
    """Run a job whose rounds hang in these ways in turn."""
    with tempfile.TemporaryDirectory() as folder:
        words = (str(seed), folder, *kinds)
        with running_job(layout, TRAINING, words, "--max-restarts", RESTARTS, *flags) as cluster:
            yield cluster


def sizes_of(layout: str) -> tuple[int, int]:
    """Return how many nodes a layout has, and how many workers each."""
    nodes, workers = map(int, layout.split("x"))
    return nodes, workers


def missing(kinds: list[str], repeat: int, done: list[Hang]) -> list[str]:
    """Return the kinds of hang that are still to happen, one after the other in turn."""
    known = Counter(hang.kind for hang in done)
    return [kind for times in range(repeat) for kind in kinds if known[kind] <= times]


def measure(kinds: list[str], seed: int, layout: str, *flags: str) -> Iterator[Hang]:
    """Let these hangs happen, one in each round."""
    nodes, workers = sizes_of(layout)
    with hanging_job(kinds, seed, layout, *flags) as cluster:
        for number in range(1, len(kinds) + 1):
            kind, culprit = hang_of(seed, kinds, number, nodes * workers)
            named = _await_named(cluster, number, notices=kind in NOTICED)
            if named is None:
                yield Hang(kind, culprit, layout, "nobody is named", Answer.NOBODY, NAMED_WITHIN_S)
            else:
                sentence = named["reason"].removeprefix("waiting for ")
                answer = judge(sentence, f"rank {culprit} on node n{culprit // workers}")
                yield Hang(kind, culprit, layout, sentence, answer, _after_stall(cluster, named["at"]))
            if named is None or named["kind"] == "BusyWorkerAwaited":
                run(BIN / "nodeclient", "restart", JOB, "--coord", cluster.coordinator.endpoint)


def judge(sentence: str, culprit: str) -> Answer:
    """Return whether a sentence names the culprit, such as `rank 1 on node n1`, alone and first.

    In a notice a comma follows the name: `rank 1 on node n1, which computes in ...`.
    """
    if NAMES.match(sentence) is None:
        return Answer.NOBODY
    return Answer.RIGHT if sentence.startswith((f"{culprit} ", f"{culprit}, which ")) else Answer.WRONG


def _after_stall(cluster: Cluster, at: float) -> float:
    """Return how long after the last stall before it this was; 0 if there was none."""
    stalls: list[float] = [event["at"] for event in _events(cluster) if event["kind"] == "TrainingStalled"]
    return at - max((stall for stall in stalls if stall <= at), default=at)


def _await_named(cluster: Cluster, number: int, *, notices: bool) -> dict[str, Any] | None:
    """Return the event that names a worker of a round: its end, or a notice that may come instead; None for neither.

    On a busy machine one that stands may be noticed before its round ends.
    """
    kinds = {"RoundStopped", "BusyWorkerAwaited"} if notices else {"RoundStopped"}

    def look() -> dict[str, Any] | None:
        events = _events(cluster)
        formed = [event["at"] for event in events if (event["kind"], event["round"]) == ("RoundFormed", number)]
        named = (event for event in events if formed and event["kind"] in kinds and event["at"] >= formed[0])
        return next(named, None)

    with suppress(AssertionError):  # nobody is named in time
        return wait_until(f"who hangs in round {number}", look, NAMED_WITHIN_S)
    return None


def _events(cluster: Cluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.coordinator.get(f"/v1/events?last={EVENTS}")["events"]
    return found


def stay_calm(minutes: float, layout: str, *flags: str) -> tuple[list[str], list[str], int]:
    """Train without a hang; return the false alarms, the notices, and the last step. Raises `BenchmarkError`."""
    with hanging_job(["none"], SEED, layout, *flags) as cluster:
        threading.Event().wait(60 * minutes)
        events = _events(cluster)
        job = cluster.coordinator.job(JOB)
        if job is None or job["state"] != "running":
            raise BenchmarkError(f"the training has ended: {'no job' if job is None else job['reason']}")
    alarms = [event["reason"] for event in events if event["kind"] == "RoundStopped"]
    notices = [event["reason"] for event in events if event["kind"] == "BusyWorkerAwaited"]
    return alarms, notices, job["progress"]["step"] or 0


def table(hangs: list[Hang], layout: str) -> Table:
    """Return the figures of one layout."""
    nodes, workers = sizes_of(layout)
    title = f"{nodes} nodes, {workers} worker{'s' * (workers > 1)} on each"
    shown = Table(title, *Answer, f"reported within {PROMISED_S:g} s", "reported, s", "from the stall, s")
    for kind in dict.fromkeys(hang.kind for hang in hangs):
        own = [hang for hang in hangs if hang.kind == kind]
        stalled = [hang.stalled_s for hang in own if hang.answer is Answer.RIGHT]
        reported = [seconds - APART_S for seconds in stalled]
        shown.add(
            kind,
            *(f"{sum(hang.answer is answer for hang in own)} of {len(own)}" for answer in Answer),
            f"{sum(seconds <= PROMISED_S for seconds in reported)} of {len(reported)}",
            spread(reported, ".2f"),
            spread(stalled, ".2f"),
        )
    return shown


def read_report(path: Path | None) -> list[Hang]:
    """Return the hangs of a report; none if there is no such file. Raises `BenchmarkError`."""
    if path is None:
        raise BenchmarkError("--resume goes on with a report: name it by --json")
    if not path.exists():
        return []
    try:
        runs = json.loads(path.read_text())["runs"]
        return [Hang(**{**hang, "answer": Answer(hang["answer"])}) for hang in runs]
    except (ValueError, KeyError, TypeError) as error:
        raise BenchmarkError(f"{path} is no report of this benchmark: {error}") from error


def add_to(hangs: list[Hang], layout: str, options: argparse.Namespace, *flags: str) -> None:
    """Let those hangs of a layout happen that are missing; print and write each of them at once."""
    own = [hang for hang in hangs if hang.layout == layout]
    kinds = missing(options.kinds.split(","), options.repeat, own)
    for hang in measure(kinds, SEED + len(own), layout, *flags) if kinds else ():
        hangs.append(hang)
        write_report(options.json, "hangs", [asdict(each) for each in hangs])
        judged = "right" if hang.answer is Answer.RIGHT else f"{hang.answer}, it is rank {hang.culprit}"
        print(f"  {layout}, {hang.kind}, {judged}, {hang.stalled_s:.2f} s: {hang.sentence}", flush=True)


def main() -> None:
    """Measure, and print a table for each layout."""
    parser = argparse.ArgumentParser(prog="hangs", description="Hang trainings, and see who is named.")
    add_flags(parser, repeat=3)
    parser.add_argument("--resume", action="store_true", help="add to the report of --json what it lacks")
    parser.add_argument("--kinds", default=",".join(HANGS), help="which, separated by commas (default: all)")
    parser.add_argument("--layouts", default="3x1,2x2", help="nodes x workers on each (default: 3x1,2x2)")
    parser.add_argument("--hang-timeout", metavar="S", help="as of nodeclient (default: by the run's own steps)")
    parser.add_argument("--calm", type=positive, metavar="MINUTES", help="train without a hang for so long instead")
    options = parser.parse_args()
    flags = ("--hang-timeout", options.hang_timeout) if options.hang_timeout else ()
    try:
        with errors_in_one_line("hangs"):
            hangs = read_report(options.json) if options.resume else []
            for layout in options.layouts.split(","):
                if options.calm:
                    alarms, notices, step = stay_calm(options.calm, layout, *flags)
                    print(f"{options.calm} minutes, {step} steps: {len(alarms)} false alarms, {len(notices)} notices")
                    print("".join(f"  {alarm}\n" for alarm in alarms), end="", flush=True)
                else:
                    add_to(hangs, layout, options, *flags)
                    print(table([hang for hang in hangs if hang.layout == layout], layout), flush=True)
    except KeyboardInterrupt:
        sys.exit("hangs: interrupted; with --json and --resume it goes on")


if __name__ == "__main__":
    main()
