"""Finds out which nodes can send the log files of a round, and says of the others where their files are."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

from coordinatord.core.queries.reasons import name_some
from coordinatord.core.state.member import Member
from coordinatord.core.state.run import Run
from coordinatord.core.values.ranks import Ranks
from coordinatord.core.values.records import NodeJoined, Record, RoundFormed
from coordinatord.core.values.round_history import ROUNDS_KEPT
from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.log_messages import LogStream
from coordinatord.protocol.messages import Launcher, NodeOffer
from coordinatord.protocol.versions import SINCE

WORKERS_AT_ONCE_MAX = 64
"""The limit of one request: no person reads more at once, and each that is followed is asked once a second."""


class NoLogError(OperationalError):
    """There is no such round, node or rank. Nothing has changed."""


@dataclass(frozen=True, slots=True)
class LogChoice:
    """The workers whose logs are wanted; an empty choice is all of them."""

    ranks: tuple[range, ...] = ()
    nodes: frozenset[str] = frozenset()
    """Names of nodes or hosts."""
    streams: tuple[LogStream, ...] = tuple(LogStream)


@dataclass(frozen=True, slots=True)
class LogSource:
    """One log of one worker, and who can send it."""

    run: str
    round: int
    rank: int
    stream: LogStream
    node: str
    host: str
    file: str
    """The path on that host; empty if it is not known, or no file is kept."""
    session: int | None
    """The session that can be asked; None if there is none."""
    problem: str
    """Why its node cannot be asked, and what to do; empty if it can."""


@dataclass(frozen=True, slots=True)
class LogSources:
    """The logs of the chosen workers."""

    sources: tuple[LogSource, ...]
    """They are in the order of the ranks, each with stdout first."""
    omitted: int
    """The number of chosen workers beyond the limit."""


def log_sources(run: Run, number: int, records: Sequence[Record], choice: LogChoice) -> LogSources:
    """Return the logs of some workers of a round; `records` are those that the store has of it.

    Raises `NoLogError`.
    """
    formed = next((one for one in records if isinstance(one, RoundFormed)), None)
    if formed is None:
        raise NoLogError(_unknown_round(run, number))
    offers = {one.node: one.offer for one in records if isinstance(one, NodeJoined)}
    nodes = [ranks for ranks in formed.nodes if _is_chosen(ranks, offers, choice)]
    if not nodes:
        had = name_some((ranks.node for ranks in formed.nodes), len(formed.nodes))
        raise NoLogError(f"round {number} has no such node: it has {had}")
    wanted = _merged(choice.ranks)
    found = [(ranks, piece) for ranks in nodes for piece in _ranks_of(ranks, wanted)]
    if not found:
        raise NoLogError(f"round {number} has no such rank there: it has {name_some(map(_span, nodes), len(nodes))}")
    found.sort(key=lambda one: one[1].start)
    workers = sum(len(piece) for _, piece in found)
    shown = list(islice(((ranks, rank) for ranks, piece in found for rank in piece), WORKERS_AT_ONCE_MAX))
    sources = tuple(
        _source(run, number, ranks.node, rank, stream, offers.get(ranks.node))
        for ranks, rank in shown
        for stream in choice.streams
    )
    return LogSources(sources, workers - len(shown))


def _is_chosen(ranks: Ranks, offers: dict[str, NodeOffer], choice: LogChoice) -> bool:
    host = offers[ranks.node].host if ranks.node in offers else ranks.node
    return not choice.nodes or not choice.nodes.isdisjoint({ranks.node, host})


def _merged(chosen: Iterable[range]) -> list[range]:
    """Return the chosen ranks, each once, in order."""
    merged: list[range] = []
    for one in sorted(chosen, key=lambda one: one.start):
        if merged and one.start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(merged[-1].stop, one.stop))
        else:
            merged.append(one)
    return merged


def _ranks_of(ranks: Ranks, wanted: Sequence[range]) -> list[range]:
    """Return which of the wanted ranks, or of all if none are named, a node has; none of them is looked at singly."""
    first, end = ranks.first_rank, ranks.first_rank + ranks.workers
    if not wanted:
        return [range(first, end)]
    near = wanted[max(0, bisect(wanted, first, key=lambda one: one.start) - 1) :]
    overlapping = takewhile(lambda one: one.start < end, near)
    return [range(max(first, one.start), min(end, one.stop)) for one in overlapping if one.stop > first]


def _source(run: Run, number: int, node: str, rank: int, stream: LogStream, offer: NodeOffer | None) -> LogSource:
    """Return one log; `offer` is that of the node when it was in the round."""
    host, folder = ("", "") if offer is None else (offer.host, offer.log_dir)
    # The run's id is this coordinator's own: a node need not quote it to make a folder's name of it.
    folder = f"{folder}/{run.id}/round_{number}" if folder else ""
    member = run.members.get(node)
    problem = _problem(run, node, f"on host {host} in {folder}" if folder else "", member)
    session = None if problem or member is None else member.session
    return LogSource(
        run=run.id,
        round=number,
        rank=rank,
        stream=stream,
        node=node,
        host=host,
        file=f"{folder}/{rank}/{stream}.log" if folder else "",
        session=session,
        problem=problem,
    )


def _problem(run: Run, node: str, place: str, member: Member | None) -> str:
    """Return why a node cannot be asked; `place` says where its logs are, if it keeps any."""
    connected = member is not None and member.session is not None
    if run.spec.launcher is Launcher.TORCHRUN:
        return f"torchrun has started the workers of node {node}, and its own --log-dir says where their logs are"
    if member is not None and member.protocol is not None and member.protocol < min(SINCE.values()):
        return f"the release of node {node} is too old to send its logs: install this one there"
    if not place:
        return f"node {node} keeps no log files: start its nodeclient with --log-dir DIR, or set NODECLIENT_LOG_DIR"
    return "" if connected else f"node {node} is not connected: its logs are {place}"


def _unknown_round(run: Run, number: int) -> str:
    if not run.durable.has_had_rounds:
        return f"job {run.job} has had no round yet"
    known = [one.number for one in run.durable.rounds]
    if not known:  # the run has ended, and only the store has its rounds
        which = f"rounds up to {run.durable.round}, of which the last {ROUNDS_KEPT} are kept"
    else:
        which = f"round {known[0]}" if len(known) == 1 else f"rounds {known[0]} to {known[-1]}"
    return f"round {number} of job {run.job} is not known: run {run.id} has {which}"


def _span(ranks: Ranks) -> str:
    last = ranks.first_rank + ranks.workers - 1
    return f"{ranks.node} ({f'rank {last}' if ranks.workers == 1 else f'ranks {ranks.first_rank} to {last}'})"
