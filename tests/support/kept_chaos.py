"""Chaos about kept state, by seed: real agents and real training, and any process that saves, sends or restores dies.

The faults are drawn from the seed: workers die at a point of a step, or at a line of the code that saves and restores;
agents die at a line of the code that keeps, transfers and writes to a disk, or are paused for a while; bits flip in
their memory and on the wire, right before a digest is compared; the disk is full; the coordinator is killed at a moment
between the death of a worker and the next step. A script ends when the training does, and then all that its workers
have noted is judged: no state may be torn, mixed or stale, all ranks are at one step, and the training is the
undisturbed one to the last bit. A rank whose host has died draws other random numbers: then only the first two can be
asked for. Where workers alone are killed, no step that was done is done again. What is on the disk has to be whole.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from nodeclient.keeping.disk.durable_file import Progress
from nodeclient.keeping.disk.part_files import read_part
from nodeclient.keeping.disk.step_folder import Contents, find_whole, job_folder
from tests.support import flipping
from tests.support.cluster import Cluster, Node
from tests.support.disks import mounted
from tests.support.flipping import FLIPPED
from tests.support.kept_places import empty_place
from tests.support.kept_training import POINTS, WARM, notes_of, train_ddp, train_sharded
from tests.support.lives import Lives
from tests.support.programs import TIMEOUT_S, wait_until
from tests.support.undisturbed import train_undisturbed
from workerlib.contract.arena import Commit, Place

JOB = "kept"

STEPS = 60

WORLD_SIZE = 3

LINES = {
    "small": 1_500,
    "save": 120,
    "restore": 250,
    "worker": 2_500,
    "arenas": 600,
    "transfer": 250,
    "restoration": 250,
    "agent": 2_500,
    "persist": 4_000,
}
"""The most lines of a place that a process lives for: a few times what one save, transfer or restart takes."""

DISKS = 0.4
"""The share of scripts that have a disk."""

FLIPS = 0.4
"""The share of scripts in which bits flip."""

OCCASIONS = {"memory": 5, "wire": 20}
"""The most occasions that pass until a bit flips: there are five or so with each part that is transferred."""

ROOM, TOO_SMALL = 64_000_000, 60_000
"""A disk with room for all steps, and one that is full with the first or the second."""

PERSIST_EVERY_S = 0.3
"""The least time between two writes to the disk."""

PAUSE_S = 0.7
"""The coordinator dies up to so long after something has happened that it has to act on."""

MOMENTS = ("Killed", "stopping the workers", "starting round", "from memory", "resumes at")
"""The output of nodes when a worker has died, and while the next round forms."""

Undisturbed = dict[int, dict[int, str]]
"""The digests of a training without faults, by rank and step."""

Notes = dict[int, dict[int, list[tuple[int, str]]]]
"""The notes of workers: by rank and step, the rounds and digests."""


@dataclass(slots=True)
class Script:
    """The faults of one run, drawn from its seed."""

    seed: int
    kind: str
    warm: bool
    kills: list[str] = field(default_factory=list)
    agents: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    """The deaths of each agent's lives, in order; after the last one it lives on."""
    coordinator: list[tuple[str, float]] = field(default_factory=list)
    """The output of a node after which the coordinator is killed, and how many seconds later."""
    paused: list[tuple[str, str, float, float]] = field(default_factory=list)
    """An agent that is paused: after which output, how many seconds later, and for how long."""
    flips: dict[str, tuple[str, int]] = field(default_factory=dict)
    """The place where a bit of an agent's flips, and at which occasion, see `flipping`."""
    disk: int | None = None
    """The size in bytes of the disk to which agents write kept state; None if they write nothing."""

    @property
    def loses_memory(self) -> bool:
        """Whether an agent dies, and its kept state with it."""
        return bool(self.agents)

    @property
    def kills_workers_alone(self) -> bool:
        """Whether the ranks that are left have all that is needed to go on from the last step that was done."""
        return self.kind == "ddp" and not (self.agents or self.paused or self.flips)


