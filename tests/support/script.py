"""A coordinator on a stage: a script has the actions of its nodes, and gets back the coordinator's answers.

A command names one node or several, and then what they do: `join n1 n2 min=2`, `keep n1 n2 1:8`, `stopped n1 n2`.

The nodes here are puppets: they send the messages of the script, also those that no real agent sends. By themselves
they send heartbeats alone. Addresses: node `n7` comes from 10.0.0.7, the coordinator is 10.0.0.254, and the
coordinator's clock begins at 0.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, TypeVar, get_type_hints

from msgspec import Struct, convert, structs

from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.effects import Answer, Batch, Close, Effect, Look, Refuse, Send
from coordinatord.core.rounds.events import (
    AdminRequested,
    Compared,
    Connected,
    Disconnected,
    Event,
    Looked,
    NodeArrivals,
    Reported,
    StoreFailed,
    StoreRecovered,
    Tick,
)
from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.admin_requests import (
    DrainNode,
    ForgetJob,
    PardonNode,
    PreflightJob,
    QuarantineNode,
    RestartJob,
    StopJob,
    UndrainNode,
)
from coordinatord.core.rounds.values.records import (
    Record,
    RoundEnded,
    RoundFormed,
    RoundStarted,
    RoundStopped,
    RunEnded,
    TrainingBegan,
)
from coordinatord.core.shown.job_view import job_view
from coordinatord.protocol.http.api import JobStatus
from coordinatord.protocol.kept_state import Holding, Restoring, StateDigest
from coordinatord.protocol.messages import (
    Desired,
    Goal,
    JobSpec,
    Join,
    NodeOffer,
    Observed,
    Phase,
    Section,
)
from coordinatord.protocol.pair_messages import PairResult
from tests.support.builders import EPOCH, a_failure, a_join, a_spec, an_end, an_observed, an_offer
from tests.support.kept_state import a_holding, a_keeper, kept_text, wrote
from tests.support.looks import arrived, seen


def record_text(record: Record) -> str:
    """Write a record with its facts and its reason."""
    kind = record.KIND
    facts = ""
    match record:
        case RoundFormed():
            facts = f" round {record.round} of {', '.join(ranks.node for ranks in record.nodes)}"
        case RoundEnded():
            facts = f" round {record.round}, {'charged' if record.charged else 'free'}"
        case RoundStarted() | TrainingBegan():
            facts = f" round {record.round}"
        case RoundStopped():
            facts = f" round {record.round}, {'planned' if record.planned else 'at once'}"
        case RunEnded():
            facts = f" {record.outcome.result} with exit code {record.outcome.exit_code:d}"
        case _:
            node = getattr(record, "node", "")
            facts = f" {node}" if node else ""
    return f"{kind}{f' {record.run}' if record.run else ''}{facts}: {record.reason}"


def desired_text(desired: Desired) -> tuple[str, str]:
    """Describe a desired state and its reason."""
    goal, reason = str(desired.goal), desired.reason
    if desired.assignment is not None:
        part = desired.assignment
        goal += f" as group rank {part.group_rank} of {part.group_world_size}, ranks from {part.first_rank} of"
        goal += f" {part.world_size}, master {part.master_address}:{part.master_port}"
        goal += f", restarts {part.restarts_used} of {part.max_restarts}"
    goal += kept_text(desired)
    if desired.outcome is not None:
        goal += f", {desired.outcome.result} with exit code {desired.outcome.exit_code:d}"
        reason = desired.outcome.summary
    if desired.pair is not None:
        pair = desired.pair
        goal += f", test {pair.number} with {pair.partner} as rank {pair.rank} at {pair.address}:{pair.port}"
    goal += ", planned" if desired.planned else ""
    goal += "" if desired.wait_s is None else ", for a limited time"
    return f"{desired.run} round {desired.round}: {goal}", reason


def seconds_of(text: str) -> float:
    """Read a duration such as `12s`."""
    return float(text.removesuffix("s"))


def fields_of(kind: type[Struct], options: dict[str, str]) -> dict[str, Any]:
    """Take those options that are fields of this kind, and read them as such."""
    types = get_type_hints(kind, include_extras=True)
    return {name: convert(options.pop(name), types[name], strict=False) for name in types.keys() & options.keys()}


def number_of(node: str) -> int:
    """Return the number in the name of a node."""
    return int("".join(letter for letter in node if letter.isdigit()) or 99)


PHASES = {
    "prepared": Phase.IDLE,
    "running": Phase.RUNNING,
    "stopping": Phase.STOPPING,
    "stopped": Phase.STOPPED,
    "succeed": Phase.SUCCEEDED,
    "failed": Phase.FAILED,
}

REQUESTS = {
    "stop": StopJob,
    "restart": RestartJob,
    "forget": ForgetJob,
    "preflight": PreflightJob,
    "drain": DrainNode,
    "undrain": UndrainNode,
    "quarantine": QuarantineNode,
    "pardon": PardonNode,
}


SPEC_FIELDS = {
    "min": "nodes_min",
    "max": "nodes_max",
    "restarts": "max_restarts",
    "futile": "max_futile_rounds",
    "scale": "scale_up",
    "hang": "hang_timeout_s",
    "laggards": "drain_laggards",
    "divergence": "on_divergence",
}
"""Shorter names of a job's settings."""


