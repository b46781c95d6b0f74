"""`coordinatord replay`: prints the history of a run, record by record, with the state after each."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from coordinatord.commands.json_output import ReplayStep, RunState, as_json
from coordinatord.commands.offline_replay import counted, replayed, restarts_of
from coordinatord.config.state_flags import ReplayConfig
from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.durable import DurableRun
from coordinatord.core.rounds.values.records import Record, RoundEnded, RoundFormed
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.text import clip
from coordinatord.runtime import flight_recorder
from coordinatord.runtime.local_time import local, moment
from coordinatord.server.driver import RECORDED
from coordinatord.store.database import Database
from coordinatord.store.directory import DATABASE
from coordinatord.store.interface import Entry, NothingStoredError


def replay(config: ReplayConfig) -> int:
    """Print the history of one run, or the list of runs; return the exit code. Raises `StoreError`."""
    if config.crash is not None:
        return flight_recorder.replay(config.crash, RECORDED, Coordinator(Policy(), epoch=""))
    database = Database.copy_of(config.state_dir / DATABASE)
    chosen = _choose(config, database.runs())
    if chosen is None:
        sys.stdout.write(_choices(config, database.runs()))
        return ExitCode.OK
    entries = database.history(*chosen)
    if config.json:
        _print_objects(entries)
    else:
        _print_steps(entries, pausing=config.step and os.isatty(0))
    return ExitCode.OK


# The choice of a run


def _choose(config: ReplayConfig, runs: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
    """Find the wanted run; None if it is ambiguous. Raises `NothingStoredError`."""
    wanted = config.job_or_run
    if not runs:
        raise NothingStoredError(f"state directory {config.state_dir}: it holds no history of any job yet")
    if wanted is None:
        return runs[-1] if len({job for job, _ in runs}) == 1 else None
    # The last match: if a job is named, its last run.
    fitting = [found for found in runs if found[0] == wanted] or [found for found in runs if found[1] == wanted]
    if not fitting:
        known = f"there is no job or run {wanted!r}: `coordinatord state` shows those that there are"
        raise NothingStoredError(f"state directory {config.state_dir}: {known}")
    return fitting[-1]


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
    if forgotten := _forgotten(entries):
        _write(f"(rounds up to {forgotten} are no longer kept)")
    if pausing:
        _write("(Enter for the next one, q to end)")
    before, formed_of = entries[0].at, 0
    for entry, run in replayed(entries):
        if isinstance(entry.record, RoundFormed):
            formed_of = len(entry.record.nodes)
        since = f"+{max(0.0, entry.at - before):.3f} s"
        before = entry.at
        _write(
            f"\n{moment(local(entry.at), 'milliseconds')}  {since:>12}  {_title(entry.record)}: {entry.record.reason}"
        )
        _write(f"{'=>':>40}  {_state_text(run, formed_of)}")
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


def _state_text(run: DurableRun, formed_of: int) -> str:
    """Describe a run whose last round had `formed_of` nodes: a run that has ended has no members."""
    inside = formed_of if run.state.ended else sum(1 for _ in run.inside)
    where = f"round {run.round} of {counted(inside, 'node')}" if run.round else "no round yet"
    return f"{run.state}, {where}, restarts {run.restarts_used} of {run.spec.max_restarts}"


def _forgotten(entries: Sequence[Entry]) -> int | None:
    """Return the last round that was deleted: there is a record of its end, but none of its beginning."""
    rounds = (entry.record for entry in entries if isinstance(entry.record, RoundFormed | RoundEnded))
    first = next(rounds, None)
    return first.round if isinstance(first, RoundEnded) else None


# Output as JSON


def _print_objects(entries: Sequence[Entry]) -> None:
    for entry, run in replayed(entries):
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
