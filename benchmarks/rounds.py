"""What processes hold that take part in many rounds: their memory, threads and descriptors stay as they are.

python -m benchmarks.rounds --rounds 500

A job of two nodes on this machine is asked for another round as soon as all its workers have done a step. README.md
beside this file explains the figures.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from tables import BenchmarkError, Table, add_flags, errors_in_one_line, positive, runs_words, spread, write_report

from tests.support.cluster import Cluster, Coordinator
from tests.support.programs import TIMEOUT_S

TRAINING = Path(__file__).with_name("rounds_training.py")

JOB = "rounds"

NODES = ("a", "b")

FLAGS = ("--nnodes", str(len(NODES)), "--preload", "torch", "--abort-timeout", "60", "--stop-timeout", "60")
"""However busy the machine is, nobody is ended because it is late."""

SETTLED_AFTER = 10
"""The rounds in which a process takes what it needs once."""

LOOK_AGAIN_S = 0.02


@dataclass(frozen=True, slots=True)
class Held:
    """What a process held in one of its rounds."""

    round: int
    at: float
    """Its own clock, in seconds; all processes of a host share it."""
    own_kib: int
    """Memory that no file is behind."""
    threads: int
    descriptors: int


@dataclass(frozen=True, slots=True)
class Beside:
    """What a program beside the workers held in one round."""

    program: str
    own_kib: int
    threads: int
    descriptors: int

    @classmethod
    def of(cls, program: str, pid: int) -> Beside:
        """Look at a process."""
        place = Path("/proc", str(pid))
        status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
        descriptors = len(list((place / "fd").iterdir()))
        return cls(program, int(status["RssAnon"].split()[0]), int(status["Threads"]), descriptors)


@dataclass(frozen=True, slots=True)
class Run:
    """One job."""

    rounds: int
    seconds: float
    """The time from a round to the next one: half of the gaps are shorter."""
    processes: int
    """The number of processes: that of the workers, if all rounds were begun in place."""
    first_kib: int
    """The memory of a process when it had settled, on average."""
    last_kib: int
    threads: list[int]
    """The least that all processes had once they had settled, in the first half of their rounds and in the second.

    Threads and connections of the round before may still be about to end, so the most tells little.
    """
    descriptors: list[int]
    beside_first: list[Beside]
    """The coordinator and the nodeclients when the workers had settled."""
    beside_last: list[Beside]


def measure(rounds: int) -> Run:
    """Run a job through so many rounds. Raises `BenchmarkError`."""
    with tempfile.TemporaryDirectory(prefix="rounds-") as name:
        folder = Path(name)
        with Coordinator() as coordinator, Cluster(coordinator, JOB) as cluster:
            for node in NODES:
                cluster.join(node, *FLAGS, command=(sys.executable, str(TRAINING), str(folder)))
            beside = []
            for number in range(1, rounds + 1):
                _await_round(cluster, folder, number)
                if number in {_settled_after(rounds), rounds}:
                    beside.append(_beside(cluster))
                if number < rounds:
                    _ask_for_another(coordinator)
            return _summary(_read(folder), rounds, beside)


def _settled_after(rounds: int) -> int:
    return min(SETTLED_AFTER, rounds // 2)


def _beside(cluster: Cluster) -> list[Beside]:
    programs = {"coordinator": cluster.coordinator.pid} | {f"node {node.name}": node.pid for node in cluster.nodes}
    return [Beside.of(program, pid) for program, pid in programs.items()]


def _ask_for_another(coordinator: Coordinator) -> None:
    body = json.dumps({"by": "benchmark", "reason": "the next round"}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{coordinator.url}/v1/jobs/{JOB}/restart", body, headers)  # noqa: S310 - http
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310 - as above
        answer.read()


def _await_round(cluster: Cluster, folder: Path, number: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while sum(held[-1].round >= number for held in _read(folder).values()) < len(NODES):
        if any(node.process.poll() is not None for node in cluster.nodes) or time.monotonic() > deadline:
            said = "\n".join(node.output for node in cluster.nodes)
            raise BenchmarkError(f"round {number} does not train:\n{said}")
        threading.Event().wait(LOOK_AGAIN_S)


def _read(folder: Path) -> dict[int, list[Held]]:
    """Return what each process that has noted anything held, by its id."""
    files = {int(file.stem): file.read_text() for file in folder.glob("*.jsonl")}
    lines = {pid: text[: text.rfind("\n") + 1].splitlines() for pid, text in files.items()}
    return {pid: [Held(**json.loads(line)) for line in found] for pid, found in lines.items() if found}


def _summary(processes: dict[int, list[Held]], rounds: int, beside: Sequence[list[Beside]]) -> Run:
    settled = [[sample for sample in held if sample.round > _settled_after(rounds)] for held in processes.values()]
    settled = [held for held in settled if held]
    gaps = [after.at - before.at for held in settled for before, after in pairwise(held)]
    return Run(
        rounds=rounds,
        seconds=median(gaps),
        processes=len(processes),
        first_kib=sum(held[0].own_kib for held in settled) // len(settled),
        last_kib=sum(held[-1].own_kib for held in settled) // len(settled),
        threads=_halves([[sample.threads for sample in held] for held in settled]),
        descriptors=_halves([[sample.descriptors for sample in held] for held in settled]),
        beside_first=beside[0],
        beside_last=beside[-1],
    )


def _halves(processes: list[list[int]]) -> list[int]:
    """Return the sum of the least of each process, in the first half of its rounds and in the second."""
    first = sum(min(counts[: (len(counts) + 1) // 2]) for counts in processes)
    return [first, sum(min(counts[len(counts) // 2 :]) for counts in processes)]


def table(runs: Sequence[Run]) -> Table:
    """Return a table of the runs."""
    rounds = runs[0].rounds
    shown = Table(f"{rounds:,} rounds of {len(NODES)} workers, {runs_words(len(runs))}", "")
    settled = _settled_after(rounds)
    shown.add("from a round to the next, s", spread([run.seconds for run in runs], ".3f"))
    shown.add("processes", spread([run.processes for run in runs], "d"))
    shown.add(f"memory after round {settled}, MiB", spread([run.first_kib / 1_024 for run in runs], ".1f"))
    shown.add("  in the last round", spread([run.last_kib / 1_024 for run in runs], ".1f"))
    for what in ("threads", "descriptors"):
        for label, index in ((f"{what} of all, least of the first half", 0), ("  of the second half", 1)):
            shown.add(label, spread([getattr(run, what)[index] for run in runs], "d"))
    for index, program in enumerate(held.program for held in runs[0].beside_first):
        pairs = [(run.beside_first[index], run.beside_last[index]) for run in runs]
        for label, at in ((f"{program} after round {settled}, MiB", 0), ("  in the last round", 1)):
            shown.add(label, spread([pair[at].own_kib / 1_024 for pair in pairs], ".1f"))
        for label, at in (("  descriptors", 0), ("  in the last round", 1)):
            shown.add(label, spread([pair[at].descriptors for pair in pairs], "d"))
    return shown


def main() -> None:
    """Run as the flags say. Exits with 0, or with 1 after one line that says why not."""
    parser = argparse.ArgumentParser(prog="rounds", description="Watch processes that take part in many rounds.")
    parser.add_argument("--rounds", type=positive, default=500, help="of one job, from 4 on (default: 500)")
    add_flags(parser, repeat=1)
    options = parser.parse_args()
    with errors_in_one_line("rounds"):
        runs = [measure(max(options.rounds, 4)) for _ in range(options.repeat)]
    print(table(runs))
    write_report(options.json, "rounds", [asdict(run) for run in runs])


if __name__ == "__main__":
    main()
