"""The coordinator's machine and peers that are hostile or confused: they send any legal message, at any time.

Each input is a sequence of events. What is sent is encoded and decoded on the way, as it is between hosts. The machine
must not fail, must keep its limits, must ask nothing illegal of anybody, and must not change by what it refuses.
"""

from typing import Any

from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.effects import Answer, Close, Refuse, ReportDegraded, Send
from coordinatord.core.rounds.events import (
    AdminRequested,
    Compared,
    Connected,
    Disconnected,
    Event,
    NodeArrivals,
    PolicyChanged,
    Reported,
    StoreFailed,
    StoreRecovered,
    Tick,
    TokensRevoked,
)
from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.cluster import DRAINED_MAX
from coordinatord.core.rounds.state.durable import FORGOTTEN_MAX, LOST_MAX, RELEASED_MAX
from coordinatord.core.rounds.values.admin_requests import (
    AdminResult,
    DrainNode,
    ForgetJob,
    RestartJob,
    StopJob,
    UndrainNode,
)
from coordinatord.core.rounds.values.records import Record
from coordinatord.protocol.arrival_messages import Arrivals
from coordinatord.protocol.codec import decode, encode
from coordinatord.protocol.fields import COUNTER_MAX
from coordinatord.protocol.messages import (
    FRAME_BYTES_MAX,
    PROTOCOL_VERSION,
    Degraded,
    Desired,
    JobSpec,
    Join,
    Launcher,
    Observed,
    Phase,
    Refused,
    ScaleUp,
)
from coordinatord.protocol.schema import SchemaError
from coordinatord.protocol.versions import SUPPORTED
from coordinatord.store import row_codec
from coordinatord.store.interface import Entry
from tests.fuzz.choices import Choices, draw
from tests.fuzz.fingerprint import fingerprint
from tests.sim.durable_replica import DurableReplica, differences

POLICY = Policy(jobs_max=3, nodes_max=6)
"""Limits that a few events reach."""

OTHER_POLICY = Policy(jobs_max=3, nodes_max=6, heartbeat_s=3.0, reconnect_grace_s=2.0, outage_grace_s=20.0)

JOBS = ("a", "b", "c", "d", "e")
NODES = ("n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8", "host-n1")
ADDRESSES = ("10.0.0.1", "10.0.0.2", "127.0.0.1", "::1", "fe80::1", "unknown")
TOKENS: tuple[tuple[str, ...], ...] = (("",), ("a", "b", "c"))
"""The tokens of nodes, where everybody is let in and where not."""

LATE_SPECS = tuple(JobSpec(1, 2, 1, scale_up=when) for when in (ScaleUp.AT_CHECKPOINT, ScaleUp.NEVER))
STRICT = JobSpec(1, 2, 1, drain_laggards=1.05)
SPECS = (JobSpec(1, 2, 1), JobSpec(2, 2, 0), JobSpec(1, 1, 3), JobSpec(1, 2, 1, Launcher.TORCHRUN), *LATE_SPECS, STRICT)
PAUSES_S = (0.0, 0.001, 0.3, 1.0, 2.1, 5.5, 16.0, 31.0, 400.0, 90_000.0)
REQUESTS = (StopJob, RestartJob, ForgetJob, DrainNode, UndrainNode)

EVENTS_MAX = 80
"""The length of a sequence: enough for several rounds."""

TICKS_MAX = 400
"""How often the machine's timer may ring in one pause: more would be a timer that never rests."""

ENTERED_AT = 1.7e9
"""The wall clock's time when a sequence begins."""


