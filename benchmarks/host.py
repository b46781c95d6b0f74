"""What a launcher costs the host that trains: its own start, and its processor time and memory while training goes on.

python -m benchmarks.host --repeat 5 --seconds 20

nodeclient, without and with `--preload torch`, beside torchrun's agent with the same worker. The jobs are those of
`recovery_jobs`; the coordinatord is not counted, since it runs on another host.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import product
from pathlib import Path
from threading import Event

from daemon import cpu_s_of
from recovery_jobs import SIDES, TRAINING, Job, prepare, running_job
from recovery_parts import last
from tables import BenchmarkError, Table, add_flags, errors_in_one_line, positive, runs_words, spread, write_report

from tests.support.cluster import Coordinator
from tests.support.programs import BIN, TIMEOUT_S, Program, clean_environ

SECONDS = 20
"""How long training is watched: some ten heartbeats, and a few hundred looks of torchrun at its worker."""

STEPS_BEFORE = 20
"""The steps of training after which everything that happens once is done."""

COMMANDS = {"torchrun": "torchrun", "cold": "nodeclient", "warm": "nodeclient"}

ROWS = {
    "help_s": ("--help, seconds", ".2f"),
    "help_cpu_s": ("--help, seconds of processor time", ".2f"),
    "status_s": ("status, seconds", ".2f"),
    "status_cpu_s": ("status, seconds of processor time", ".2f"),
    "connects_s": ("until it connects to the rendezvous, seconds", ".2f"),
    "connects_cpu_s": ("until it connects, seconds of processor time", ".2f"),
    "starts_s": ("until its worker's first line, seconds", ".2f"),
    "cpu_percent": ("launcher while training: % of a core", ".2f"),
    "rss_mb": ("launcher and its helpers: RSS, MB", ".0f"),
    "pss_mb": ("launcher and its helpers: PSS, MB", ".0f"),
    "workers_mb": ("worker, and what it was forked from: PSS, MB", ".0f"),
}
"""The measurements, with their titles and formats."""

KB_OF_KERNEL = 1_024
MB = 1_000_000


def command_times(name: str, *command: str | Path, environ: Mapping[str, str]) -> dict[str, float]:
    """Time a command from its start to its end, and return both times under its name. Raises `BenchmarkError`."""
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environ)  # noqa: S603 - ours
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise BenchmarkError(f"{' '.join(map(str, command))} ended with {process.returncode}")
    return {f"{name}_s": time.monotonic() - began, f"{name}_cpu_s": usage.ru_utime + usage.ru_stime}


def help_times(side: str) -> dict[str, float]:
    """Time `--help`, which is the start of the program and nothing else."""
    flags = ("--help",) if side == "torchrun" else ("join", "--help")
    return command_times("help", BIN / COMMANDS[side], *flags, environ=clean_environ())


def status_times() -> dict[str, float]:
    """Time `nodeclient status` of a coordinatord that runs as by default: over TLS, with a token."""
    with tempfile.TemporaryDirectory(prefix="host-") as home, closing(Coordinator(home=Path(home))) as coordinator:
        where = ("--coord", coordinator.endpoint)
        return command_times("status", BIN / "nodeclient", "status", *where, environ=coordinator.environ)


def connection_time(side: str) -> dict[str, float]:
    """Time the start of a launcher until it connects to its rendezvous; here it gets no answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(TIMEOUT_S)
        where = f"127.0.0.1:{server.getsockname()[1]}"
        commands = {
            "torchrun": ("--rdzv-backend=c10d", f"--rdzv-endpoint={where}", "--rdzv-conf=is_host=false", str(TRAINING)),
            "cold": ("join", "--coord", where, "--", sys.executable, str(TRAINING)),
        }
        began = time.monotonic()
        launcher = Program(BIN / COMMANDS[side], *commands[side])
        try:
            server.accept()[0].close()
            return {"connects_s": time.monotonic() - began, "connects_cpu_s": cpu_s_of(launcher.pid)}
        except TimeoutError:
            raise BenchmarkError(f"{launcher.command} does not connect\n{launcher.output}") from None
        finally:
            launcher.close()


def training_costs(job: Job, seconds: float) -> dict[str, float]:
    """Let one node train, and measure what its processes take. Raises `BenchmarkError`."""
    began = time.monotonic()
    job.start("a")
    if not job.await_steps(STEPS_BEFORE, world_size=1):
        raise BenchmarkError(f"nothing is trained; what was said:\n{job.output()}")
    starts_s = last(job.marks, "begun") - began
    launcher = job.nodes["a"].pid
    # A parent interpreter has the command line of the workers that are forked from it.
    family = {pid: str(TRAINING) in Path(f"/proc/{pid}/cmdline").read_text() for pid in job.nodes["a"].leftovers()}
    workers = [pid for pid, trains in family.items() if trains]
    helpers = [launcher, *(pid for pid in family if pid not in workers)]
    parents = [pid for pid in workers if pid not in {mark.pid for mark in job.marks}]
    at, before = time.monotonic(), sum(map(cpu_s_of, [*helpers, *parents]))
    Event().wait(seconds)
    used, watched_s = sum(map(cpu_s_of, [*helpers, *parents])) - before, time.monotonic() - at
    return {
        "starts_s": starts_s,
        "cpu_percent": 100 * used / watched_s,
        "rss_mb": sum(memory_mb(pid, "Rss") for pid in helpers),
        "pss_mb": sum(memory_mb(pid, "Pss") for pid in helpers),
        "workers_mb": sum(memory_mb(pid, "Pss") for pid in workers),
    }


def memory_mb(pid: int, kind: str) -> float:
    """Return a process's memory: `Rss`, all that it uses, or `Pss`, where shared memory is divided by its users."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) * KB_OF_KERNEL / MB
    raise BenchmarkError(f"the kernel does not tell the {kind} of a process")


def measure(side: str, seconds: float) -> dict[str, float]:
    """Measure everything once. Raises `BenchmarkError`."""
    own = {} if side == "warm" else help_times(side) | connection_time(side)
    if side == "cold":
        own |= status_times()
    with tempfile.TemporaryDirectory(prefix="host-") as folder, running_job(side, "1", Path(folder)) as job:
        return own | training_costs(job, seconds)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description="Measure what a launcher costs the host that trains.")
    add_flags(parser, 5)
    watched = f"of training that are watched, each time (default: {SECONDS})"
    parser.add_argument("--seconds", type=positive, default=SECONDS, metavar="S", help=watched)
    options = parser.parse_args(arguments)
    prepare()
    runs: list[dict[str, object]] = []
    figures: dict[tuple[str, str], list[float]] = {}
    with errors_in_one_line("host"):
        for _, side in product(range(options.repeat), SIDES):
            measured = measure(side, options.seconds)
            runs.append({"side": side, **measured})
            for name, value in measured.items():
                figures.setdefault((side, name), []).append(value)
    table = Table(f"on the training host; {runs_words(options.repeat)}", *SIDES)
    for name, (words, spec) in ROWS.items():
        table.add(words, *(spread(figures.get((side, name), []), spec) for side in SIDES))
    print(table)
    write_report(options.json, "host", runs)


if __name__ == "__main__":
    main()
