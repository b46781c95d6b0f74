"""One seeded schedule of faults, played on coordinatord, torchrun, NVRx and torchft: goodput, pauses, who is named.

python -m benchmarks.rivals --deeds 12 --seed 1 --rivals build/rivals/bin

README.md beside this file explains the figures, and how another launcher takes part.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

from kept import SCRIPT
from recovery_jobs import START_WITHIN_S, Job, NodeclientJob, prepare, running_job
from recovery_parts import of_round, steps
from rivals.jobs import RIVALS
from rivals.score import Deed, Episode, Named, Planned, Score, draw_schedule, picture, score
from tables import BenchmarkError, Table, add_json_flag, errors_in_one_line, positive, spread, write_report

from tests.support.programs import BIN, kill_quietly

OURS = "coordinatord"

LAUNCHERS = (OURS, "torchrun", *RIVALS)

NODES = 3
"""The nodes of the job, of one worker each. It may go on with one less."""

MEGABYTES = "10"

REPLACED_AFTER_S = 10.0
"""How long after a node is gone another one comes: a scheduler's work, so it is the same for all launchers."""

LEMON_S = 30.0
"""How long a lemon is among the nodes before a person replaces it."""

IN_FLIGHT_S = 0.5
"""How long after a deed a step may still end that was under way."""

BUG_PATIENCE_S = 300.0

PATIENCE_S = 60.0
"""A job that has not gone on by then never does, or takes longer than a person would."""


@dataclass(frozen=True, slots=True)
class Bug:
    """What a launcher made of a script that cannot work."""

    launcher: str
    ended_s: float | None
    """When all its nodes had ended, in seconds; None: not within `BUG_PATIENCE_S`."""
    rounds: int


class Game:
    """A schedule that is played on one job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._names = (f"n{number}" for number in count())
        self._owners: dict[int, str | None] = {}
        """The nodes of all workers so far, by process id: a log may name a worker that has ended."""

    def play(self, schedule: Sequence[Planned]) -> Iterator[Episode]:
        """Yield what follows from each deed. Raises `BenchmarkError` if the job does not train."""
        self._begin()
        for planned in schedule:
            self._pass(planned.after_s)
            began, logged = time.monotonic(), {name: len(lines) for name, lines in self._job.log().items()}
            victim = self._job.node_of_rank(int(planned.victim * NODES))
            self._do(planned.deed, victim)
            by_hand = not self._await_all(PATIENCE_S)
            if by_hand:
                self._help(victim)
            said = [line for name, lines in self._job.log().items() for line in lines[logged.get(name, 0) :]]
            yield Episode(planned.deed, began, time.monotonic(), by_hand, self._named(victim, said))

    def _begin(self) -> None:
        for _ in range(NODES):
            self._job.start(next(self._names))
        if not self._await_all(START_WITHIN_S):
            raise BenchmarkError(f"{NODES} nodes do not begin to train; what they said:\n{self._job.output()}")

    def _do(self, deed: Deed, victim: str) -> None:
        """Do it, and replace the node where somebody would."""
        job = self._job
        match deed:
            case Deed.KILL_WORKER:
                job.kill_worker(victim)
            case Deed.FREEZE_WORKER:
                job.freeze_worker(victim)
            case Deed.KILL_NODE:
                job.kill_node(victim)
            case Deed.SILENCE_NODE:
                for pid in (job.nodes[victim].pid, *job.workers_of(victim)):
                    kill_quietly(pid, signal.SIGSTOP)
            case Deed.REMOVE_NODE:
                job.nodes[victim].signal(signal.SIGTERM)
            case Deed.LEMON:
                self._spoil(victim)
        if deed.takes_node:
            self._pass(REPLACED_AFTER_S)
        if deed.takes_node or deed is Deed.LEMON:
            self._replace(victim)

    def _spoil(self, victim: str) -> None:
        """Abort the worker of a node whenever it has done a step."""
        job, seen = self._job, len(self._job.marks)

        def abort() -> None:
            nonlocal seen
            new, seen = job.marks[seen:], len(job.marks)
            for pid in {mark.pid for mark in new if mark.mark == "step"}:
                if job.node_of(pid) == victim:
                    kill_quietly(pid, signal.SIGABRT)

        self._pass(LEMON_S, abort)

    def _replace(self, victim: str) -> None:
        """Kill what is left of a node, and start another one."""
        self._job.nodes[victim].close()
        self._job.start(next(self._names))

    def _help(self, victim: str) -> None:
        """Do what a person does: replace the node if the others train, else start all of them again."""
        steps_before = len(steps(self._job.marks))
        self._pass(PATIENCE_S / 10)
        if len(steps(self._job.marks)) > steps_before:
            self._replace(victim)
            if self._await_all(PATIENCE_S):
                return
        for node in self._job.nodes.values():
            node.close()
        self._job.nodes.clear()
        self._begin()

    def _pass(self, seconds: float, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Let time pass, and do something again and again meanwhile."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._look(lambda: True, left)
            meanwhile()

    def _await_all(self, patience_s: float) -> bool:
        """Wait until all nodes have done a new step together; return whether they have."""
        since = time.monotonic() + IN_FLIGHT_S

        def all_trained() -> bool:
            newest = max((mark.step for mark in self._job.marks if mark.at <= since), default=0)
            new = [mark for mark in self._job.marks if mark.at > since and mark.step > newest]
            whole = (of_round(new, round_) for round_ in {mark.round for mark in new if mark.world_size == NODES})
            return any(map(steps, whole))

        return self._look(all_trained, patience_s)

    def _look(self, found: Callable[[], bool], patience_s: float) -> bool:
        def look() -> bool:
            for pid in {mark.pid for mark in self._job.marks} - self._owners.keys():
                self._owners[pid] = self._job.node_of(pid)
            return found()

        return bool(self._job.wait(look, patience_s))

    def _named(self, victim: str, said: Sequence[str]) -> Named:
        culprit = self._job.culprit
        found = [match for line in said if culprit and (match := culprit.search(line))]
        names = {
            self._owners.get(int(match["pid"])) if "pid" in match.re.groupindex else match["node"] for match in found
        }
        if not names:
            return Named.NOBODY
        return Named.RIGHT if names == {victim} else Named.WRONG


@contextmanager
def job_of(launcher: str, programs: Path, megabytes: str = MEGABYTES) -> Iterator[Job]:
    """Make a job without nodes, whose training keeps or writes its state in the launcher's own way."""
    nnodes = f"{NODES - 1}:{NODES}"
    with tempfile.TemporaryDirectory(prefix="rivals-") as folder, ExitStack() as stack:
        if launcher in RIVALS:
            rival = RIVALS[launcher]
            job, training = stack.enter_context(closing(rival.begin(nnodes, Path(folder), programs))), rival.training
        else:
            side, mode = ("warm", "keep") if launcher == OURS else (launcher, "dcp-keep")
            flags = ("--topology", "{node}", "--persist", f"{folder}/disk")
            job = stack.enter_context(running_job(side, nnodes, Path(folder), flags=flags))
            training = (SCRIPT.name, mode)
        job.training = (str(SCRIPT.with_name(training[0])), *training[1:], megabytes, folder)
        if isinstance(job, NodeclientJob):
            job.names_hosts = os.geteuid() == 0
        yield job


