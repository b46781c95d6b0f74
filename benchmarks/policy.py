"""What the policy for failures is worth: jobs of weeks with drawn faults, under this policy and three others.

python -m benchmarks.policy --days 73 --seeds 5

The decisions are those of the coordinator's real machine, in simulated time; only hosts and training are modelled. The
other policies are settings of the same machine, and nodes that tell it less. README.md beside this file explains the
figures, and `policy_traces` where the faults come from.
"""

import argparse
import heapq
import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count, product
from math import log10
from pathlib import Path
from statistics import fmean
from typing import Any

from msgspec.structs import replace
from plot import COLOURS, Chart, Series, draw
from policy_traces import DAY_S, FAMILIES, HOUR_S, TOLD, TRACEBACK, Family, Fault, Kind, draw_trace
from tables import Table, add_flags, positive, spread, write_report

from coordinatord.core.rounds.events import AdminRequested, Reported, Tick
from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import MAY_HAVE_WORKERS
from coordinatord.core.rounds.values.admin_requests import PardonNode
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.messages import JobSpec, Phase
from tests.support.builders import a_failure
from tests.support.host_job import HostJob

RECOVERY_S = 300.0
"""The time from the ranks to the first step: imports, NCCL, a read of the checkpoint; assumed."""

CHECKPOINT_S = HOUR_S
"""The time between two checkpoints; assumed."""

RESUBMIT_S = 660.0
"""When a scheduler starts a job again that has ended: 11 minutes, Lablup's median."""

PERSON_S = 2 * HOUR_S
"""When a person has mended what is broken, after a job has ended for the first time since; assumed."""

REPAIR_S = 24 * HOUR_S
"""When an operator has repaired a host with a broken GPU, and let it in again, whatever the job does; assumed."""

AWAY_S = HOUR_S
"""How long a host is gone that is lost or taken away; assumed."""

BROKEN = 0.3
"""The share of GPU faults after which the GPU is of no use until it is repaired: in ByteRobust, arXiv 2509.16293, a
third of the remedies are evictions."""

BEAT_S = 1.0
"""How often nodes are heard while a round ends and another one forms. Else the machine takes long gaps for a sleep of
its own, in which no node was silent."""

MANY = 1_000_000


@dataclass(frozen=True)
class Rules:
    """One policy: its settings, and whether nodes tell why a worker failed."""

    name: str
    max_restarts: int = MANY
    window_s: float | None = None
    max_futile_rounds: int = 0
    policy: Policy = field(default_factory=lambda: Policy(quarantine_at=0.0, retry_pause_s=0.0))
    tells: bool = False


OURS = Rules("coordinatord", max_futile_rounds=3, policy=Policy(), tells=True)

RULES = (
    OURS,
    Rules("count", max_restarts=3),
    Rules("window", max_restarts=3, window_s=6 * HOUR_S),
    Rules("no progress", max_futile_rounds=3),
)


@dataclass
class Result:
    """What came of one trace under one policy."""

    family: str
    rules: str
    seed: int
    days: float
    ettr: float = 0.0
    """The share of the time in which training was done that counts; a round of fewer hosts counts for less."""
    restarts: int = 0
    """Rounds after the first one of each run."""
    ends: int = 0
    """How often the job ended."""
    kept_out_h: float = 0.0
    """Hours of good hosts in quarantine."""
    lemon_faults: int = 0
    """Faults of lemons while there was a round."""
    lemon_rounds: int = 0
    """Rounds that they ended."""
    bug_rounds: int = 0
    """Rounds that the bug ended, up to the end of the job."""
    quarantined: int = 0
    """Hosts in quarantine at the end."""


