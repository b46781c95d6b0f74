"""A fleet in a process of its own, so that its work is not taken for the coordinator's, nor for another fleet's.

It prints one line once the last node has its rank, and then, for each line on standard input, what was counted since
the last one. The caller arranges how busy the host is otherwise: see `politeness`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass

import uvloop
from daemon import Players, players
from fleet import fleet_of
from tables import BenchmarkError, first_of

PROGRAM = (sys.executable, "-m", "benchmarks.fleet_process")


@dataclass(frozen=True, slots=True)
class Beats:
    """The nodes' messages and answers in a span of time."""

    answers: int
    overdue: int
    """Heartbeats that could not be sent, since the last one had not been answered."""
    median_ms: float
    late_ms: float
    """One in a hundred answers came later."""
    worst_ms: float
    bytes_to_coordinator: int
    bytes_from_coordinator: int


class FleetProcess:
    """The process, seen from outside."""

    def __init__(self, nodes: Players) -> None:
        self._nodes = nodes

    async def running(self) -> dict[str, float]:
        """Wait until all nodes have their ranks; return when the first began and the last had its own."""
        return await self._nodes.tell()

    async def beats(self) -> Beats:
        """Return what has been counted since the last time, or since the ranks were there."""
        return Beats(**await self._nodes.tell("count"))


@asynccontextmanager
async def fleet_process(
    size: int, url: str, job: str, *, join_within_s: float = 0.0, politeness: int = 0
) -> AsyncIterator[FleetProcess]:
    """Have beating nodes join while the context lasts, with this `politeness`, as nice(1) defines it."""
    place = (url, job, str(size), "--join-within", str(join_within_s), "--politeness", str(politeness))
    async with players("simulated nodes", *PROGRAM, *place) as nodes:
        yield FleetProcess(nodes)


# The process, from inside


async def _play(options: argparse.Namespace) -> None:
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    async with fleet_of(options.size, options.url, options.job, beating=True) as fleet:
        fleet.join(options.join_within)
        await fleet.ranked()
        _write(began_at=fleet.first_began_at, joined_at=fleet.last_joined_at, ranked_at=fleet.last_ranked_at)
        fleet.count_anew()
        while await commands.readline():
            sent = sum(node.traffic.bytes_sent for node in fleet.nodes)
            received = sum(node.traffic.bytes_received for node in fleet.nodes)
            _write(**asdict(_beats(fleet.answers_s, fleet.overdue, sent, received)))
            fleet.count_anew()


def _beats(answers_s: array[float], overdue: int, sent: int, received: int) -> Beats:
    late = sorted(answers_s) or [0.0]

    def share_ms(share: float) -> float:
        return 1_000 * late[min(len(late) - 1, int(share * len(late)))]

    return Beats(len(answers_s), overdue, share_ms(0.5), share_ms(0.99), share_ms(1.0), sent, received)


def _write(**facts: float) -> None:
    print(json.dumps(facts), flush=True)


def main() -> None:
    """Do as the arguments say, until standard input ends."""
    parser = argparse.ArgumentParser(prog="fleet_process")
    parser.add_argument("url")
    parser.add_argument("job")
    parser.add_argument("size", type=int)
    parser.add_argument("--join-within", type=float, required=True)
    parser.add_argument("--politeness", type=int, required=True)
    options = parser.parse_args()
    os.nice(options.politeness)
    gc.disable()  # A collection would halt all nodes together, which never happens on hosts of their own.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_play(options))
        except* (BenchmarkError, OSError) as errors:
            print(json.dumps({"error": str(first_of(errors))}), flush=True)


if __name__ == "__main__":
    main()
