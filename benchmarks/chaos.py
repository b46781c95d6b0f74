"""Kills, stops and cuts off real processes, many times, and measures how long the recovery from each takes.

python -m benchmarks.chaos

First coordinatord is killed with -9 at random moments under real gloo workers and many simulated nodes, then it is
stopped for longer than a lease; then hosts are cut off, and joined by a bad network. What must not happen (a worker
that restarts, a round or a rank that changes, a node that is lost by mistake) ends the program with 1. Short forms of
this are tests, in `tests/chaos`; `tests/support` has the programs and how they are watched.
"""

import argparse
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest

from tests.support.cluster import TRAINING, Cluster, Node
from tests.support.lives import FleetProgram, Lives, MemberState, await_back
from tests.support.programs import kill_quietly, wait_until
from tests.support.sites import COORDINATOR, LinkedSite

GLOO = "gloo"
FLEET = "fleet"
"""The two jobs."""

POLITE = ("nice", "-n", "19")
"""The workers do nothing but all-reduce, as fast as they can: on few cores they would be all that is measured."""

PAUSE_S = 1.0
"""The longest pause between a return to order and the next kill: a heartbeat, so that every moment between two is
met."""

EARLY_SHARE = 0.25
EARLY_S = 1.0
"""The age in seconds that some lives do not reach: they end while they read the state, or while the nodes come back."""

STOPPED_S = 10.0
"""Two leases."""

LOSS, DELAY_S = 0.3, 0.2
"""The share of lost packets and the delay, in either direction."""

NAMES = "abcdefgh"
"""The nodes in the bad network."""

CUTS = {
    "both ways": [("c", COORDINATOR), (COORDINATOR, "c")],
    "to the coordinator": [("c", COORDINATOR)],
    "from the coordinator": [(COORDINATOR, "c")],
}

TELL_EVERY = 20
"""The number of kills between two lines about them."""


class BrokenError(Exception):
    """Something happened that must not; the text says what."""


def tell(what: str, result: str) -> None:
    """Print a fact."""
    print(f"  {what}: {result}", flush=True)


def tell_times(what: str, times_s: Sequence[float]) -> None:
    """Print the times that something took."""
    if times_s:
        tell(what, f"median {median(times_s):.2f} s, worst {max(times_s):.2f} s of {len(times_s)}")


@dataclass(frozen=True, slots=True)
class ChaosStack:
    """A coordinator, two real nodes with two gloo workers each, and a fleet."""

    lives: Lives
    nodes: list[Node]
    fleet: FleetProgram
    before: dict[str, MemberState]

    def check(self) -> None:
        """Check that everything is as it was in the beginning. Raises `BrokenError`."""
        for job, before in self.before.items():
            now = MemberState.of(self.lives.now, job)
            if now != before:
                raise BrokenError(f"job {job} was {before}, and is now {now}")
        if self.restarts:
            raise BrokenError(f"{self.restarts} times workers were started again, or ended")

    @property
    def restarts(self) -> int:
        """Return how often local worker groups have started again or ended."""
        gloo = sum(1 for node in self.nodes for line in list(node.lines) if "starting round " in line)
        started, ended = (len(self.fleet.events_of(event)) for event in ("started", "ended"))
        return gloo - len(self.nodes) + started - self.fleet.size + ended

    def await_back(self, since: float) -> tuple[float, float]:
        """Wait until all nodes are attached in sessions that began after `since`; return when real and others were."""
        await_back(self.lives.now, GLOO)
        real_at = time.monotonic()
        return real_at, self.fleet.await_attached(since)


