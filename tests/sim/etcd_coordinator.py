"""One of several coordinators that share an etcd, in a shell like `commands/turns_to_lead.py` and `etcd_store.py`.

The real `Candidate` with its `Election`, and the real `History`, decide who leads, for how long it may act, and what it
may change. This shell has their timers and their pauses.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from coordinatord.commands.turns_to_lead import CUT_OFF, LET_LEAD_S, POLL_EVERY_S, CutOffError
from coordinatord.core.journal import Decided
from coordinatord.core.own_end import is_cut_off
from coordinatord.core.rounds.events import Event
from coordinatord.protocol.errors import OperationalError
from coordinatord.server.driver import RETRY_S
from coordinatord.store.etcd.election import RETRY_S as ASK_AGAIN_S
from coordinatord.store.etcd.gateway import REQUEST_WITHIN_S, TRY_WITHIN_S, WATCH_SILENT_S_MAX, Gateway
from coordinatord.store.etcd.history import History, StoredHistory
from coordinatord.store.etcd.leadership import Candidate
from coordinatord.store.etcd.refusals import EtcdAwayError
from coordinatord.store.etcd.requests import EtcdAnswer, KeyValue, parsed, text_of
from coordinatord.store.etcd.roster import Coordinatord
from coordinatord.store.interface import LEASE_OVER, LeadershipLostError, NothingStoredError, StoreError
from nodeclient.access.contact_points import leader_in
from tests.sim.coordinator import SimulatedCoordinator
from tests.sim.disk import CrashPoint, Disk
from tests.sim.etcd import LEASE_S
from tests.sim.event_queue import Clock
from tests.sim.network import Session
from tests.support.modelled_etcd import KEYS

if TYPE_CHECKING:  # the world has some of these
    from tests.sim.world import World


Result = TypeVar("Result")
Answered = Callable[[Any], None]


class _Wait:
    """What a coroutine awaits: `begin` receives a callback for the answer or the error."""

    def __init__(self, begin: Callable[[Answered], None]) -> None:
        self.begin = begin

    def __await__(self) -> Generator[_Wait, Any, Any]:
        return (yield self)


class SimulatedGateway(Gateway):
    """The requests of one coordinator."""

    def __init__(self, by: EtcdCoordinator) -> None:
        self._by = by

    async def call(self, path: str, body: Mapping[str, Any], try_within_s: float | None = None) -> EtcdAnswer:
        """Return the answer to a request. Raises `EtcdAwayError` if there is none, and `EtcdRefusedError`."""
        del try_within_s  # nothing is waited for here

        def begin(answered: Answered) -> None:
            tries = int(REQUEST_WITHIN_S / TRY_WITHIN_S)
            for number in range(tries):
                self._by.world.queue.after(number * TRY_WITHIN_S, self._by.when_awake, ask)
            self._by.world.queue.after(
                REQUEST_WITHIN_S, take, EtcdAwayError(f"no answer within {REQUEST_WITHIN_S:g} s")
            )
            open_tries.append(answered)

        def ask() -> None:
            if open_tries and self._by.turn == turn:
                self._by.world.etcd.request(self._by, path, body, take)

        def take(answer: Any) -> None:
            if open_tries:
                open_tries.pop()(answer)

        open_tries: list[Answered] = []
        turn = self._by.turn
        return parsed(await _Wait(begin))

    async def watch(self, key: bytes) -> AsyncGenerator[KeyValue | None]:
        """Yield the leader key as it is now and after each change; read it anew where the watch is silent."""
        before = -1  # no revision
        while True:
            now = await self.call("/v3/kv/range", {"key": text_of(key)})
            written_at = 0 if now.first is None else now.first.mod_revision
            if written_at != before:
                yield now.first
            before = written_at
            await self._change_after(now.header.revision)

    async def _change_after(self, revision: int) -> None:
        """Wait until the leader key changes, or the watch was silent for too long."""

        def begin(answered: Answered) -> None:
            self._by.world.queue.after(WATCH_SILENT_S_MAX, answered, None)
            self._by.world.etcd.watch(self._by, revision + 1, lambda: answered(None))

        await _Wait(begin)


class EtcdTask:
    """A coroutine in progress. Operational errors end it by `failed`; others are bugs."""

    def __init__(
        self,
        by: EtcdCoordinator,
        work: Coroutine[_Wait, Any, Result],
        done: Callable[[Result], None],
        failed: Callable[[OperationalError], None],
    ) -> None:
        """Begin the coroutine; its result goes to `done`."""
        self._by = by
        self._work = work
        self._done = done
        self._failed = failed
        self._waits = 0
        """The number of its present wait, negative once it is over: answers to earlier ones are dropped."""
        self._go_on(lambda: work.send(None))

    @property
    def is_over(self) -> bool:
        """Whether the coroutine has ended."""
        return self._waits < 0

    def drop(self) -> None:
        """Cancel the coroutine."""
        self._waits = -1
        self._work.close()

    def _go_on(self, step: Callable[[], _Wait]) -> None:
        self._waits += 1
        try:
            wait = step()
        except StopIteration as stop:
            self._waits = -1
            self._done(stop.value)
        except OperationalError as error:
            self._waits = -1
            self._failed(error)
        else:
            number = self._waits
            wait.begin(lambda answer: self._by.when_awake(lambda: self._take(number, answer)))

    def _take(self, number: int, answer: Any) -> None:
        if number != self._waits:
            return
        if isinstance(answer, Exception):
            self._go_on(lambda: self._work.throw(answer))
        else:
            self._go_on(lambda: self._work.send(answer))


class Replica(Disk):
    """The leader's copy of the history, in a database of its own."""

    def __init__(self, found: StoredHistory) -> None:
        super().__init__()
        self._database.fill(found.rows, found.about.identity)
        self._database.track_changes()


