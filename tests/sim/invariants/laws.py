"""Sets of laws: each is told by hooks what happens in the world, and checks it; `facts` has what several sets look up.

`all_laws` has the list of all sets. The first broken law raises `BrokenError`, with the history and the set's name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from coordinatord.core.journal import Decided
from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.effects import Answer
from coordinatord.core.rounds.events import Event
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.admin_requests import Request
from coordinatord.core.rounds.values.records import NodeLost, Record, RoundFormed, RoundStopped
from coordinatord.protocol.messages import Degraded, Desired, Join, Refused
from nodeclient.core import events
from nodeclient.core.effects import Effect
from tests.sim.durable_replica import DurableReplica

if TYPE_CHECKING:  # the world has the laws
    from tests.sim.host import Host
    from tests.sim.network import Session
    from tests.sim.workers import Round
    from tests.sim.world import World

WHOLE_EVERY = 8
"""The interval in commits of the checks of every member."""

FEW_NODES = 16
"""The largest number of nodes with which every member is checked at each commit, since a thousand of them
would take too long."""

P = ParamSpec("P")


class Laws:
    """One set of laws of one world. It overrides the hooks that it wants; the others do nothing."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.world: World = facts.world

    def check(self, holds: object, text: str, *arguments: Any) -> None:
        """Raise `BrokenError` unless a law holds."""
        if not holds:
            raise self.world.failure(f"{type(self).__name__}: {text % arguments}")

    # The coordinator

    def restored(self, machine: Coordinator, past: Sequence[Decided]) -> None:
        """Learn that a coordinator has started, with the records of its forerunners."""

    def joined(self, join: Join) -> None:
        """Learn that a node has come, or come back."""

    def note_event(self, event: Event) -> None:
        """Learn that the coordinator is about to handle an event."""

    def decided(self, records: Sequence[Record]) -> None:
        """Learn that records were decided, by the state of the world at this moment; they may never become durable."""

    def durable(self, record: Record) -> None:
        """Learn that a record has become durable; the facts do not have it yet."""

    def recorded(self, at: float, record: Record) -> None:
        """Learn that all sets have seen that durable record."""

    def settled(self, machine: Coordinator) -> None:
        """Learn that nothing waits to be written."""

    def sent(self, session: Session, message: Desired | Degraded | Refused) -> None:
        """Learn that a message to a node is released."""

    def answered(self, request: Request, run_id: str | None, answer: Answer) -> None:
        """Learn that an operator is answered; `run_id` is the run as of the request."""

    def crashed(self) -> None:
        """Learn that the coordinator has died."""

    def set_back(self, records: Sequence[Record], now: float) -> None:
        """Learn that the store has only these records, and no longer all that was sent."""

    # The nodes

    def happens(self, host: Host, event: events.Event) -> None:
        """Learn that a nodeclient is about to handle an event."""

    def does(self, host: Host, effect: Effect) -> None:
        """Learn that an effect of a nodeclient is about to be carried out."""

    def failed(self, host: Host, key: Round) -> None:
        """Learn that a worker fails by itself."""

    def left_early(self, host: Host, key: Round) -> None:
        """Learn that a worker exits with 0 before the training is done."""

    def gone(self, host: Host) -> None:
        """Learn that workers of a host are gone, so that their peers fail or hang."""

    def judge_end(self) -> None:
        """Learn that some time has passed since all faults ended."""