def play(launcher: str, schedule: Sequence[Planned], programs: Path) -> Score:
    """Play a schedule on one launcher. Raises `BenchmarkError`."""
    with job_of(launcher, programs) as job:
        job.restarts = 100  # its budget of restarts is not what is to be known
        episodes = []
        for episode in Game(job).play(schedule):
            episodes.append(episode)
            helped = "took a person" if episode.by_hand else "went on"
            print(f"{launcher}: {episode.deed}: {helped}, named {episode.named}", file=sys.stderr, flush=True)
        return score(launcher, job.marks, episodes)


def play_bug(launcher: str, programs: Path) -> Bug:
    """Run a script that fails at the same place in each round; return how long that goes on."""
    with job_of(launcher, programs, megabytes="ten") as job:
        began = time.monotonic()
        for name in "abc"[:NODES]:
            job.start(name)
        job.wait(lambda: False, BUG_PATIENCE_S)
        rounds = len({mark.pid for mark in job.marks}) / NODES
        return Bug(launcher, time.monotonic() - began if job.over else None, round(rounds))


def report(scores: Sequence[Score], bugs: Sequence[Bug]) -> Table:
    """Return the table: a column for each launcher."""
    table = Table(f"{len(scores[0].episodes)} deeds", *(each.launcher for each in scores))
    table.add("time in which new steps are done", *(f"{each.goodput:.0%}" for each in scores))
    table.add("the whole, s", *(f"{each.elapsed_s:.0f}" for each in scores))
    table.add("steps done again", *(f"{each.redone}" for each in scores))
    table.add("times that it took a person", *(f"{each.by_hand}" for each in scores))
    for named in Named:
        table.add(f"faults for which it named {named}", *(f"{each.named(named)}" for each in scores))
    for deed in Deed:
        table.add(f"pause after: {deed}, s", *(spread(each.pauses(deed), ".1f") for each in scores))
    ends = (f"{bug.ended_s:.0f}, in round {bug.rounds or '?'}" if bug.ended_s else "never" for bug in bugs)
    table.add("end of a script that cannot work, s", *ends)
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="rivals", description="Play the same faults on several launchers.")
    add_json_flag(parser)
    parser.add_argument("--launcher", choices=LAUNCHERS, action="append", help="only this one; may be repeated")
    parser.add_argument("--deeds", type=positive, default=12, help="how many (default: 12)")
    parser.add_argument("--seed", type=int, default=1, help="of the schedule (default: 1)")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the steps over time into this SVG file")
    words = f"where other projects' programs are, of {', '.join(RIVALS)} (default: {BIN}, beside Python)"
    parser.add_argument("--rivals", type=Path, default=BIN, metavar="BIN", help=words)
    options = parser.parse_args(arguments)
    schedule = draw_schedule(options.seed, options.deeds)
    prepare()
    launchers = list(options.launcher or LAUNCHERS)
    for name, rival in RIVALS.items():
        if name in launchers and (missing := rival.missing(options.rivals)):
            launchers.remove(name)
            print(f"{name} is left out. {missing}; see --rivals", flush=True)
    with errors_in_one_line("rivals"):
        scores = [play(launcher, schedule, options.rivals) for launcher in launchers]
        bugs = [play_bug(launcher, options.rivals) for launcher in launchers]
    print(report(scores, bugs))
    write_report(options.json, "rivals", [*map(asdict, scores), *map(asdict, bugs)])
    if options.svg:
        options.svg.write_text(picture(scores))


if __name__ == "__main__":
    main()