class EtcdCoordinator(SimulatedCoordinator):
    """One coordinatord after another on one host, each of which leads or stands by."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.world = world
        self.running = False
        self.is_cut_from_etcd = False
        self.commit: tuple[Decided, ...] = ()
        """The records of the commit that is on its way to etcd."""
        self._gateway = SimulatedGateway(self)
        self._candidate = self._new_candidate()
        self._history = History(self._gateway, KEYS)
        self._tasks: list[EtcdTask] = []
        self.turn = 0
        """The number of the present try to stand by, or of the present term. Calls that an earlier one scheduled do
        nothing."""
        self.gave_way = 0
        """How often it led no more because it heard no node."""
        self._stands_by = False
        self._due: list[Callable[[], None]] = []
        """The calls that wait for the process to be resumed."""
        self._stopped = False

    # Its process

    def start(self) -> None:
        """Start the process, which stands by until it leads."""
        if self.running:
            return
        self.running = self.host_up = True
        self._stopped, self._due = False, []
        self.clock = Clock(self._queue, self.world.chance.uniform(0.0, 1e5), self.world.draw_rate())
        self.world.trace.note("%s starts", self.endpoint)
        self._stand_by()

    def crash(self, *, host: bool = False) -> None:
        """Kill the process; with its `host`, its connections are not closed."""
        if not self.running:
            return
        self.world.trace.note("%s is killed%s", self.endpoint, " with its host" if host else "")
        self._forget_turn()
        self.running, self.host_up, self._unread, self._stopped = False, not host, None, False
        self._end_lead(notified=not host)
        connecting, self._connecting = self._connecting, []
        for session in connecting:
            self.world.wires.lose_coordinator(session, notified=not host)

    def stop(self) -> None:
        """End the process as with SIGTERM: it gives back its lease first."""
        if self.running and not self._stopped:
            self.world.trace.note("%s ends", self.endpoint)
            self._forget_turn()
            self._end_lead(notified=True)
            self._run(self._candidate.resign(), lambda _: self.crash(), lambda _: self.crash())

    def pause(self) -> None:
        """Stop its process, as with SIGSTOP, whether it leads or stands by."""
        if self.running and not self._stopped:
            self.world.trace.note("%s is stopped", self.endpoint)
            self._stopped = True
            self._unread = []
            self.world.touch()

    def wake(self) -> None:
        """Resume the process: its own calls that were due come before or after what has arrived."""
        if not self._stopped:
            return
        self._stopped = False
        due, self._due = self._due, []
        after = self.world.chance.random() < 0.5
        if not after:
            _call_all(due)
        if self.up:
            super().wake()
        self._unread = None
        if after:
            _call_all(due)
        if self._stands_by:
            self._accept_again()

    def cut_off(self, *, etcd: bool, nodes: bool) -> None:
        """Block all packets from and to etcd, or the nodes, or both."""
        self.world.trace.note("%s is cut off: etcd %s, nodes %s", self.endpoint, etcd, nodes)
        self.is_cut_from_etcd, self.is_cut = etcd, nodes
        self._trouble_nodes()

    def heal(self) -> None:
        """Let everything through again."""
        if self.is_cut:
            self._trouble_nodes()
        self.is_cut_from_etcd = False
        super().heal()

    def _trouble_nodes(self) -> None:
        for host in self.world.hosts.values():
            host.trouble()

    def is_named_by(self, leader: KeyValue) -> bool:
        """Whether the leader key names this coordinator."""
        return Coordinatord.unpack(leader).endpoint == str(self.endpoint)

    def when_awake(self, act: Callable[[], None]) -> None:
        """Call `act` now, or when the process is resumed."""
        if self._stopped:
            self._due.append(act)
        elif self.running:
            act()

    def _run(
        self,
        work: Coroutine[Any, Any, Result],
        done: Callable[[Result], None],
        failed: Callable[[OperationalError], None],
    ) -> None:
        self._tasks = [task for task in self._tasks if not task.is_over]
        turn, task = self.turn, EtcdTask(self, work, done, failed)
        if self.turn == turn:
            self._tasks.append(task)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        """Call `act` in so many seconds by its own clock, unless the turn is over by then."""
        turn = self.turn
        wait_s = self.clock.wait_for(self.clock.read() + seconds)
        self._queue.after(wait_s, lambda: self.when_awake(lambda: act() if self.turn == turn else None))

    def _forget_turn(self) -> None:
        self.turn += 1
        self._stands_by = False
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.drop()

    # Standing by

    def _new_candidate(self) -> Candidate:
        me = Coordinatord(self.endpoint.host, str(self.endpoint), secure=False, since=0.0)
        return Candidate(self._gateway, KEYS, me, LEASE_S, self.clock.read)

    def _stand_by(self, rest_s: float = 0.0) -> None:
        """Stand by, and let others try to lead first: until one leads, for `rest_s` seconds at most."""
        self._candidate = self._new_candidate()
        if rest_s:
            self._forget_turn()
            self._stands_by = True
            self._later(rest_s, self._enroll)
            self._let_others_lead()
        else:
            self._enroll()
        self._accept_again()

    def _accept_again(self) -> None:
        connecting, self._connecting = self._connecting, []
        for session in connecting:
            self.accept(session)

    def _let_others_lead(self) -> None:
        work = self._candidate._await_other()
        self._run(work, lambda _: self._enroll(), lambda _: self._later(ASK_AGAIN_S, self._let_others_lead))

    def _enroll(self) -> None:
        self._forget_turn()
        self._stands_by = True
        self._run(self._candidate._enroll(), lambda _: self._enrolled(), self._try_again)

    def _enrolled(self) -> None:
        self._later(self._candidate.election.renew_every_s, self._renew_as_standby)
        self._campaign()

    def _campaign(self) -> None:
        self._run(self._candidate._try_to_lead(), self._tried, self._try_again)

    def _tried(self, leads: bool) -> None:
        if leads:
            self._win()
        else:
            self._run(self._candidate._await_end(), lambda _: self._campaign(), self._try_again)

    def _try_again(self, error: OperationalError) -> None:
        self._candidate._set_leader(None, str(error))
        self._forget_turn()
        self._stands_by = True
        self._later(ASK_AGAIN_S, self._enroll)

    def _renew_as_standby(self) -> None:
        election, sent_at = self._candidate.election, self.clock.read()

        def renewed(left_s: float) -> None:
            if election.record_renewal(sent_at, self.clock.read(), left_s) is None:
                self._try_again(StoreError("the lease of this standby is over"))
            else:
                self._later(election.renew_every_s, self._renew_as_standby)

        self._run(self._gateway.renew(election.lease, election.try_within_s), renewed, self._try_again)

    # Leading

    def _win(self) -> None:
        self._forget_turn()
        self._renew()
        self._notice_end()
        self._run(self._read(), self._lead, self._lose)

    def _renew(self) -> None:
        election, sent_at = self._candidate.election, self.clock.read()
        answers: list[float | None] = []

        def renewed(left_s: float | None) -> None:
            if answers:
                return  # the answer came too late
            answers.append(left_s)
            pause_s = election.record_renewal(sent_at, self.clock.read(), left_s)
            if pause_s is None:
                self._lose(LeadershipLostError("the lease is over"))
            else:
                self._later(pause_s, self._renew)

        self._later(max(0.0, election.term_ends_at - sent_at), lambda: renewed(None))
        self._run(self._gateway.renew(election.lease, election.try_within_s), renewed, lambda _: renewed(None))

    def _notice_end(self) -> None:
        def ended(_: None) -> None:
            self._candidate.election.end()
            self._lose(LeadershipLostError("the leader key is gone"))

        self._run(self._candidate._await_end(), ended, lambda _: self._later(ASK_AGAIN_S, self._notice_end))

    async def _read(self) -> StoredHistory:
        """Read the history, as `EtcdStore.open` does."""
        self._history = History(self._gateway, KEYS, self._candidate.election.fence)
        try:
            found = await self._history.read()
        except NothingStoredError:
            await self._history.begin()
            found = await self._history.read()
        await self._history.sweep()
        self._candidate.check_may_act()
        return found

    def _lead(self, found: StoredHistory) -> None:
        self.world.trace.note("%s leads", self.endpoint)
        self.disk = Replica(found)
        self.world.lead(self)
        self._begin_life()
        self._welcome_all()
        self._watch_reach()

    def _watch_reach(self) -> None:
        """Lead no more once no node is heard and another coordinator may reach them, as `commands/cut_off` does."""
        others = (other for other in self.world.coordinators if isinstance(other, EtcdCoordinator) and other._stands_by)
        if is_cut_off(self.machine.cluster) and any(others) and not self.is_cut_from_etcd:
            self.gave_way += 1
            self._lose(CutOffError(CUT_OFF), LET_LEAD_S)
        else:
            self._later(POLL_EVERY_S, self._watch_reach)

    def _lose(self, error: OperationalError, rest_s: float = 0.0) -> None:
        """Lead no more, and stand by as soon as etcd has the lease back; let others try first for `rest_s` seconds."""
        self.world.trace.note("%s leads no more: %s", self.endpoint, error)
        self._forget_turn()
        self._end_lead(notified=True)
        self._run(self._candidate.resign(), lambda _: self._stand_by(rest_s), lambda _: self._stand_by(rest_s))

    def _end_lead(self, *, notified: bool) -> None:
        if self.up:
            self._writing, self.commit = 0, ()
            self._end_life(notified=notified)

    # Events

    @property
    def listens(self) -> bool:
        """Whether a process accepts connections."""
        return self.running

    def accept(self, session: Session) -> None:
        """Answer an attempt to connect: serve it, name the leader, or let it wait."""
        if self._stopped or not (self.up or self._stands_by):
            self._connecting.append(session)
        elif self.up:
            super().accept(session)
        else:
            leader = self._candidate.leader
            self.world.wires.redirect(session, None if leader is None else leader_in(f"http://{leader.endpoint}/"))

    def _handle(self, event: Event) -> None:
        if self._candidate.may_act():
            super()._handle(event)
        else:
            self._lose(LeadershipLostError(LEASE_OVER))

    # Records

    def _write(self) -> None:
        if self._dies(CrashPoint.BEFORE):
            return
        self.commit = self._decided
        added, dropped = self.disk._database.append_uncommitted(self._entries)
        self._run(self._history.commit(added, dropped), lambda _: self._committed(), self._not_committed)

    def did(self, body: Mapping[str, Any], commit: object) -> None:
        """Note that etcd has done a transaction of this coordinator, which may be a commit, and may be long ago."""
        self.world.former.wrote(self, body)
        head = text_of(KEYS.head)
        if commit and any(op.get("request_put", {}).get("key") == head for op in body["success"]):
            assert isinstance(commit, tuple)
            self.world.trace.records("durable", [record for _, record in commit])
            self._tell_durable(commit)

    def _committed(self) -> None:
        self.disk._database.finish(commit=True)
        self.commit = ()
        if self._candidate.may_act():
            self._wrote()
        else:
            self._lose(LeadershipLostError(LEASE_OVER))

    def _not_committed(self, error: OperationalError) -> None:
        self.disk._database.finish(commit=False)
        if isinstance(error, LeadershipLostError):
            self._lose(error)
            return
        self._writing = self._attempts = self._attempts + 1
        self._later(RETRY_S, lambda: self._retry(self._attempts))
        self._store_failed(str(error))


def _call_all(due: Sequence[Callable[[], None]]) -> None:
    for act in due:
        act()