def draw(seed: int) -> Script:
    """Draw the faults of a seed."""
    chance = random.Random(seed)  # noqa: S311 - chaos, no secret
    script = Script(seed, chance.choice(("ddp", "ddp", "ddp", "fsdp")), warm=chance.random() < 0.7)
    step = 1
    for round_ in range(1, chance.randint(4, 10) if script.warm else 3):  # cold workers take long to start
        step += chance.randint(1, 5)
        victim, other = chance.sample(range(WORLD_SIZE), 2)
        if script.kind == "ddp" and chance.random() < 0.6:
            script.kills.append(f"{round_}:{victim}:{min(step, STEPS - 1)}:{chance.choice(POINTS)}")
        else:
            script.kills.append(f"{round_}:{victim}:{_line(chance, 'small', 'save', 'restore', 'worker')}")
        if chance.random() < 0.35:  # while the others save for it, say
            script.kills.append(f"{round_}:{other}:{_line(chance, 'save', 'restore', 'worker')}")
    if chance.random() < 0.35:
        for name in chance.sample("abc", chance.choice((1, 1, 2))):
            place = chance.choice(("arenas", "transfer", "restoration", "agent"))
            script.agents[name] = [(place, chance.randint(1, LINES[place]))]
    if chance.random() < 0.35:
        script.coordinator = [(chance.choice(MOMENTS), chance.uniform(0, PAUSE_S)) for _ in range(chance.randint(1, 2))]
    if chance.random() < 0.25:
        lasts_s = chance.choice((0.3, 1.0, 3.0))
        script.paused.append((chance.choice("abc"), chance.choice(MOMENTS), chance.uniform(0, 0.3), lasts_s))
    _draw_disk(script, random.Random(2000 + seed))  # noqa: S311 - of its own: all else is as it was before
    _draw_flips(script, random.Random(3000 + seed))  # noqa: S311 - as above
    return script


def _draw_flips(script: Script, chance: random.Random) -> None:
    if chance.random() < FLIPS:
        for name in chance.sample("abc", chance.choice((1, 2, 3))):
            if name not in script.agents:
                place = chance.choice(flipping.PLACES)
                script.flips[name] = (place, chance.randint(1, OCCASIONS[place]))


def _draw_disk(script: Script, chance: random.Random) -> None:
    if chance.random() < DISKS:
        script.disk = chance.choice((ROOM, ROOM, TOO_SMALL))
        if chance.random() < 0.7:
            for name in chance.sample("abc", chance.choice((1, 2))):
                script.agents.setdefault(name, []).append(("persist", chance.randint(1, LINES["persist"])))


def _line(chance: random.Random, *places: str) -> str:
    place = chance.choice(places)
    return f"{place}:{chance.randint(1, LINES[place])}"