class Play:
    """One job under one policy, with the faults of one trace."""

    def __init__(self, family: Family, rules: Rules, seed: int, days: float) -> None:
        self.family, self.rules, self.end_s = family, rules, days * DAY_S
        self.result = Result(family.name, rules.name, seed, days)
        spec = replace(
            JobSpec(family.least, family.size, rules.max_restarts),
            restart_window_s=rules.window_s,
            max_futile_rounds=rules.max_futile_rounds,
        )
        self.job = HostJob(family.hosts, spec, rules.policy)
        self.agenda: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = count()
        self.done_s = 0.0
        """The training that counts, in seconds of a round with all hosts."""
        self.began_at: float | None = None
        """When the training of the round began; None while there is none."""
        self.share = 0.0
        """The hosts of the round, as a part of those that it may have."""
        self.round = ("", 0)
        """The run and the number of the round whose start is planned, or that trains."""
        self.bug_at_s = family.bug_at_s
        """The training after which the script fails; None if it does not, or no longer."""
        self.bug_is_known = False
        """Whether the job has ended since the bug was met."""
        self.broken: set[str] = set()
        """Nodes whose GPU is of no use."""
        self.away: set[str] = set()
        """Nodes whose host is gone."""
        self.person_at = -1.0
        """When the person who was called last has mended all."""
        for fault in draw_trace(family, days, seed):
            self.plan(fault.at, partial(self.strike, fault))

    def play(self) -> Result:
        """Play the trace to its end."""
        self.settle()
        while self.agenda and self.agenda[0][0] < self.end_s:
            at, _, action = heapq.heappop(self.agenda)
            self.advance(at)
            action()
            self.settle()
        self.advance(self.end_s)
        self.end_training(saved=True)
        self.result.ettr = self.done_s / self.end_s
        self.result.quarantined = len(self.job.quarantined)
        return self.result

    def plan(self, at: float, action: Callable[[], None]) -> None:
        """Plan what happens at a time."""
        heapq.heappush(self.agenda, (at, next(self.numbers), action))

    # Time

    def advance(self, to: float) -> None:
        """Let time pass; the machine takes it for a sleep of its own, so that no node was silent."""
        passed_s = to - self.job.now
        if passed_s <= 0:
            return
        if kept_out := self.job.quarantined:
            good = set(self.job.names[self.family.lemons :]) - self.broken
            self.result.kept_out_h += passed_s / HOUR_S * sum(f"host-{node}" in kept_out for node in good)
        self.job.now = to
        self.job.handle(Tick())

    def beat(self) -> None:
        """Let the time of a heartbeat pass, and have all nodes send one."""
        self.job.wait(BEAT_S)
        members = self.job.run.members
        for node, session in list(self.job.sessions.items()):
            self.job.handle(Reported(session, replace(members[node].observed, beat=True)))

    def settle(self) -> None:
        """Have nodes do what they are asked, until a round starts or trains, or nothing is left to do."""
        while not self.job.run.durable.state.ended:
            run = self.job.run
            if run.durable.state is State.STOPPING:
                self.end_training(saved=True)
                for member in list(run.roll.in_state(*MAY_HAVE_WORKERS)):
                    if member.node in self.job.sessions:
                        self.job.report(member.node, Phase.STOPPED)
            elif run.durable.state is State.FORMING and len(self.job.sessions) < self.family.least:
                return
            elif run.durable.state is not State.FORMING:
                if self.round != (run.id, run.durable.round):
                    self.round = (run.id, run.durable.round)
                    self.result.restarts += run.durable.round > 1
                    self.plan(self.job.now + RECOVERY_S, partial(self.train, self.round))
                return
            if run.durable.state in {State.FORMING, State.STOPPING}:
                self.beat()
        if self.job.sessions:
            self.end_job()

    # Rounds

    def train(self, number: tuple[str, int]) -> None:
        """Begin to train in a round, if it is still on and nothing is broken."""
        if number != self.round or self.job.run.durable.state is not State.STARTING:
            return
        inside = self.job.inside
        for node in inside:
            self.job.report(node, Phase.RUNNING, steps=(None,))
        broken = next((node for node in inside if node in self.broken), None)
        if broken is not None:
            self.fail(broken, Kind.DEVICE)
            return
        self.began_at, self.share = self.job.now, len(inside) / self.family.size
        if self.bug_at_s is not None:
            self.plan(self.job.now + max(0.0, self.bug_at_s - self.done_s) / self.share, partial(self.meet_bug, number))

    def meet_bug(self, number: tuple[str, int]) -> None:
        """Fail of the script's bug, if the round is still on and nobody has mended it."""
        if number == self.round and self.began_at is not None and self.bug_at_s is not None:
            self.result.bug_rounds += not self.bug_is_known
            self.fail(self.job.inside[0], Kind.SCRIPT, 90)

    def end_training(self, *, saved: bool) -> None:
        """Count the training of a round that ends."""
        if self.began_at is not None:
            trained_s = self.job.now - self.began_at
            lost_s = 0.0 if saved or self.family.keeps_state else trained_s % CHECKPOINT_S
            self.done_s += (trained_s - lost_s) * self.share
            self.began_at = None

    def fail(self, node: str, kind: Kind, line: int = 0) -> None:
        """Have a worker of this node fail; then its host goes, if it is of that kind."""
        told: dict[str, Any] = dict(TOLD[kind])
        if kind is Kind.SCRIPT:
            told["last_lines"] = tuple(frame.format(line=line) for frame in TRACEBACK)
        self.report_step(node)
        self.end_training(saved=False)
        is_asked = self.rules.tells and kind is Kind.TAKEN
        self.job.report(node, Phase.FAILED, a_failure(**(told if self.rules.tells else {})), leaving=is_asked)
        if kind in {Kind.LOST, Kind.TAKEN}:
            self.job.leave(node)

    def report_step(self, node: str) -> None:
        """Have a node report how far training has come."""
        step = 0 if self.began_at is None else int(self.done_s + (self.job.now - self.began_at) * self.share)
        if step:
            self.job.report(node, Phase.RUNNING, steps=(step,), step_age_s=0.0)

    # What goes wrong, and who mends it

    def strike(self, fault: Fault) -> None:
        """Have a fault befall its hosts."""
        inside = self.job.inside
        nodes = [self.job.names[host] for host in fault.hosts]
        if not nodes:
            alike = [node for node in inside if fault.of_script or int(node[1:]) >= self.family.lemons]
            nodes = alike[int(fault.draw * len(alike)) :][:1]
        nodes = [node for node in nodes if node in self.job.sessions]
        at_work = [node for node in nodes if node in inside]
        if fault.of_lemon and inside and nodes:
            self.result.lemon_faults += 1
            self.result.lemon_rounds += bool(at_work)
        if fault.kind in {Kind.LOST, Kind.TAKEN}:
            self.away.update(nodes)
            self.plan(self.job.now + AWAY_S, partial(self.come_back, nodes))
        if at_work and fault.kind is Kind.LOST and self.rules.tells:
            self.lose(nodes)
        elif at_work:
            if fault.kind is Kind.DEVICE:
                self.broken.update(at_work if fault.draw < BROKEN else ())
                self.plan(self.job.now + REPAIR_S, partial(self.repair, at_work))
            self.fail(at_work[0], fault.kind, int(fault.draw * 1_000))
        for node in nodes if fault.kind in {Kind.LOST, Kind.TAKEN} else ():
            if node in self.job.sessions:
                self.job.leave(node)

    def lose(self, nodes: Sequence[str]) -> None:
        """Have hosts fall silent with their connections open, until the coordinator notices."""
        self.report_step(next(node for node in self.job.inside if node not in nodes))
        self.end_training(saved=False)
        for node in nodes:
            del self.job.sessions[node]
        while self.job.run.durable.state in {State.STARTING, State.RUNNING}:
            self.beat()

    def come_back(self, nodes: Sequence[str]) -> None:
        """Have hosts come back that were gone."""
        self.away.difference_update(nodes)
        if not self.job.run.durable.state.ended:
            self.join(nodes)

    def join(self, nodes: Sequence[str]) -> None:
        """Start a process on each of these hosts."""
        for node in nodes:
            self.job.incarnations[node] += 1
            self.job.join(node)

    def repair(self, nodes: Sequence[str]) -> None:
        """Repair the GPUs of hosts, and let them in again."""
        self.broken.difference_update(nodes)
        for node in nodes:
            if f"host-{node}" in self.job.quarantined:
                self.job.handle(AdminRequested(-1, PardonNode(node, "operator", "repaired")))

    def mend(self) -> None:
        """Mend all that is broken: a person was called."""
        self.bug_at_s = None if self.bug_is_known else self.bug_at_s
        self.repair(list(self.broken))

    def end_job(self) -> None:
        """Have all processes exit, and plan their start: by a scheduler, or by a person if that is for nothing."""
        now, outcome = self.job.now, self.job.run.durable.outcome
        self.end_training(saved=False)
        self.result.ends += 1
        self.bug_is_known |= self.result.bug_rounds > 0
        for node in list(self.job.sessions):
            self.job.leave(node)
        if self.person_at < now:
            self.person_at = now + PERSON_S
            self.plan(self.person_at, self.mend)
        is_futile = outcome is not None and outcome.exit_code == ExitCode.NO_PROGRESS
        self.plan(self.person_at if is_futile else now + RESUBMIT_S, self.resubmit)

    def resubmit(self) -> None:
        """Start the job again on all hosts that are there."""
        self.join([node for node in self.job.names if node not in self.away])


