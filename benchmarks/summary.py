"""Writes the reports of `make bench` as one table in Markdown, for README.md beside this file.

python -m benchmarks.summary build/bench
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tables import spread

Runs = Sequence[dict[str, Any]]
"""The runs of one report: see `write_report` of each benchmark."""

HOST_SIDES = ("cold", "torchrun")
"""The launchers whose figures of `host` are shown."""

ENOUGH = 1_000
"""Nodes of which the memory of each can be told."""

Row = tuple[str, str, str]
"""What was measured, of coordinatord, and what is beside it."""


def rendezvous(runs: Runs) -> Iterator[Row]:
    """Yield the rows about joins and new rounds."""
    for nodes in dict.fromkeys(run["nodes"] for run in runs):
        ours = [run for run in runs if (run["side"], run["nodes"]) == ("coordinatord", nodes)]
        beside = [_rival(run) for run in runs if run["side"] != "coordinatord" and run["nodes"] == nodes]
        join, reform = ([run[step] for run in ours] for step in ("join", "reform"))
        yield f"join of {nodes:,}, until all have ranks, s", _of(join, "elapsed_s", ".2f"), "; ".join(beside)
        yield f"new round of {nodes:,} after a loss is decided, s", _of(reform, "decided_s", ".2f"), ""
        yield f"processor time of a join of {nodes:,}, ms a node", _of(join, "cpu_ms_per_node", ".2f"), ""
    largest = max(run["nodes"] for run in runs)
    of_largest = [run for run in runs if run["nodes"] == largest and run["side"] == "coordinatord"]
    if largest >= ENOUGH:
        yield "memory a node, KiB", _of(of_largest, "resident_kib_per_node", ".1f"), f"with {largest:,}"


def _rival(run: dict[str, Any]) -> str:
    took = f"not within {run['within_s']:g}" if run["join"] is None else f"{run['join']['elapsed_s']:.1f}"
    return f"{run['side']}: {took}"


def throughput(runs: Runs) -> Iterator[Row]:
    """Yield the rows about heartbeats at saturation."""

    def cpu_us(side: str) -> list[float]:
        return [1e6 * run[side]["cpu_s"] / run[side]["messages"] for run in runs]

    for what, side, bare in (
        ("one heartbeat at saturation, µs of CPU", "coordinatord", "echo"),
        ("the same over TLS, with tokens", "over_tls", "echo_over_tls"),
    ):
        ours, echo = cpu_us(side), cpu_us(bare)
        shares = [its / mine for mine, its in zip(ours, echo, strict=True)]
        yield what, spread(ours, ".0f"), f"bare echo {spread(echo, '.0f')}: as many as {spread(shares, '.0%')} of it"


def idle(runs: Runs) -> Iterator[Row]:
    """Yield the rows about nodes that only beat."""
    for nodes in dict.fromkeys(run["nodes"] for run in runs):
        of = [run for run in runs if run["nodes"] == nodes]
        shares = [100 * run["cpu_s"] / run["seconds"] for run in of]
        beats = [run["beats"]["answers"] / run["seconds"] for run in of]
        yield f"{nodes:,} nodes idle, % of a core", spread(shares, ".1f"), f"{spread(beats, '.0f')} heartbeats a second"


def storm(runs: Runs) -> Iterator[Row]:
    """Yield the row about many that come at once."""
    what = f"{runs[0]['nodes']:,} join onto {runs[0]['members']:,}: the worst answer to a heartbeat, s"
    worst = [run["storm"]["beats"]["worst_ms"] / 1_000 for run in runs]
    yield what, spread(worst, ".2f"), f"{max(run['lost'] for run in runs)} nodes lost"


def restart(runs: Runs) -> Iterator[Row]:
    """Yield the rows about a start."""
    what = f"start on {runs[0]['nodes']:,} nodes and {runs[0]['over']:,} jobs that are over, s until it listens"
    for words, figure in ((what, "seconds"), ("processor time of it, s", "cpu_s")):
        ours, empty, bare = ([run[side][figure] for run in runs] for side in ("restored", "empty", "bare"))
        yield words, spread(ours, ".2f"), f"on nothing {spread(empty, '.2f')}; a bare read {spread(bare, '.2f')}"


def host(runs: Runs) -> Iterator[Row]:
    """Yield the rows about nodeclient's own start."""
    for words, figure in (
        ("nodeclient until it connects, s of CPU", "connects_cpu_s"),
        ("nodeclient join --help, s of CPU", "help_cpu_s"),
        ("nodeclient status, s of CPU", "status_cpu_s"),
        ("launcher while training, % of a core", "cpu_percent"),
        ("launcher while training, PSS in MB", "pss_mb"),
    ):
        ours, theirs = ([run[figure] for run in runs if run["side"] == side and figure in run] for side in HOST_SIDES)
        yield words, spread(ours, ".2f"), f"torchrun {spread(theirs, '.2f')}" if theirs else ""


def scrape(runs: Runs) -> Iterator[Row]:
    """Yield the row about a scrape of all jobs."""
    what = f"a scrape of {runs[0]['jobs']:,} jobs with {runs[0]['nodes']:,} nodes, ms of CPU"
    worst = spread([run["full"]["health_worst_ms"] for run in runs], ".0f")
    yield what, spread([1e3 * run["full"]["cpu_s"] for run in runs], ".0f"), f"/healthz meanwhile: {worst} ms at worst"