class ScriptRun:
    """The programs of one script."""

    def __init__(self, script: Script, folder: Path, stack: ExitStack) -> None:
        self.script = script
        self.notes = folder / "notes"
        self.notes.mkdir()
        self.disk = folder / "disk"
        if script.disk is not None:
            stack.enter_context(mounted(self.disk, script.disk))
        self.lives = Lives(folder / "state", "--settle", "20")
        stack.callback(self.lives.close)
        self.cluster = Cluster(self.lives.now, JOB)
        stack.callback(self.cluster.close)
        self.endpoint = self.lives.now.endpoint
        self.nodes: dict[str, Node] = {}
        self.deaths = 0
        self._deaths_to_come = {name: list(deaths) for name, deaths in script.agents.items()}
        self._seen: dict[int, int] = {}
        for name in "abc":
            self._join(name)

    def _join(self, name: str) -> None:
        script = self.script
        prefix: tuple[str, ...] = ("env", "OMP_NUM_THREADS=1")
        deaths = self._deaths_to_come.get(name)
        if deaths:
            place, lines = deaths.pop(0)
            prefix += (sys.executable, "-m", "tests.support.dying", place, str(lines))
        elif name in script.flips:
            place, count = script.flips[name]
            prefix += (sys.executable, "-m", "tests.support.flipping", place, str(count))
        program = (sys.executable, "-m", "tests.support.kept_program")
        command = (*program, script.kind, str(self.notes), str(STEPS), *script.kills)
        flags = ("--nnodes", str(WORLD_SIZE), "--max-restarts", "99", *(WARM[script.kind] if script.warm else ()))
        flags += ("--max-futile-rounds", "0")
        if script.disk is not None:
            flags += ("--persist", str(self.disk), "--persist-every", str(PERSIST_EVERY_S))
        self.nodes[name] = self.cluster.join(name, *flags, command=command, coord=self.endpoint, prefix=prefix)

    def play(self) -> None:
        """Let everything happen, until the training is over. Raises `AssertionError` if that takes too long."""
        coordinator, paused = list(self.script.coordinator), list(self.script.paused)
        due: list[tuple[float, Callable[[], None]]] = []

        def look() -> bool:
            now = time.monotonic()
            self._replace_the_dead()
            output = self._new_output()
            if coordinator and coordinator[0][0] in output:
                due.append((now + coordinator.pop(0)[1], self._kill_coordinator))
            if paused and paused[0][1] in output:
                name, _, wait_s, lasts_s = paused.pop(0)
                due.append((now + wait_s, partial(self._signal, name, signal.SIGSTOP)))
                due.append((now + wait_s + lasts_s, partial(self._signal, name, signal.SIGCONT)))
            for deed in [deed for deed in due if deed[0] <= now]:
                due.remove(deed)
                deed[1]()
            # A node ends well only when all have succeeded.
            return any(node.process.poll() == 0 for node in self.nodes.values())

        wait_until("the end of the training", look, 3 * TIMEOUT_S)

    def _replace_the_dead(self) -> None:
        for name, node in list(self.nodes.items()):
            code = node.process.poll()
            if code == -signal.SIGKILL:
                self.deaths += 1
                self._join(name)
            else:
                assert code in (None, 0), f"node {name} ended with {code}"

    def _kill_coordinator(self) -> None:
        self.deaths += 1
        self.lives.kill()
        self.lives.start()

    def _signal(self, name: str, signum: signal.Signals) -> None:
        node = self.nodes[name]
        if node.process.poll() is None:
            node.process.send_signal(signum)

    def _new_output(self) -> str:
        found = []
        for node in self.cluster.nodes:
            seen = self._seen.get(node.pid, 0)
            lines = node.lines[seen:]
            self._seen[node.pid] = seen + len(lines)
            found += lines
        return "\n".join(found)

    @property
    def output(self) -> str:
        """The output of all nodes."""
        return "\n".join(f"{node.name}: {line}" for node in self.cluster.nodes for line in node.lines)


@dataclass(slots=True)
class Verdict:
    """The figures of a run that is over."""

    rounds: int
    deaths: int
    redone: int
    """The steps that rank 0 did again, in all."""
    on_disk: int = 0
    """The whole steps on the disk in the end."""
    flipped: int = 0
    lone_deaths: int = 0
    """The rounds that were ended by the death of workers alone: none of their steps was done again."""

    def add(self, other: Verdict) -> None:
        """Add the figures of another run."""
        self.rounds += other.rounds
        self.deaths += other.deaths
        self.redone += other.redone
        self.on_disk += other.on_disk
        self.flipped += other.flipped
        self.lone_deaths += other.lone_deaths

    def __str__(self) -> str:
        text = f"{self.rounds} rounds, {self.deaths} deaths, {self.redone} steps redone"
        text += f", {self.flipped} bits flipped" if self.flipped else ""
        text += f", 0 steps redone in {self.lone_deaths} rounds after a worker" if self.lone_deaths else ""
        return f"{text}, {self.on_disk} whole steps on the disk" if self.on_disk else text