Case = tuple[Family, Rules, int, float]
"""What `Play` plays."""


def measure(case: Case) -> Result:
    """Play one trace under one policy."""
    return Play(*case).play()


def tables(results: Sequence[Result]) -> list[Table]:
    """Return a table of each figure: a row for each family, a column for each policy."""
    shown = []
    for title, figure in FIGURES.items():
        table = Table(title, *(rules.name for rules in RULES))
        for family in FAMILIES:
            cells = [figure(_own(results, family, rules)) for rules in RULES]
            if any(cells):
                table.add(family.name, *cells)
        shown.append(table)
    return shown


def picture(results: Sequence[Result]) -> str:
    """Return an SVG of the time that is lost: a row for each family, a dot for each policy."""
    rows = {family.name: -number for number, family in enumerate(FAMILIES)}
    columns = {f"{share:.0%}": log10(share) for share in (0.01, 0.03, 0.1, 0.3, 1)}
    dots = []
    for rules, colour in zip(RULES, COLOURS, strict=True):
        lost = [1 - fmean(each.ettr for each in _own(results, family, rules)) for family in FAMILIES]
        dots.append(Series(rules.name, [*zip(map(log10, lost), rows.values(), strict=True)], colour, width=0))
    return draw(Chart("time lost:", rows, columns, dots))