@contextmanager
def chaos_stack(nodes: int) -> Iterator[ChaosStack]:
    """Set everything up, and take it down."""
    with ExitStack() as stack:
        lives = Lives(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        stack.callback(lives.close)
        cluster = Cluster(lives.now, GLOO)
        stack.callback(cluster.close)
        flags = ("--nnodes", "2", "--nproc-per-node", "2")
        real = [cluster.join(name, *flags, command=(*POLITE, *TRAINING)) for name in "ab"]
        fleet = FleetProgram(lives.now, FLEET, nodes)
        stack.callback(fleet.close)
        real[0].await_event("sum", sum=4)
        fleet.await_attached(since=0.0)
        for job in (GLOO, FLEET):
            lives.now.await_job(job, state="running")
        yield ChaosStack(lives, real, fleet, {job: MemberState.of(lives.now, job) for job in (GLOO, FLEET)})


def kill(on: ChaosStack, kills: int, chance: random.Random) -> None:
    """Kill coordinatord at random moments. Raises `BrokenError`."""
    done = early = 0
    served, real, simulated, whole = [], [], [], []
    while done < kills:
        wait(chance.uniform(0.0, PAUSE_S))
        killed_at = time.monotonic()
        on.lives.kill()
        done += 1
        while done < kills and chance.random() < EARLY_SHARE:
            on.lives.kill_early(chance.uniform(0.0, EARLY_S))
            killed_at = time.monotonic()
            done, early = done + 1, early + 1
        on.lives.start()
        served_at = time.monotonic()
        real_at, simulated_at = on.await_back(killed_at)
        served.append(served_at - killed_at)
        real.append(real_at - served_at)
        simulated.append(max(0.0, simulated_at - served_at))
        whole.append(max(real_at, simulated_at) - killed_at)
        on.check()
        if len(whole) % TELL_EVERY == 0:
            print(f"  {done} kills; the last was made good in {whole[-1]:.2f} s", flush=True)
    tell("coordinatord killed with -9", f"{done} times, {early} of them while it started or nodes came back")
    tell("workers restarted, rounds or ranks changed", "0")
    tell_times("from the kill until the next coordinatord listens", served)
    tell_times("from then until the 2 real nodes are attached", real)
    tell_times(f"from then until the {on.fleet.size} simulated ones are", simulated)
    tell_times("from the kill until all are attached", whole)


def stop(on: ChaosStack) -> None:
    """Stop coordinatord for longer than a lease. Raises `BrokenError`."""
    stopped_at = time.monotonic()
    on.lives.now.signal(signal.SIGSTOP)
    wait(STOPPED_S)
    on.lives.now.signal(signal.SIGCONT)
    woken_at = time.monotonic()
    back_at = max(on.await_back(stopped_at))
    on.check()
    if " lost" in on.lives.now.output:
        raise BrokenError(f"a node was lost when coordinatord had been stopped:\n{on.lives.now.output}")
    tell(f"coordinatord stopped for {STOPPED_S:g} s", f"nobody lost, all attached {back_at - woken_at:.2f} s later")


def finish(on: ChaosStack) -> None:
    """Let the training end well, to see that it was alive. Raises `BrokenError`."""
    rank_0 = next(event for event in on.nodes[0].events if event["rank"] == 0)
    kill_quietly(rank_0["pid"], signal.SIGUSR1)
    codes = [node.wait() for node in on.nodes]
    if codes != [0, 0]:
        raise BrokenError(f"the training did not end well: exit codes {codes}\n{on.nodes[0].output}")


def degrade(towards: str | None, lasts_s: float, seed: int) -> None:
    """Lose and delay packets, in both directions or only towards a host. Raises `BrokenError` in the latter case.

    If both directions lose packets, TCP itself is silent for longer than a lease about once a minute: a figure, and no
    promise.
    """
    with LinkedSite(NAMES, seed=seed) as site:
        nodes = [site.join(name, "--nnodes", f"2:{len(NAMES)}") for name in NAMES]
        site.cluster.await_round(len(NAMES))
        site.coordinator.await_line("all workers are started")
        site.link.shape(delay_s=DELAY_S, loss=LOSS, towards=towards)
        wait(lasts_s)
        site.link.shape(delay_s=0.0, loss=0.0)
        lost = sum(1 for line in site.coordinator.lines if " node lost: " in line)
        parted = sum(1 for node in nodes for line in node.lines if "lost the coordinator" in line)
    way = f"on the way to the {towards}" if towards else "each way"
    what = f"{len(NAMES)} nodes, {LOSS:.0%} loss and {DELAY_S * 1000:.0f} ms {way}, {lasts_s:g} s"
    tell(what, f"{lost} times a node lost, {parted} times a session")
    if towards and lost:
        raise BrokenError("a node was lost under loss and delay of what it sends")


def cut(times: int, chance: random.Random) -> None:
    """Cut a host off, and measure how long the reaction takes."""
    with LinkedSite("abc") as site:
        for name in "abc":
            site.join(name, "--nnodes", "2:3", "--stop-timeout", "1")
        now = site.cluster.await_round(3)
        for which, ways in CUTS.items():
            decided, replaced = [], []
            for _ in range(times):
                wait(chance.uniform(0.0, PAUSE_S))
                seen = len(site.coordinator.lines)
                cut_at = time.monotonic()
                for source, target in ways:
                    site.link.cut(source, target)
                wait_until("the loss", lambda seen=seen: " lost node c" in "\n".join(site.coordinator.lines[seen:]))  # type: ignore[misc]
                decided.append(time.monotonic() - cut_at)
                now = site.cluster.await_round(2, after=now)
                replaced.append(time.monotonic() - cut_at)
                site.link.mend()
                now = site.cluster.await_round(3, after=now)
            tell_times(f"a real cut, {which}, is acted on after", decided)
            tell_times("  and the next round's workers run after", replaced)


def wait(seconds: float) -> None:
    """Let time pass, because its passing is what is measured."""
    threading.Event().wait(seconds)


def main() -> None:
    """Run as the flags say. Exits with 0, or with 1 if something happened that must not."""
    options = _parse()
    chance = random.Random(options.seed)  # noqa: S311 - chaos, no secret
    began_at = time.monotonic()
    verdict = ""
    try:
        print(
            f"coordinatord is killed {options.kills} times under 4 gloo workers and {options.nodes} nodes:", flush=True
        )
        with chaos_stack(options.nodes) as on:
            kill(on, options.kills, chance)
            stop(on)
            finish(on)
        print("hosts with a bad network between them:", flush=True)
        cut(options.cuts, chance)
        for towards in (None, COORDINATOR):
            degrade(towards, options.bad_network, options.seed)
    except pytest.skip.Exception as reason:
        tell("hosts with a bad network between them", f"not measured: {reason}")
    except (BrokenError, AssertionError) as error:  # AssertionError: a wait that timed out
        verdict = f"chaos.py: {error}"
    print(f"seed {options.seed}, {time.monotonic() - began_at:.0f} s")
    sys.exit(verdict or None)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="chaos.py", description="Kill, stop and cut off real processes.")
    parser.add_argument("--kills", type=int, default=200, help="of coordinatord (default: 200)")
    parser.add_argument("--nodes", type=int, default=300, help="simulated beside the real ones (default: 300)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments and the losses (default: 1)")
    parser.add_argument("--cuts", type=int, default=5, help="of each kind (default: 5)")
    parser.add_argument("--bad-network", type=float, default=60.0, metavar="S", help="so long (default: 60)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
