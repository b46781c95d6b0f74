"""`nodeclient stacks`: prints the stacks of a job's workers, and names the worker that all others wait for.

Most workers of a job that hangs have the same stack, so equal stacks are printed once. With `--dumps` it reads
files of torch's flight recorder instead, without a coordinator, and names the workers that block all others.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.http.stack_answers import CollectiveStatus, StackedWorker, StackGroup, StacksAnswer
from coordinatord.protocol.stack_messages import CollectiveState, StackOrigin
from coordinatord.protocol.text import NAMES_MAX, counted, listed, name_some, spans
from nodeclient.config.operate import StacksConfig
from nodeclient.operate.client import Client, RequestError, read
from nodeclient.operate.job_lookup import get_job_data, only_job, query
from nodeclient.operate.terminal_info import terminal, write

BUSY_CPUS = 0.05
"""The least CPU use that is shown. Threads that poll now and then use less."""

NOBODY = "no rank waits in a collective, so none is named"
"""What `--dumps` says if the files show no hang."""

NONE_NAMED = 1
"""The exit code of `--dumps` if no rank is named."""


def run(config: StacksConfig) -> int:
    """Print the stacks and return the exit code: 0 if at least one could be read."""
    if config.dumps is not None:
        return _print_culprits(config.dumps, as_json=config.json)
    client = Client(config.coordinators, config.access)
    job = only_job(client, config.job, live=True)
    data = get_job_data(client, job, f"/stacks{query(rank=config.ranks or None)}")
    answer = read(StacksAnswer, data)
    if config.json:
        write([json.dumps(data)])
    else:
        output = terminal()
        write(line for text in _lines(answer) for line in output.wrapped(text, "      "))
    return ExitCode.OK if any(group.threads for group in answer.groups) else ExitCode.UNAVAILABLE


def _print_culprits(folder: Path, *, as_json: bool) -> int:
    """Print the culprits in files of torch's flight recorder; return the exit code. Raises `RequestError`."""
    from coordinatord.hints.hang_verdict import find_hang  # noqa: PLC0415 - few ask for them
    from nodeclient.diagnosis.recorder_files import UnreadableDumpError, dumps_in, samples_in  # noqa: PLC0415

    try:
        dumps, problems = dumps_in(folder)
        seen = samples_in(dumps)
    except UnreadableDumpError as error:
        raise RequestError(str(error), ExitCode.DATA_ERROR) from error
    for problem in problems:
        sys.stderr.write(f"nodeclient: {problem}\n")
    hang = find_hang(seen)
    kind, ranks, sentence = (None, (), NOBODY) if hang is None else (hang.kind, hang.ranks, hang.sentence)
    if as_json:
        write([json.dumps({"kind": kind, "ranks": ranks, "sentence": sentence})])
    else:
        write(terminal().wrapped(sentence if kind is None else f"{kind}: {sentence}", "      "))
    return NONE_NAMED if hang is None else ExitCode.OK


def _lines(answer: StacksAnswer) -> Iterator[str]:
    workers = sum(len(group.workers) for group in answer.groups)
    size = f"{counted(workers, 'worker')} at {counted(len(answer.groups), 'place')}"
    yield f"job {answer.job}, run {answer.run}, round {answer.round}: {size}, innermost frames first"
    if answer.verdict is not None:
        yield f"{answer.verdict.kind}: {answer.verdict.sentence}"
    for group in answer.groups:
        yield ""
        yield from _group(group)
    if answer.notes:
        yield ""
        yield from answer.notes


def _group(group: StackGroup) -> Iterator[str]:
    pids = [str(worker.pid) for worker in group.workers if worker.pid]
    processes = f" ({name_some(pids, len(pids), 'PID')})" if pids else ""
    yield f"{_ranks_and_hosts(group.workers)}{processes}: {_process_states(group.workers)}"
    yield from _collectives(group.workers)
    if group.problem:
        yield f"  no stack: {group.problem}"
    if any(worker.origin == StackOrigin.SIGNAL for worker in group.workers):
        yield "  written by faulthandler: code in C holds Python's lock"
    for number, thread in enumerate(group.threads):
        if number:
            yield f"  {thread.name}"
        yield from (f"    {frame}" for frame in thread.frames)


def _collectives(workers: Sequence[StackedWorker]) -> Iterator[str]:
    """Yield a line for each collective that workers are in, or were in last, with the longest of their times in it."""
    located = [(worker.collective, worker.rank) for worker in workers if worker.collective is not None]
    places: dict[CollectiveStatus, tuple[CollectiveStatus, list[int]]] = {}
    for collective, rank in sorted(located, key=lambda pair: -pair[0].age_s):
        places.setdefault(replace(collective, age_s=0.0), (collective, []))[1].append(rank)
    for longest, ranks in places.values():
        yield f"  {_collective(longest)}{'' if len(ranks) == len(workers) else f' ({_ranks(sorted(ranks))})'}"


def _ranks_and_hosts(workers: Sequence[StackedWorker]) -> str:
    hosts = list(dict.fromkeys(worker.host for worker in workers))
    return f"{_ranks([worker.rank for worker in workers])} on {listed(hosts, len(hosts))}"


def _ranks(ranks: Sequence[int]) -> str:
    """Format sorted ranks, with ranges: ranks 0-3, 7."""
    named = spans(ranks)
    return f"rank{'' if len(ranks) == 1 else 's'} {listed(named, len(named))}"


def _process_states(workers: Sequence[StackedWorker]) -> str:
    states = list(dict.fromkeys(worker.state or "state not known" for worker in workers))
    waits = list(dict.fromkeys(worker.waits_in for worker in workers if worker.waits_in))
    most = max(worker.cpus for worker in workers)
    text = " or ".join(states[:NAMES_MAX])
    text += f" in {' or '.join(waits[:NAMES_MAX])}" if waits else ""
    return f"{text}, {most:.1f} CPUs" if most >= BUSY_CPUS else f"{text}, no CPU used"


def _collective(collective: CollectiveStatus) -> str:
    name = f"{collective.operation} {collective.number:,} of {collective.group}"
    shape = f" ({collective.shape})" if collective.shape else ""
    match collective.state:
        case CollectiveState.WAITS:
            return f"waits in {name}{shape} for {collective.age_s:.0f} s"
        case CollectiveState.MOVES:
            return f"gets on: collective {collective.number:,} of group {collective.group}"
        case _:
            return f"last collective: {name}{shape}"