class LawSets:
    """Sets of laws, in the order in which they are told what happens."""

    def __init__(self, *sets: Laws) -> None:
        self._sets = sets
        self._told: dict[str, list[Callable[..., None]]] = {}
        """The hooks that the sets have overridden, by name: to call all the others takes a tenth of a simulation."""

    def tell(self, hook: Callable[Concatenate[Laws, P], None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a hook, such as `Laws.decided`, of each set."""
        name = hook.__name__
        if name not in self._told:
            self._told[name] = [getattr(laws, name) for laws in self._sets if getattr(type(laws), name) is not hook]
        for told in self._told[name]:
            told(*args, **kwargs)


class Facts(Laws):
    """The facts of one world that several sets look up. It is the first set, so the others find it up to date."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.replica = DurableReplica()
        self.formed: dict[Round, RoundFormed] = {}
        """Every round that became durable."""
        self.records: Counter[str] = Counter()
        """The number of durable records, by kind."""
        self.charged: Counter[str] = Counter()
        """Restarts that were charged to each run."""
        self.stopped_on_purpose: set[Round] = set()
        self.genuine: set[Round] = set()
        """Rounds in which a worker failed by itself."""
        self.unseen: set[Round] = set()
        """Rounds of which a node's workers ended while it could not be heard: the coordinator cannot know what came
        first, and may take the failures of their peers for the root cause."""
        self.disturbed: set[Round] = set()
        """Rounds of which a node ended its workers of its own accord."""
        self.lost_of: set[Round] = set()
        """Rounds of which nodes were lost or left behind."""
        self.life_of_stop: dict[Round, int] = {}
        """The life of the coordinator that stopped each round."""
        self.upset_at = 0.0
        """When the coordinator was last down, stopped or unable to decide."""
        self.slept_at = 0.0
        """When the coordinator last woke from a sleep."""
        self.commits = 0
        self._event_at = self._began_at = 0.0

    def restored(self, machine: Coordinator, past: Sequence[Decided]) -> None:
        """Note when the coordinator began."""
        self.upset_at = self._began_at = self.world.queue.now

    def note_event(self, event: Event) -> None:
        """Note whether the coordinator was asleep, or cannot record."""
        now, asleep_s = self.world.queue.now, 2 * self.world.scenario.policy.heartbeat_s
        if now - self._event_at > asleep_s:
            self.slept_at = now
        if now - max(self._event_at, self._began_at) > asleep_s or self.world.daemon.machine.store_error is not None:
            self.upset_at = now
        self._event_at = now

    def recorded(self, at: float, record: Record) -> None:
        """Take in a record."""
        self.records[record.KIND] += 1
        match record:
            case RoundFormed():
                self.formed[record.run, record.round] = record
            case NodeLost() if record.reason.startswith("replaced by"):
                self.disturbed.add((record.run, self.replica.jobs[record.job].round))
            case RoundStopped() if record.planned or record.condition == "unrestorable":
                self.stopped_on_purpose.add((record.run, record.round))  # what fails then fails because of that
        self.replica.apply([(at, record)])

    def set_back(self, records: Sequence[Record], now: float) -> None:
        """Forget what the store has forgotten."""
        self.replica = DurableReplica()
        self.replica.apply((now, record) for record in records)
        self.disturbed |= set(self.formed)
        for run in self.replica.jobs.values():
            self.charged[run.id] = run.restarts_used

    def settled(self, machine: Coordinator) -> None:
        """Count the commits."""
        self.commits += 1

    def failed(self, host: Host, key: Round) -> None:
        """Note the round."""
        self.genuine.add(key)

    def gone(self, host: Host) -> None:
        """Note whether the coordinator could see that."""
        if self.is_hidden(host):
            self.unseen.add(host.workers.round)

    def of_runs(self, records: Sequence[Record]) -> Iterator[tuple[Run, Record]]:
        """Yield the records of runs that the coordinator has, each with its run."""
        for record in records:
            run = self.world.daemon.machine.jobs.get(record.job)
            if run is not None and run.id == record.run:
                yield run, record

    def is_hidden(self, host: Host) -> bool:
        """Whether the messages of a host cannot show the coordinator when its workers have ended."""
        daemon, network = self.world.daemon, self.world.scenario.network
        elsewhere = host.session is not None and host.session.at is not daemon
        deaf = not daemon.up or daemon.paused or daemon.machine.store_error is not None or elsewhere
        late = network.harsh or network.spike_chance > 0 or network.spread_s > 0.1 or host.slow_s > 0
        return deaf or late or host.is_cut or host.paused or host.session is None or not host.session.established

    def was_quiet(self, key: Round, but_for: frozenset[str] = frozenset()) -> bool:
        """Whether all nodes of a round but these began it, and were well and within reach ever since."""
        training = self.world.trainings[key]
        hosts = training.hosts.values()
        whole = len(hosts) == len(self.formed[key].nodes)
        scenario = self.world.scenario
        # Where messages are lost one by one, a lease may end within the round for what was lost before it.
        lately_s = scenario.policy.heartbeats_per_lease * scenario.policy.heartbeat_s if scenario.network.harsh else 0.0
        since = training.began_at - lately_s
        return whole and all(host.well and host.troubled_until < since for host in hosts if host.node not in but_for)

    def leaves_out(self, machine: Coordinator) -> bool:
        """Whether there are too many nodes to check each at this commit."""
        return machine.sessions > FEW_NODES and self.commits % WHOLE_EVERY != 0