def _own(results: Sequence[Result], family: Family, rules: Rules) -> list[Result]:
    return [each for each in results if (each.family, each.rules) == (family.name, rules.name)]


def _avoided(results: Sequence[Result]) -> str:
    faults = sum(each.lemon_faults for each in results)
    return f"{1 - sum(each.lemon_rounds for each in results) / faults:.0%}" if faults else ""


def _bug_rounds(results: Sequence[Result]) -> str:
    return spread([each.bug_rounds for each in results], "d") if any(each.bug_rounds for each in results) else ""


def _quarantined(results: Sequence[Result]) -> str:
    return spread([each.quarantined for each in results], "d") if any(each.quarantined for each in results) else ""


FIGURES: dict[str, Callable[[Sequence[Result]], str]] = {
    "time that makes progress, %": lambda results: spread([100 * each.ettr for each in results], ".1f"),
    "restarts a day": lambda results: f"{fmean(each.restarts / each.days for each in results):.2f}",
    "ends of the job a week": lambda results: f"{7 * fmean(each.ends / each.days for each in results):.2f}",
    "good hosts kept out, host-hours a day": lambda results: (
        f"{fmean(each.kept_out_h / each.days for each in results):.1f}"
    ),
    "rounds of lemons avoided": _avoided,
    "rounds until a bug ends the job": _bug_rounds,
    "hosts in quarantine at the end": _quarantined,
}


def main() -> None:
    """Run as the flags say."""
    parser = argparse.ArgumentParser(prog="policy", description="Play drawn faults under policies for failures.")
    parser.add_argument("--days", type=positive, default=73, help="of each job (default: 73, as in Lablup's trace)")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the time that is lost")
    add_flags(parser, repeat=3)
    options = parser.parse_args()
    cases = list(product(FAMILIES, RULES, range(options.repeat), [float(options.days)]))
    began = time.monotonic()
    with multiprocessing.Pool() as pool:
        results = pool.map(measure, cases, chunksize=1)
    took_s = time.monotonic() - began
    print(*tables(results), sep="\n\n")
    print(f"\n{len(cases) * options.days:,} days of jobs in {took_s:.0f} s: {_a_minute(cases, took_s):,.0f} a minute")
    if options.svg:
        options.svg.write_text(picture(results))
    write_report(options.json, "policy", [asdict(result) for result in results])


def _a_minute(cases: Sequence[Case], took_s: float) -> float:
    return sum(case[-1] for case in cases) / took_s * 60


if __name__ == "__main__":
    main()