class Peers:
    """A coordinator, and whoever talks to it."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self._tokens = choices.of(TOKENS)
        self._machine = Coordinator(POLICY, "e")
        self._policy = POLICY
        self._now = 100.0
        self._sessions: dict[int, tuple[Join, Desired | None]] = {}
        """Those that the machine was told of and has not ended, each with what it was told last."""
        self._opened = 0
        self._asked = 0
        self._answers: list[AdminResult] = []
        """How the last request was answered."""
        self._history: list[tuple[float, Record]] = []
        self._replica = DurableReplica()
        self._failing = False

    def act(self) -> None:
        """Do what the next choices say."""
        step = self._choices.byte() % 17
        if step < 5:
            self._connect()
        elif step < 10:
            self._report()
        elif step == 10:
            self._disconnect()
        elif step in {11, 12}:
            self._pass(self._choices.of(PAUSES_S))
        elif step == 13:
            self._now += self._choices.of(PAUSES_S)  # the process sleeps
        elif step == 14:
            self._ask()
        elif step == 15:
            self._compare()
        else:
            self._trouble()

    def end(self) -> None:
        """Let all that waits happen, and check that the history can be lived again."""
        if self._failing:
            self._failing = False
            self._handle(StoreRecovered())
        for session in list(self._sessions):
            self._forget(session)
            self._handle(Disconnected(session))
        self._pass(100_000.0)
        assert self._machine.sessions == 0
        again = Coordinator(self._policy, "f")
        again.restore(self._history, self._now)
        assert again.cluster.durable == self._machine.cluster.durable, differences(
            again.cluster.durable, self._machine.cluster.durable
        )

    # What peers do

    def _connect(self) -> None:
        try:
            # Nodes of a release without tokens are told of no refusal for one, see `protocol.versions`.
            version = self._choices.of(SUPPORTED) if self._tokens == TOKENS[0] else PROTOCOL_VERSION
            join = decode(encode(self._draw(Join, version=version), version), Join)
        except SchemaError:
            return  # it never reaches the machine
        self._handle(Tick())  # what is due by now is no consequence of the message
        before = _without_refusals(self._machine)
        self._opened += 1
        session = self._opened
        self._sessions[session] = (join, None)
        address, local, token = (self._choices.of(known) for known in (ADDRESSES, ADDRESSES, self._tokens))
        records, refused = self._handle(Connected(session, join, address, local, token))
        if refused == session:
            assert not records, "a refusal records nothing"
            after = _without_refusals(self._machine)
            assert before == after, "a refusal changes nothing"

    def _report(self) -> None:
        session = self._some_session()
        if session is None:
            return
        known = self._sessions.get(session)
        version = SUPPORTED[0] if known is None else known[0].version
        last = None if known is None else known[1]
        try:
            observed = decode(encode(self._draw(Observed, last=last), version), Observed)
        except SchemaError:
            return
        if known is None:
            self._handle(Tick())
            before = fingerprint(self._machine)
            records, _ = self._handle(Reported(session, observed))
            assert not records
            assert before == fingerprint(self._machine), "a session that is over changes nothing"
            return
        self._handle(Reported(session, observed))

    def _disconnect(self) -> None:
        session = self._some_session()
        if session is not None:
            if self._choices.one_in(8):
                self._handle(TokensRevoked(frozenset({self._choices.of(self._tokens)})))
            self._forget(session)
            self._handle(Disconnected(session))

    def _ask(self) -> None:
        kind = self._choices.of(REQUESTS)
        target = self._choices.of(NODES if kind in {DrainNode, UndrainNode} else JOBS)
        more = {"ahead": self._choices.one_in(2)} if kind is DrainNode else {}
        self._handle(Tick())
        before = fingerprint(self._machine)
        self._asked -= 1
        self._answers.clear()
        records, _ = self._handle(AdminRequested(self._asked, kind(target, "somebody", "a reason", **more)))
        [answer] = self._answers
        if answer is not AdminResult.DONE:
            assert not records, "a request that is not carried out records nothing"
            assert before == fingerprint(self._machine), "a request that is not carried out changes nothing"

    def _compare(self) -> None:
        """Have some nodes say when their workers came to collectives, whether they have such workers or not."""
        run = self._choices.of([*(run.id for run in self._machine.jobs.values()), "gone"])
        told = []
        for _ in range(self._choices.byte() % 4):
            self._choices.wild = False
            answer = decode(encode(draw(self._choices, Arrivals, {})), Arrivals)
            error_s = self._choices.of(PAUSES_S)
            told.append(
                NodeArrivals(self._choices.of(NODES), self._now - error_s, error_s, answer.clock_s, answer.workers)
            )
        self._handle(Compared(run, self._choices.of((1, 1, 2, COUNTER_MAX)), tuple(told)))

    def _trouble(self) -> None:
        match self._choices.byte() % 4:
            case 0:
                self._failing = True
                self._handle(StoreFailed("the disk is full"))
            case 1 | 2:
                self._failing = False
                self._handle(StoreRecovered())
            case _:
                self._policy = OTHER_POLICY if self._policy is POLICY else POLICY
                self._handle(PolicyChanged(self._policy))

    def _pass(self, seconds: float) -> None:
        until, machine = self._now + seconds, self._machine
        for _ in range(TICKS_MAX):
            due = machine.next_deadline()
            if due is None or due > until:
                break
            self._now = max(self._now, due)
            self._handle(Tick())
        else:
            assert seconds > PAUSES_S[5], "the timer never rests"
        self._now = until

    # What is drawn

    def _some_session(self) -> int | None:
        """Return the number of a session, which now and then is over, or of one that never was."""
        number = self._choices.byte()
        if number > 247:
            return number
        return None if not self._sessions else list(self._sessions)[number % len(self._sessions)]

    def _draw(self, kind: type[Any], *, version: int = 0, last: Desired | None = None) -> Any:
        choices = self._choices
        choices.wild = choices.one_in(32)
        runs = [run.id for run in self._machine.jobs.values()]
        told = ([last.run], [last.round]) if last else ([], [])
        drawn = {
            "version": lambda: version,
            "job": lambda: choices.of(JOBS),
            "node": lambda: choices.of(NODES),
            "incarnation": lambda: choices.of((1, 1, 2, 3, 2**63 - 1)),
            "run": lambda: choices.of([*told[0] * 3, *runs, "", "gone"]),
            "round": lambda: choices.of([*told[1] * 5, 0, 1, 2, COUNTER_MAX]),
            "phase": lambda: choices.of((Phase.RUNNING, Phase.STOPPED, Phase.IDLE, *Phase)),
            "workers": lambda: choices.of((1, 1, 2, 4_096)),
            "host_id": lambda: choices.of(("boot-1", "boot-2")),
            "join_timeout_s": lambda: choices.of((60.0, 0.0, 600.0)),
        }
        if kind is Join and not choices.one_in(8):
            drawn["spec"] = lambda: choices.of((SPECS[0], *SPECS))
        return draw(choices, kind, drawn)

    # What the machine does

    def _forget(self, session: int) -> None:
        self._sessions.pop(session, None)

    def _handle(self, event: Event) -> tuple[tuple[Record, ...], int | None]:
        """Give the machine an event; return its records, and the session that it refuses."""
        batch = self._machine.handle(event, self._now)
        refused = None
        for effect in batch.effects:
            match effect:
                case Send(session, message):
                    join, _ = self._sessions[session]
                    self._check_legal(message, join.version)
                    self._sessions[session] = join, message
                case ReportDegraded(session, message):
                    self._check_legal(message, self._sessions[session][0].version)
                case Refuse(session, message):
                    self._check_legal(message, self._sessions[session][0].version)
                    self._forget(session)
                    refused = session
                case Close(session):
                    self._forget(session)
                case Answer(session, result):
                    assert session == self._asked
                    self._answers.append(result)
        self._check_records(batch.records)
        self._check_limits()
        return batch.records, refused

    def _check_legal(self, message: Desired | Degraded | Refused, version: int) -> None:
        frame = encode(message, version)
        assert len(frame) <= FRAME_BYTES_MAX
        decode(frame, Desired, Degraded, Refused)

    def _check_records(self, records: tuple[Record, ...]) -> None:
        if not records:
            return
        decided = [(self._now, record) for record in records]
        for at, record in decided:
            entry = Entry(ENTERED_AT + at, record)
            assert row_codec.decode((1, *row_codec.encode(entry))) == entry
        self._history += decided
        self._replica.apply(decided)
        ours = self._machine.cluster.durable
        assert self._replica.cluster == ours, differences(self._replica.cluster, ours)

    def _check_limits(self) -> None:
        machine, durable = self._machine, self._machine.cluster.durable
        assert len(machine.jobs) <= self._policy.jobs_max
        assert machine.sessions <= self._policy.nodes_max
        assert machine.sessions == len(self._sessions)
        assert len(durable.forgotten) <= FORGOTTEN_MAX
        assert len(durable.drained) <= DRAINED_MAX
        for run in machine.jobs.values():
            assert len(run.durable.lost) <= LOST_MAX
            assert len(run.durable.released) <= RELEASED_MAX


def coordinator(data: bytes) -> int:
    """Play a sequence; return the number of its events."""
    choices = Choices(data)
    peers = Peers(choices)
    events = 0
    while choices.left and events < EVENTS_MAX:
        peers.act()
        events += 1
    peers.end()
    return events


def _without_refusals(machine: Coordinator) -> Any:
    """Return the fingerprint of all but the nodes that were refused, which are remembered to be shown."""
    remembered = [(run.gathering, run.gathering.refused) for run in machine.jobs.values()]
    for gathering, _ in remembered:
        gathering.refused = {}
    found = fingerprint(machine)
    for gathering, refused in remembered:
        gathering.refused = refused
    return found