def judge(played: ScriptRun, undisturbed: Undisturbed) -> Verdict:
    """Judge what the workers have noted. Raises `AssertionError` with what is wrong."""
    noted, begins = notes_of(played.notes), notes_of(played.notes, "begins")
    by_round: dict[int, set[int]] = {}
    for rank, steps in begins.items():
        for step, found in steps.items():
            for round_, digest in found:
                by_round.setdefault(round_, set()).add(step)
                if step >= 0:
                    _compare(played, undisturbed, rank, step, digest, f"round {round_} begins")
    for round_, begun in by_round.items():
        assert len(begun) == 1, f"ranks of round {round_} begin at steps {sorted(begun)}"
    alike: dict[tuple[int, int], set[str]] = {}
    for rank, by_step in noted.items():
        for step, found in by_step.items():
            for round_, digest in found:
                _compare(played, undisturbed, rank, step, digest, f"round {round_}")
                alike.setdefault((round_, step), set()).add(digest.split("-")[0])
    for (round_, step), digests in alike.items():
        assert len(digests) == 1, f"ranks of round {round_} differ after step {step}"
    _follow(by_round, alike, begins)
    last = max(by_round)
    # An agent that dies at the very end costs a round in which no step is left to do.
    assert (last, STEPS - 1) in alike or by_round[last] == {STEPS - 1}, "the last step was not done"
    redone = sum(len(found) - 1 for found in noted[0].values())
    lone_deaths = _judge_lone_deaths(noted, last - 1) if played.script.kills_workers_alone else 0
    flipped = played.output.count(FLIPPED)
    return Verdict(last, played.deaths + last - 1, redone, _judge_disk(played), flipped, lone_deaths)


def _judge_lone_deaths(noted: Notes, deaths: int) -> int:
    """Check that no rank has done any step again after so many rounds that a worker has ended; return how many."""
    for rank, steps in noted.items():
        twice = sorted(step for step, found in steps.items() if len(found) > 1)
        assert not twice, f"rank {rank} did the steps {twice} again, although workers alone were killed"
    return deaths


def _judge_disk(played: ScriptRun) -> int:
    """Check that each step whose manifest is there can be read, to the last bit; return how many there are."""
    folder = job_folder(played.disk, JOB)
    whole, problems = find_whole(folder)
    assert not problems, f"the disk has steps that are of no use: {problems}"
    for manifest in whole:
        for file in manifest.files:
            if file.contents is not Contents.BUFFERS:
                place = partial(_room, file.bytes)
                read_part(folder / manifest.of.folder, manifest.of, file, place, Progress())
    return len(whole)


def _room(size: int, commit: Commit) -> Place:
    return empty_place(max(size, commit.length))


def _compare(played: ScriptRun, undisturbed: Undisturbed, rank: int, step: int, digest: str, when: str) -> None:
    if not played.script.loses_memory:
        expected = undisturbed[rank][step]
        assert digest == expected, f"{when}: rank {rank} has {digest} after step {step}, and undisturbed {expected}"


def _follow(by_round: dict[int, set[int]], alike: dict[tuple[int, int], set[str]], begins: Notes) -> None:
    """Check that each round goes on from the very state of an earlier one, and that steps follow one another."""
    for round_, [step] in sorted(by_round.items()):
        before = {next(iter(digests)) for (number, at), digests in alike.items() if at == step and number < round_}
        now = {
            digest.split("-")[0]
            for steps in begins.values()
            for number, digest in steps.get(step, [])
            if number == round_
        }
        assert len(now) == 1, f"ranks of round {round_} begin with different states"
        assert step < 0 or not before or now <= before, f"round {round_} begins with a state that nobody had"


def play(seed: int, folder: Path, undisturbed: dict[str, Undisturbed]) -> Verdict:
    """Play one seed and judge it. Raises `AssertionError` with the output of all nodes."""
    script = draw(seed)
    with ExitStack() as stack:
        played = ScriptRun(script, folder, stack)
        try:
            played.play()
            return judge(played, undisturbed[script.kind])
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error}\n{script}\n{played.output}") from error


def undisturbed_training(kind: str, folder: Path) -> Undisturbed:
    """Return the digests of a training without faults."""
    train = train_ddp if kind == "ddp" else train_sharded
    return train_undisturbed(folder, WORLD_SIZE, STEPS, train)
