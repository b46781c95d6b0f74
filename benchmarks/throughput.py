"""Times how many heartbeats a coordinatord answers on one core, beside the bare echo of `echo` in the same run.

The clients are the same, and so are the frames. Each client has one heartbeat under way; there are enough of them that
the server never waits. Server and clients have a core each, if there are two.
"""

import argparse
import asyncio
import gc
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import uvloop
from daemon import NO_HEARTBEAT_S, Server, coordinatord, server, trusting_context
from fleet import fleet_of
from link import Access, Link, framed
from tables import (
    BenchmarkError,
    Figures,
    Table,
    add_flags,
    errors_in_one_line,
    positive,
    runs_words,
    spread,
    write_report,
)

from coordinatord.protocol.codec import encode

ECHO = (sys.executable, "-m", "benchmarks.echo")

SETTLE_S = 0.5
"""The time from the first message until the count begins; no longer than what is counted."""

RUNNING_WITHIN_S = 60.0
"""A bound for the join, so that a benchmark of something broken ends."""

JOB = "throughput"


@dataclass(frozen=True, slots=True)
class Flow:
    """The answers of one server."""

    messages: int
    seconds: float
    cpu_s: float

    @property
    def per_s(self) -> float:
        """Return the messages in a second."""
        return self.messages / self.seconds

    @property
    def cpu_us(self) -> float:
        """Return the server's processor time for a message, in millionths of a second."""
        return 1e6 * self.cpu_s / self.messages


@dataclass(frozen=True, slots=True)
class Run:
    """The servers, one after the other."""

    clients: int
    bytes_to_server: int
    bytes_from_server: int
    coordinatord: Flow
    over_tls: Flow
    """The same coordinatord as it is by default, for nodes with tokens."""
    echo: Flow
    echo_over_tls: Flow


async def measure(clients: int, seconds: float, cores: tuple[int, int]) -> Run:
    """Measure one server after the other with the same frames. Raises `BenchmarkError`."""
    for_server, for_clients = cores
    os.sched_setaffinity(0, {for_clients})
    ours, heartbeat, answer = await _coordinatord(clients, seconds, for_server, tls=False)
    over_tls, *_ = await _coordinatord(clients, seconds, for_server, tls=True)
    echo = await _echo(clients, heartbeat, answer, seconds, for_server)
    echo_over_tls = await _echo(clients, heartbeat, answer, seconds, for_server, Access(trusting_context(), "none"))
    return Run(clients, len(heartbeat), len(answer), ours, over_tls, echo, echo_over_tls)


async def _echo(
    clients: int, heartbeat: bytes, answer: bytes, seconds: float, core: int, access: Access | None = None
) -> Flow:
    """Return the figures of the bare server, over TLS if its clients need that. Raises `BenchmarkError`."""
    command = (*ECHO, answer.hex(), *(() if access is None else ("--tls",)))
    async with server(command, core=core) as bare:
        links = [await Link.connect(bare.url, _ignore, access) for _ in range(clients)]
        flow, echoed = await _flow(links, heartbeat, seconds, bare)
        for link in links:
            link.cut()
    if len(echoed) != len(answer):
        raise BenchmarkError(f"the echo has {len(echoed)} bytes, and the coordinator's answer {len(answer)}")
    return flow


async def _coordinatord(clients: int, seconds: float, core: int, *, tls: bool) -> tuple[Flow, bytes, bytes]:
    """Return the figures of a coordinatord, with the heartbeat and its answer."""
    async with (
        coordinatord(NO_HEARTBEAT_S, core, tls=tls) as daemon,
        fleet_of(clients, daemon.url, JOB, access=daemon.access) as fleet,
    ):
        fleet.join()
        async with asyncio.timeout(RUNNING_WITHIN_S):
            await fleet.ranked()
            await daemon.ledger.started(JOB, 1)
        heartbeat = encode(fleet.nodes[0].heartbeat())
        links = [node.link for node in fleet.nodes if node.link is not None]
        flow, answer = await _flow(links, heartbeat, seconds, daemon)
    return flow, heartbeat, answer


async def _flow(links: Sequence[Link], message: bytes, seconds: float, served: Server) -> tuple[Flow, bytes]:
    """Let each link send the message again as soon as it is answered; return the figures and the last answer."""
    frame = framed(message)
    answers, last = 0, b""

    def start(link: Link) -> None:
        def receive(answer: bytes) -> None:
            nonlocal answers, last
            answers, last = answers + 1, answer
            link.put_frame(frame)

        link.receive = receive
        link.put_frame(frame)

    for link in links:
        start(link)
    await asyncio.sleep(min(SETTLE_S, seconds))
    before, cpu_s, began_at = answers, served.cpu_s(), time.monotonic()
    await asyncio.sleep(seconds)
    flow = Flow(answers - before, time.monotonic() - began_at, served.cpu_s() - cpu_s)
    for link in links:
        link.receive = _ignore
    return flow, last


def _ignore(_: bytes) -> None:
    pass


FIGURES: Figures = (
    ("messages answered a second", ",.0f", lambda flow: flow.per_s),
    ("the server's processor time for one, µs", ".2f", lambda flow: flow.cpu_us),
    ("messages that one core could answer in a second", ",.0f", lambda flow: 1e6 / flow.cpu_us),
    ("the server's core was in use, %", ".0f", lambda flow: 100 * flow.cpu_s / flow.seconds),
)


def table(runs: Sequence[Run]) -> Table:
    """Return a table of the runs."""
    run = runs[0]
    frames = f"{run.clients} clients, {run.bytes_to_server} bytes there, {run.bytes_from_server} back"
    shown = Table(f"{frames}, {runs_words(len(runs))}", "coordinatord", "bare echo", "ratio")
    for over, sides in (
        ("", [(run.coordinatord, run.echo) for run in runs]),
        ("TLS: ", [(run.over_tls, run.echo_over_tls) for run in runs]),
    ):
        for label, spec, figure in FIGURES:
            ours, bare = ([figure(pair[side]) for pair in sides] for side in (0, 1))
            ratios = [mine / its for mine, its in zip(ours, bare, strict=True)]
            shown.add(f"{over}{label}", spread(ours, spec), spread(bare, spec), spread(ratios, ".2f"))
    return shown


def main() -> None:
    """Run as the flags say. Exits with 0, or with 1 after one line that says why not."""
    parser = argparse.ArgumentParser(prog="throughput", description="Time how many heartbeats are answered on a core.")
    parser.add_argument("--clients", type=positive, default=1_024, help="each with a message under way (default: 1024)")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each server and run (default: 5)")
    add_flags(parser, repeat=3)
    options = parser.parse_args()
    available = sorted(os.sched_getaffinity(0))
    if len(available) == 1:
        print("throughput: server and clients share the one core there is: look at the processor time, not at the rate")
    runs: list[Run] = []
    with errors_in_one_line("throughput"):
        gc.disable()  # The clients have no cycles, and a collection would be a pause of all of them.
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            for _ in range(options.repeat):
                cores = (available[0], available[-1])
                runs.append(runner.run(measure(options.clients, options.seconds, cores)))
    print(table(runs))
    write_report(options.json, "throughput", [asdict(run) for run in runs])


if __name__ == "__main__":
    main()