_NEW_ROUND = {"failure": None, "steps": (), "step_age_s": None, "stepped_twice": False, "digests": ()}
"""What a node reports at the beginning of a round."""

Command = Callable[[list[str], dict[str, str]], object]
"""Does what a line says in its words and options."""


class ScriptError(ValueError):
    """A line of a script is no known command."""


@dataclass
class Puppet:
    """A node as the script has it."""

    join: Join
    session: int
    silent: bool = False
    observed: Observed = field(default_factory=an_observed)
    stepped_at: float = 0.0
    """When its workers did the last step that it reports."""
    section_at: float = 0.0
    """When they began the section that it reports."""
    desired: Desired | None = None
    shown: str = ""
    """The last message that it received, as written: a repeated one is not written again."""

    @property
    def name(self) -> str:
        """Write the node with its job, unless that is the default."""
        job = self.join.job
        return self.join.node if job == "default" else f"{self.join.node} ({job})"


RecordT = TypeVar("RecordT", bound=Record)


class Stage:
    """One coordinator, its puppets and the time."""

    def __init__(self, **policy: Any) -> None:
        self.coordinator = Coordinator(Policy(**policy), EPOCH)
        self.now = 0.0
        self.puppets: dict[str, Puppet] = {}
        self._sessions: dict[int, Puppet] = {}
        self._open: set[int] = set()
        self._next_beat = self._heartbeat_s
        self._written: list[str] = []
        self.past: list[tuple[float, Record]] = []
        """All records, with their times."""
        self.look: Look | None = None
        """The last look that was asked for, until it is answered."""
        self._asked = 0
        """The last request of an operator, numbered downward."""
        self._commands: dict[str, Command] = {
            "join": self._join,
            "reconnect": self._reconnect,
            "fail": self._fail,
            "recall": self._recall,
            "announce": self._each(self._announce),
            "step": self._one_by_one(self._step),
            "digest": self._one_by_one(self._digest),
            "section": self._one_by_one(self._section),
            "seen": self._seen,
            "arrived": self._arrived,
            "unseen": self._unseen,
            "keep": self._one_by_one(self._keep),
            "fetch": self._one_by_one(self._fetch),
            "tested": self._tested,
            "write": self._one_by_one(self._write_step),
            "die": lambda words, _: self._die(seconds_of(words[0])),
            "ask": self._ask,
            "leave": self._each(lambda puppet: self._send(puppet, leaving=True)),
            "drop": self._each(self._drop),
            "silence": self._each(lambda puppet: setattr(puppet, "silent", True)),
            "heal": self._each(self._heal),
            "advance": lambda words, _: self._advance(seconds_of(words[0])),
            "stall": lambda words, _: self._stall(seconds_of(words[0])),
            "trouble": lambda words, _: self._trouble(seconds_of(words[0])),
            "status": lambda words, _: self._status(*words),
        } | {name: self._each(self._reporter(phase)) for name, phase in PHASES.items()}

    def play(self, *lines: str) -> list[str]:
        """Carry out some lines of a script; return their consequences."""
        self._written = []
        for line in lines:
            command, *words = line.split()
            plain = [word for word in words if "=" not in word]
            options = dict(word.split("=", 1) for word in words if "=" in word)
            if command not in self._commands:
                raise ScriptError(f"no such command: {command}")
            self._commands[command](plain, options)
        return self._written

    def handle(self, event: Event) -> Batch:
        """Give the coordinator an event; return its answer, of which `play` tells as well."""
        batch = self.coordinator.handle(event, self.now)
        for record in batch.records:
            self.past.append((self.now, record))
            self._write(record_text(record))
        for look in batch.looks:
            self.look = look
            self._write(f"looks at the workers of {', '.join(source.node for source in look.sources)}")
        for effect in batch.effects:
            for line in self._effect_text(effect):
                self._write(line)
        return batch

    def report(self, node: str, **changes: Any) -> Batch:
        """Have a node report something that no command has, in the last round that it received."""
        return self._report(self.puppets[node], **changes)

    @property
    def run(self) -> Run:
        """The run of the job `default`."""
        return self.coordinator.jobs["default"]

    def state(self) -> State:
        """Return its state."""
        return self.run.durable.state

    def view(self) -> JobStatus:
        """Return its status."""
        return job_view(self.run, self.now, self.coordinator.store_error)

    def desired(self, node: str) -> Desired:
        """Return the last desired state that a node received."""
        desired = self.puppets[node].desired
        assert desired is not None, f"{node} has received nothing"
        return desired

    def records(self, kind: type[RecordT]) -> list[RecordT]:
        """Return all records of a kind."""
        return [record for _, record in self.past if isinstance(record, kind)]

    # Commands

    def _join(self, words: list[str], options: dict[str, str]) -> None:
        """Bring new nodes. All that they say of themselves can be given: `join n1 workers=8 phase=idle age_s=3`."""
        for node in words:
            said = {SPEC_FIELDS.get(name, name): value for name, value in options.items()}
            keeper = a_keeper(9_000 + number_of(node), said.pop("keeps", ""))
            spec = structs.replace(a_spec(), **fields_of(JobSpec, said))
            observed = an_observed(port=40_000 + number_of(node), **fields_of(Observed, said))
            top, offer = fields_of(Join, said), an_offer(node, **fields_of(NodeOffer, said))
            if said:
                raise ScriptError(f"no node says this of itself: {', '.join(said)}")
            puppet = Puppet(a_join(node, spec=spec, offer=offer, keeper=keeper, **top), session=0, observed=observed)
            self.puppets[puppet.name] = puppet
            self._connect(puppet)

    def _connect(self, puppet: Puppet) -> None:
        puppet.session = len(self._sessions) + 1
        puppet.silent, puppet.shown = False, ""
        self._sessions[puppet.session] = puppet
        self._open.add(puppet.session)
        join = structs.replace(puppet.join, observed=self._aged(puppet))
        address = f"10.0.0.{number_of(puppet.join.node)}"
        self.handle(Connected(puppet.session, join, address, "10.0.0.254"))

    def _reconnect(self, words: list[str], options: dict[str, str]) -> None:
        """Bring nodes back, which may say something else: `reconnect n1 phase=failed age=9s`, of its failure's age."""
        for puppet in self._called(words, options):
            changes = fields_of(Observed, dict(options))
            if puppet.observed.failure is not None and "age" in options:
                changes["failure"] = structs.replace(puppet.observed.failure, age_s=seconds_of(options["age"]))
            puppet.observed = structs.replace(puppet.observed, **changes)
            self._connect(puppet)

    def _fail(self, words: list[str], options: dict[str, str]) -> None:
        for puppet in self._called(words, options):
            part = puppet.desired.assignment if puppet.desired else None
            local_rank = int(options.get("local_rank", 0))
            failure = a_failure(
                rank=local_rank + (part.first_rank if part else 0),
                local_rank=local_rank,
                age_s=seconds_of(options.get("age", "0s")),
                **an_end(options),
            )
            self._report(puppet, phase=Phase.STOPPING, failure=failure)

    def _ask(self, words: list[str], options: dict[str, str]) -> None:
        """Have an operator send a request: `ask drain n1 why=broken`, `ask drain n9 ahead=yes`."""
        kind, target = words
        self._asked -= 1
        flags = dict.fromkeys(options.keys() & {"ahead", "no_persist"}, True)
        request = REQUESTS[kind](target, "alice", options.get("why", ""), **flags)
        self.handle(AdminRequested(self._asked, request))

    def _recall(self, words: list[str], options: dict[str, str]) -> None:
        """Have nodes report that they run a round that this coordinator need not have sent them."""
        for puppet in self._called(words, options):
            self._report(puppet, phase=Phase.RUNNING, round=int(options["round"]))

    def _announce(self, puppet: Puppet) -> None:
        """Have a node announce with a heartbeat that its workers will report steps."""
        self._send(puppet, steps=(None,), beat=True)

    def _step(self, words: list[str], options: dict[str, str]) -> None:
        """Have a node report its workers' last steps with a heartbeat: `step n1 7 - age=0.5s`, `-` for none yet.

        With `twice=yes`, a worker has done a step before, which was not reported.
        """
        node, *steps = words
        puppet = self.puppets[node]
        age_s = seconds_of(options.get("age", "0s"))
        done = tuple(None if step == "-" else int(step) for step in steps)
        twice = "twice" in options or any(step is not None for step in puppet.observed.steps)
        puppet.observed = structs.replace(puppet.observed, steps=done, step_age_s=age_s, stepped_twice=twice)
        puppet.stepped_at = self.now - age_s
        self._resend(puppet)

    def _digest(self, words: list[str], options: dict[str, str]) -> None:
        """Have a node report the digest of each worker's state after a step: `digest n1 8 7 7 shards=0,1`."""
        node, step, *digests = words
        shards = options.get("shards", ",".join("0" * len(digests))).split(",")
        found = tuple(map(StateDigest, [int(step)] * len(digests), map(int, shards), map(int, digests)))
        self.puppets[node].observed = structs.replace(self.puppets[node].observed, digests=found)
        self._step([node, step], {})

    def _section(self, words: list[str], options: dict[str, str]) -> None:
        """Have a node report the section that its workers are in: `section n1 eval limit=60s`; `section n1` ends it."""
        puppet = self.puppets[words[0]]
        section = Section(words[1], seconds_of(options["limit"]), 0.0, 0) if words[1:] else None
        puppet.observed, puppet.section_at = structs.replace(puppet.observed, section=section), self.now
        self._resend(puppet)

    def _seen(self, words: list[str], options: dict[str, str]) -> None:
        """Answer the last look: `seen waits stands` is its result for rank 0 and rank 1."""
        del options
        look, self.look = self.look, None
        if look is None:
            raise ScriptError("nobody looks")
        nodes = [source.node for source in look.sources for _ in source.ranks]
        workers = tuple(seen(node, rank, kind) for rank, (node, kind) in enumerate(zip(nodes, words, strict=True)))
        self.handle(Looked(look.run, look.round, look.number, workers))

    def _arrived(self, words: list[str], late: dict[str, str]) -> None:
        """Set when workers came to their last collectives, one in each step: `arrived n2=0.2s` is late.

        `arrived 30s` means that the last one was so long ago.
        """
        ago_s = seconds_of(words[0]) if words else 0.0
        run = self.coordinator.jobs["default"]
        step_s = run.progress.pace.usual_s or 1.0
        nodes = tuple(
            arrived(own.node, own.first_rank, self.now, step_s, seconds_of(late.get(own.node, "0s")) - ago_s)
            for own in run.durable.order.values()
        )
        self.handle(Compared(run.id, run.durable.round, nodes))

    def _unseen(self, words: list[str], options: dict[str, str]) -> None:
        """Have nodes answer when their workers came to collectives, where no worker shows itself: `unseen n1 n2`."""
        nodes = tuple(
            NodeArrivals(puppet.join.node, self.now, 0.0, self.now, ()) for puppet in self._called(words, options)
        )
        run = self.coordinator.jobs["default"]
        self.handle(Compared(run.id, run.durable.round, nodes))

    def _keep(self, words: list[str], options: dict[str, str]) -> None:
        """Let a node keep these steps in memory and no others; its next report says so."""
        puppet = self.puppets[words[0]]
        member = self.coordinator.jobs[puppet.join.job].durable.members.get(puppet.join.node)
        part = member.assignment if member else None
        kept = a_holding(words[1:], options, part, puppet.join.offer.workers)
        found = () if puppet.observed.kept is None else puppet.observed.kept.persisted
        puppet.observed = structs.replace(puppet.observed, kept=structs.replace(kept, persisted=found))

    def _fetch(self, words: list[str], options: dict[str, str]) -> None:
        """Have a node report how far its restoration has come: `fetch n1 failed why=checksum`."""
        puppet = self.puppets[words[0]]
        kept = puppet.observed.kept or Holding(())
        kept = structs.replace(kept, restoring=Restoring(words[1]), problem=options.get("why", ""))
        self._report(puppet, phase=Phase.STARTING, kept=kept)

    def _write_step(self, words: list[str], options: dict[str, str]) -> None:
        """Have a node report what it has written to its disk, or finds there: see `wrote`."""
        self._send(self.puppets[words[0]], **wrote(self.puppets, words, options))

    def _tested(self, words: list[str], options: dict[str, str]) -> None:
        """Have nodes report the result of the test that they were told to run: `tested n2 n3 gflops=10`."""
        for puppet in self._called(words, options):
            order = puppet.desired.pair if puppet.desired else None
            if order is None:
                raise ScriptError(f"{puppet.name} has no test to run")
            self._send(puppet, pair=PairResult(order.number, float(options.get("gflops", 50)), 1_000.0))

    def _die(self, seconds: float) -> None:
        """Kill the coordinator, and start it again after so long; nodes reconnect as the script has it."""
        self.now += seconds
        self._open.clear()
        self.coordinator = Coordinator(self.coordinator.policy, EPOCH)
        self.coordinator.restore(self.past, self.now)
        self._next_beat = self.now + self._heartbeat_s

    def _drop(self, puppet: Puppet) -> None:
        self._open.discard(puppet.session)
        self.handle(Disconnected(puppet.session))

    def _heal(self, puppet: Puppet) -> None:
        puppet.silent = False
        self._resend(puppet)

    def _advance(self, seconds: float) -> None:
        end = self.now + seconds
        while True:
            tick = self.coordinator.next_deadline()
            due = self._next_beat if tick is None else min(tick, self._next_beat)
            if due > end:
                break
            self.now = max(self.now, due)
            if due == self._next_beat:
                self._beat()
            else:
                self.handle(Tick())
        self.now = end

    def _stall(self, seconds: float) -> None:
        """Let the coordinator sleep; when it wakes, its timer comes first and the messages that piled up after it."""
        self.now += seconds
        self.handle(Tick())
        self._beat()

    def _trouble(self, seconds: float) -> None:
        """Have the store fail for so long; nodes go on with their heartbeats."""
        self.handle(StoreFailed("the disk is full"))
        self._advance(seconds)
        self.handle(StoreRecovered())

    def _status(self, job: str = "default") -> None:
        view = job_view(self.coordinator.jobs[job], self.now, self.coordinator.store_error)
        restarts = view.restarts
        self._write(f"{view.run} {view.state}, round {view.round}, world size {view.world_size}, ", "")
        self._written[-1] += f"restarts {restarts.used} of {restarts.max}: {view.reason}"
        for node in view.nodes:
            seen = f"seen {node.last_seen_s:g} s ago"
            self._write(f"{node.node} {node.state}, ranks {list(node.ranks)}, {seen}: {node.reason}", "  ")

    # Messages of nodes

    @property
    def _heartbeat_s(self) -> float:
        return self.coordinator.policy.heartbeat_for(self.coordinator.sessions)

    def _each(self, act: Callable[[Puppet], object]) -> Command:
        def command(words: list[str], options: dict[str, str]) -> None:
            for puppet in self._called(words, options):
                act(puppet)

        return command

    def _one_by_one(self, act: Command) -> Command:
        def command(words: list[str], options: dict[str, str]) -> None:
            nodes = list(takewhile(self.puppets.__contains__, words))
            if not nodes:
                raise ScriptError(f"no such node: {words[0]}")
            for node in nodes:
                act([node, *words[len(nodes) :]], options)

        return command

    def _called(self, words: list[str], options: dict[str, str]) -> list[Puppet]:
        job = f" ({options['job']})" if "job" in options else ""
        return [self.puppets[word + job] for word in words]

    def _reporter(self, phase: Phase) -> Callable[[Puppet], object]:
        return lambda puppet: self._report(puppet, phase=phase)

    def _report(self, puppet: Puppet, **changes: Any) -> Batch:
        """Report something new, in the last round that the node received."""
        desired, observed = puppet.desired, puppet.observed
        if desired is not None:
            here = (desired.run, desired.round) == (observed.run, observed.round)
            cleared = {} if here else _NEW_ROUND
            changes = cleared | {"run": desired.run, "round": desired.round} | changes
        return self._send(puppet, **changes)

    def _send(self, puppet: Puppet, **changes: Any) -> Batch:
        puppet.observed = structs.replace(puppet.observed, **changes)
        return self.handle(Reported(puppet.session, self._aged(puppet)))

    def _aged(self, puppet: Puppet, **changes: Any) -> Observed:
        """Return the node's present report: its workers' last step has grown older."""
        age_s = None if puppet.observed.step_age_s is None else self.now - puppet.stepped_at
        section = puppet.observed.section
        if section is not None:
            section = structs.replace(section, age_s=self.now - puppet.section_at)
        return structs.replace(puppet.observed, step_age_s=age_s, section=section, **changes)

    def _resend(self, puppet: Puppet) -> None:
        self.handle(Reported(puppet.session, self._aged(puppet, beat=True)))

    def _beat(self) -> None:
        self._next_beat = self.now + self._heartbeat_s
        for puppet in list(self.puppets.values()):
            if puppet.session in self._open and not puppet.silent:
                self._resend(puppet)

    # Messages of the coordinator

    def _effect_text(self, effect: Effect) -> Iterator[str]:
        if isinstance(effect, Answer):
            yield f"-> operator: {effect.result}: {effect.text}"
            return
        puppet = self._sessions[effect.session]
        if effect.session not in self._open:
            return  # the shell has no such session any more
        name = puppet.name if puppet.session == effect.session else f"{puppet.name}, its old session"
        match effect:
            case Send():
                puppet.desired = effect.message
                goal, reason = desired_text(effect.message)
                # While a node has nothing to do, it receives the reason; otherwise a new wording is not worth a line.
                shown = goal + reason * (effect.message.goal is Goal.WAIT)
                if shown != puppet.shown:
                    puppet.shown = shown
                    yield f"-> {name}: {goal}: {reason}"
            case Refuse():
                self._open.discard(effect.session)
                again = "may retry" if effect.message.retry else "for good"
                yield f"-> {name}: refused {again} ({effect.message.code}): {effect.message.message}"
            case Close():
                self._open.discard(effect.session)
                yield f"-> {name}: session closed"

    def _write(self, text: str, indent: str = "") -> None:
        self._written.append(f"    {self.now:8.3f}  {indent}{text}")


def play(*scripts: str, **policy: Any) -> Stage:
    """Play scripts on a new stage, of one line or several; return the stage."""
    stage = Stage(**policy)
    stage.play(*(line for script in scripts for line in script.split("\n") if line.strip()))
    return stage
