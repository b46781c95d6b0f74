"""`coordinatord replay`: prints the records of a run, each with the state of the run after it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coordinatord.commands.json_output import ReplayStep, RunState, as_json
from coordinatord.commands.offline_replay import replay_run, restarts_of
from coordinatord.config.state_flags import ReplayConfig
from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.durable import DurableRun
from coordinatord.core.rounds.values.records import Record, RoundEnded, RoundFormed
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.text import clip, counted
from coordinatord.runtime import flight_recorder
from coordinatord.runtime.local_time import local, moment
from coordinatord.server.driver import RECORDED
from coordinatord.store.database import Database
from coordinatord.store.directory import DATABASE
from coordinatord.store.interface import Entry, NothingStoredError

if TYPE_CHECKING:
    from coordinatord.store.etcd.location import EtcdLocation


def replay(config: ReplayConfig) -> int:
    """Print the records of one run, or the list of runs if several match; return the exit code. Raises `StoreError`."""
    if config.crash is not None:
        machine = Coordinator(Policy(), epoch="")  # the crash file replaces its state, with policy and epoch
        return flight_recorder.replay(config.crash, RECORDED, machine)
    database = _open(config.source)
    runs = database.runs()
    chosen = _choose(config, runs)
    if chosen is None:
        sys.stdout.write(_choices(config, runs))
        return ExitCode.OK
    entries = database.history(*chosen)
    if config.json:
        _print_objects(entries)
    else:
        _print_steps(entries, pausing=config.step and os.isatty(0))
    return ExitCode.OK


def _open(source: Path | EtcdLocation) -> Database:
    """Return a copy of the records. Raises `StoreError`."""
    if isinstance(source, Path):
        return Database.copy_of(source / DATABASE)
    from coordinatord.commands.shared_store import read_shared_state  # noqa: PLC0415 - a directory needs no HTTP

    return read_shared_state(source)[0]


# The choice of a run


def _choose(config: ReplayConfig, runs: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
    """Return job and id of the wanted run; None if several may be meant. Raises `NothingStoredError`."""
    wanted = config.job_or_run
    where = f"state directory {config.source}" if isinstance(config.source, Path) else f"{config.source}"
    if not runs:
        raise NothingStoredError(f"{where}: it holds no history of any job yet")
    if wanted is None:
        return runs[-1] if len({job for job, _ in runs}) == 1 else None
    matches = [run for run in runs if run[0] == wanted] or [run for run in runs if run[1] == wanted]
    if not matches:
        known = f"there is no job or run {wanted!r}: `coordinatord state` shows those that there are"
        raise NothingStoredError(f"{where}: {known}")
    return matches[-1]  # the last run of a job


def _choices(config: ReplayConfig, runs: Sequence[tuple[str, str]]) -> str:
    if config.json:
        return "".join(f"{json.dumps({'job': job, 'run': run})}\n" for job, run in runs)
    lines = "".join(f"  job {clip(str(job))}, run {clip(str(run))}\n" for job, run in runs)
    return f"several jobs; name a job or a run: coordinatord replay JOB|RUN\n{lines}"


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")


# Output as text


def _print_steps(entries: Sequence[Entry], *, pausing: bool) -> None:
    first = entries[0].record
    _write(f"job {first.job}, run {first.run}: {counted(len(entries), 'record')}")
    if deleted := _last_deleted_round(entries):
        _write(f"(rounds up to {deleted} are no longer kept)")
    if pausing:
        _write("(Enter for the next one, q to end)")
    previous_at, round_size = entries[0].at, 0
    for entry, run in replay_run(entries):
        if isinstance(entry.record, RoundFormed):
            round_size = len(entry.record.nodes)
        since = f"+{max(0.0, entry.at - previous_at):.3f} s"
        previous_at = entry.at
        _write(
            f"\n{moment(local(entry.at), 'milliseconds')}  {since:>12}  {_title(entry.record)}: {entry.record.reason}"
        )
        _write(f"{'=>':>40}  {_state_text(run, round_size)}")
        sys.stdout.flush()
        if pausing and _quits():
            return


def _quits() -> bool:
    """Wait for Enter; return whether to stop, on q or the end of the input."""
    line = sys.stdin.readline()
    return not line or line.strip().lower() == "q"


def _title(record: Record) -> str:
    """Return a title for a record: 'round 2 formed', 'node a joined'."""
    subject, *verb = record.kind_words()
    name = getattr(record, subject, None)
    return " ".join([subject, str(name), *verb] if name is not None else [subject, *verb])


def _state_text(run: DurableRun, round_size: int) -> str:
    """Describe a run; `round_size` is the number of nodes of its last round, since an ended run has no members."""
    inside = round_size if run.state.ended else sum(1 for _ in run.inside)
    where = f"round {run.round} of {counted(inside, 'node')}" if run.round else "no round yet"
    return f"{run.state}, {where}, restarts {run.restarts_used} of {run.spec.max_restarts}"


def _last_deleted_round(entries: Sequence[Entry]) -> int | None:
    """Return the last round of which retention has left only the record of its end; None without one."""
    rounds = (entry.record for entry in entries if isinstance(entry.record, RoundFormed | RoundEnded))
    first = next(rounds, None)
    return first.round if isinstance(first, RoundEnded) else None


# Output as JSON


def _print_objects(entries: Sequence[Entry]) -> None:
    for entry, run in replay_run(entries):
        _write(as_json(_replay_step(entry, run)))


def _replay_step(entry: Entry, run: DurableRun) -> ReplayStep:
    record = entry.record
    return ReplayStep(
        at=entry.at,
        kind=record.KIND,
        reason=record.reason,
        node=getattr(record, "node", None),
        round=getattr(record, "round", None),
        led_to=RunState(state=run.state, reason=run.reason, round=run.round, restarts=restarts_of(run)),
    )
