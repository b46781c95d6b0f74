"""Finds which node can send each log file of a round's workers, or says where a file is that no node can send.

Log files lie on the workers' hosts, and the coordinator has none. For `nodeclient logs` and the live page it asks a
node for pieces of them. The round may be an old one, so its nodes come from records, and may have left since then.
Another node of the same host, with the same folder of logs, can send the files as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from msgspec import Struct

from coordinatord.core.rounds.state.member import Member
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.ranks import Ranks
from coordinatord.core.rounds.values.records import NodeJoined, Record, RoundFormed
from coordinatord.core.rounds.values.round_history import ROUNDS_RETAINED
from coordinatord.core.watching.worker_sources import merge_ranges, select_ranks
from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.log_messages import LogStream
from coordinatord.protocol.messages import Launcher, NodeOffer
from coordinatord.protocol.text import name_some

WORKERS_AT_ONCE_MAX = 64
"""The most workers of one request: no person reads more at once, and a followed log is read once a second."""


class NoLogError(OperationalError):
    """There is no such round, node or rank."""


class LogChoice(Struct, frozen=True):
    """The workers whose logs are wanted: those with these ranks, on these nodes. Empty `ranks` or `nodes` mean all."""

    ranks: tuple[range, ...] = ()
    nodes: frozenset[str] = frozenset()
    """Names of nodes or hosts."""
    streams: tuple[LogStream, ...] = tuple(LogStream)


class LogSource(Struct, frozen=True):
    """One log of one worker, and the node to ask for it."""

    run: str
    round: int
    rank: int
    stream: LogStream
    node: str
    host: str
    file: str
    """The path on that host; empty if it is not known, or no file is kept."""
    served_by: str
    """The node to ask: that of the worker, or another one with its logs in the same folder of the same host."""
    session: int | None
    """The session of the node to ask; None if it has none now."""
    problem: str
    """Why no node can be asked, and what to do; empty if one can."""


class LogSources(Struct, frozen=True):
    """The logs of the chosen workers."""

    sources: tuple[LogSource, ...]
    """The logs in the order of the ranks, stdout first."""
    omitted: int
    """The number of chosen workers beyond `WORKERS_AT_ONCE_MAX`, whose logs are left out."""


def log_sources(
    run: Run, number: int, records: Sequence[Record], choice: LogChoice, *, earlier: str = "", follow: bool = False
) -> LogSources:
    """Return the logs of some workers of a round; `records` are all that the store has of the round.

    `earlier` is the id of the earlier run of the job that had the round, or empty if `run` had it. With `follow`, nodes
    that are not connected now can be asked as well, since they may come back. Raises `NoLogError`.
    """
    formed = next((record for record in records if isinstance(record, RoundFormed)), None)
    if formed is None:
        raise NoLogError(f"round {number} of run {earlier} is not known" if earlier else _unknown_round(run, number))
    offers = {record.node: record.offer for record in records if isinstance(record, NodeJoined)}
    nodes = [ranks for ranks in formed.nodes if _is_chosen(ranks, offers, choice)]
    if not nodes:
        had = name_some((ranks.node for ranks in formed.nodes), len(formed.nodes))
        raise NoLogError(f"round {number} has no such node: it has {had}")
    wanted_ranks = merge_ranges(choice.ranks)
    pieces = [(ranks, piece) for ranks in nodes for piece in select_ranks(ranks, wanted_ranks)]
    if not pieces:
        raise NoLogError(_unknown_rank(number, nodes, choice))
    pieces.sort(key=lambda pair: pair[1].start)
    workers = sum(len(piece) for _, piece in pieces)
    shown = list(islice(((ranks, rank) for ranks, piece in pieces for rank in piece), WORKERS_AT_ONCE_MAX))
    wanted = _WantedRound(run, earlier or run.id, number, follow=follow and not earlier and not run.durable.state.ended)
    sources = tuple(
        wanted.source(ranks.node, rank, stream, offers.get(ranks.node))
        for ranks, rank in shown
        for stream in choice.streams
    )
    return LogSources(sources, workers - len(shown))


def _is_chosen(ranks: Ranks, offers: dict[str, NodeOffer], choice: LogChoice) -> bool:
    host = offers[ranks.node].host if ranks.node in offers else ranks.node
    return not choice.nodes or not choice.nodes.isdisjoint({ranks.node, host})


@dataclass
class _WantedRound:
    """A round whose logs are wanted, perhaps of an earlier run of the job than `run`."""

    run: Run
    run_id: str
    number: int
    follow: bool

    def source(self, node: str, rank: int, stream: LogStream, offer: NodeOffer | None) -> LogSource:
        """Return one log; `offer` is what the node offered when it was in the round."""
        host, base = ("", "") if offer is None else (offer.host, offer.log_dir)
        # The id of a run is made by the coordinator, and is a valid name of a folder as it is.
        folder = f"{base}/{self.run_id}/round_{self.number}" if base else ""
        server = self._server(node, host, base)
        problem = self._problem(node, f"on host {host} in {folder}" if folder else "", server)
        return LogSource(
            run=self.run_id,
            round=self.number,
            rank=rank,
            stream=stream,
            node=node,
            host=host,
            file=f"{folder}/{rank}/{stream}.log" if folder else "",
            served_by=node if server is None else server.node,
            session=None if problem or server is None else server.session.id,
            problem=problem,
        )

    def _server(self, node: str, host: str, base: str) -> Member | None:
        """Return the node to ask: the log's own node, if it is connected, or if the reader follows the log.

        With `follow`, the own node may still come back. Otherwise it is a connected node of the same host with the same
        folder of logs. Without such a node, it is the own node, though that is not connected; None if that has left.
        """
        member = self.run.members.get(node)
        if not base or (member is not None and (member.session.id is not None or self.follow)):
            return member
        return self._by_place.get((host, base), member)

    @cached_property
    def _by_place(self) -> dict[tuple[str, str], Member]:
        """A connected node for each place with logs, by host and folder; few requests need it."""
        connected = [member for member in self.run.members.values() if member.session.id is not None]
        return {(member.offer.host, member.offer.log_dir): member for member in connected}

    def _problem(self, node: str, place: str, server: Member | None) -> str:
        """Return why no node can be asked; `place` says where the logs are, if there are any.

        How an earlier run was launched is not known, so torchrun is not named for one.
        """
        if self.run.spec.launcher is Launcher.TORCHRUN and self.run_id == self.run.id:
            return f"torchrun has started the workers of node {node}, and its own --log-dir says where their logs are"
        if not place:
            return f"node {node} keeps no log files: start its nodeclient with --log-dir DIR, or set NODECLIENT_LOG_DIR"
        if server is not None and (server.session.id is not None or self.follow):
            return ""
        return f"node {node} is not connected: its logs are {place}"


def _unknown_rank(number: int, nodes: Sequence[Ranks], choice: LogChoice) -> str:
    """Explain that the chosen nodes had no worker of the chosen ranks."""
    wanted = ", ".join(
        f"{piece.start}-{piece.stop - 1}" if len(piece) > 1 else str(piece.start) for piece in choice.ranks
    )
    has = name_some(map(_span, nodes), len(nodes))
    return f"round {number} has no rank {wanted}" + (f" on {has}" if choice.nodes else f": it has {has}")


def _unknown_round(run: Run, number: int) -> str:
    if not run.durable.has_had_rounds:
        return f"job {run.job} has had no round yet"
    known = [round_.number for round_ in run.durable.rounds]
    if not known:  # the run has ended, and only the store has its rounds
        which = f"rounds up to {run.durable.round}, of which the last {ROUNDS_RETAINED} are kept"
    else:
        which = f"round {known[0]}" if len(known) == 1 else f"rounds {known[0]} to {known[-1]}"
    return f"round {number} of job {run.job} is not known: run {run.id} has {which}"


def _span(ranks: Ranks) -> str:
    last = ranks.first_rank + ranks.workers - 1
    return f"{ranks.node} ({f'rank {last}' if ranks.workers == 1 else f'ranks {ranks.first_rank} to {last}'})"