def stacks(runs: Runs) -> Iterator[Row]:
    """Yield the row about a question to all workers."""
    what = f"where {runs[0]['ranks']:,} ranks stand: from the question to the answer, s"
    yield what, _of(runs, "seconds", ".2f"), f"{_of(runs, 'bytes_from_nodes', ',.0f')} bytes from all nodes"


def step(runs: Runs) -> Iterator[Row]:
    """Yield the row about a step of a script."""
    ours, nothing, clock = ([run[figure] for run in runs] for figure in ("step_ns", "nothing_ns", "clock_ns"))
    beside = f"an empty method {spread(nothing, '.0f')}, a look at the clock {spread(clock, '.0f')}"
    yield "`ctx.step(n)`, ns", spread(ours, ".0f"), beside


def kept_step(runs: Runs) -> Iterator[Row]:
    """Yield the rows about steps of kept state while nothing breaks."""
    costs = [run for run in runs if "save_s" in run]
    alike, alone = ([run for run in costs if bool(run["save_s"]) is saves] for saves in (False, True))
    later = spread([1e6 * run["step_s"] for run in alike], ".0f")
    yield (
        "`ctx.step(n)` of kept state, µs",
        spread([1e6 * run["loop_s"] for run in alike], ".0f"),
        f"in a loop; {later} else",
    )
    copies = spread([1e3 * run["copy_s"] for run in alone], ".1f")
    ratios = spread([run["save_s"] / run["copy_s"] for run in alone], ".2f")
    beside = f"a bare copy {copies}: {ratios} times that"
    yield "a save at an interval, ms", spread([1e3 * run["save_s"] for run in alone], ".1f"), beside


def output(runs: Runs) -> Iterator[Row]:
    """Yield the rows about lines of workers, by the number of workers and the way that the lines took."""
    for workers in dict.fromkeys(run["workers"] for run in runs):
        ways: dict[str, list[float]] = {}
        for run in runs:
            if run["workers"] == workers:
                ways.setdefault(run["way"], []).append(run["lines"] / run["elapsed_s"] / 1e6)
        bare, *others = ways
        for way in others:
            words = f"output of {workers} worker{'s' * (workers > 1)}, {way}: million lines a second"
            yield words, spread(ways[way], ".1f"), f"{bare}: {spread(ways[bare], '.1f')}"


REPORTS: dict[str, Callable[[Runs], Iterator[Row]]] = {
    "rendezvous": rendezvous,
    "torch_rendezvous": rendezvous,
    "throughput": throughput,
    "idle": idle,
    "storm": storm,
    "restart": restart,
    "scrape": scrape,
    "stacks": stacks,
    "host": host,
    "output": output,
    "step": step,
    "kept_step": kept_step,
}
"""What makes rows of a report, by the name of its file."""


def recovery(runs: Runs) -> str:
    """Return the table of the breaks."""
    return _by_side(runs, "seconds without a step", _broken)


def kept(runs: Runs) -> str:
    """Return the table of the breaks with kept state."""
    return _by_side(runs, "seconds without a new step (steps redone)", _gone_on)


def _by_side(runs: Runs, title: str, cell: Callable[[Runs], str]) -> str:
    sides = list(dict.fromkeys(run["side"] for run in runs))
    lines = [f"| {title} | {' | '.join(sides)} |", f"|---|{'---|' * len(sides)}"]
    for scenario in dict.fromkeys(run["scenario"] for run in runs):
        cells = [[run for run in runs if (run["scenario"], run["side"]) == (scenario, side)] for side in sides]
        lines.append(f"| {scenario} | {' | '.join(map(cell, cells))} |")
    return "\n".join(lines)


def _broken(runs: Runs) -> str:
    missed = [run["why_not"] for run in runs if run["why_not"]]
    return missed[0] if missed else spread([run["seconds"] for run in runs], ".2f")


def _gone_on(runs: Runs) -> str:
    took = [run["seconds"] for run in runs if run["seconds"] is not None]
    if len(took) < len(runs):
        return "never"
    later = [run["all_again"] for run in runs if run["all_again"] is not None]
    redone = f" ({max(run['redone'] for run in runs)})" if runs and runs[0]["side"] != "bare" else ""
    return spread(took, ".2f") + redone + (f", all {spread(later, '.2f')}" if later else "")


def _of(parts: Runs, figure: str, spec: str) -> str:
    return spread([part[figure] for part in parts], spec)


def main() -> None:
    """Print the tables of the reports that there are."""
    parser = argparse.ArgumentParser(prog="summary", description="Write reports of benchmarks as tables in Markdown.")
    parser.add_argument("folder", type=Path, help="where their JSON files are")
    folder = parser.parse_args().folder
    print("| | coordinatord | beside it |\n|---|---|---|")
    for name, rows in REPORTS.items():
        if runs := _read(folder, name):
            for row in rows(runs):
                print(f"| {' | '.join(row)} |")
    if broken := _read(folder, "recovery"):
        print(f"\n{recovery(broken)}")
    if runs := _read(folder, "kept"):
        print(f"\n{kept(runs)}")


def _read(folder: Path, name: str) -> Runs:
    path = folder / f"{name}.json"
    if not path.exists():
        return []
    runs: Runs = json.loads(path.read_text())["runs"]
    return runs


if __name__ == "__main__":
    main()
