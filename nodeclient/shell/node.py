"""One node: carries events to the agent, and its effects to processes, the session and the terminal."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.messages import Assignment, Join, NodeOffer, Observed
from coordinatord.runtime.local_time import now
from coordinatord.runtime.systemd import SystemdNotifier, status_of
from coordinatord.runtime.tasks import Tasks
from nodeclient.config.join_config import JoinConfig
from nodeclient.core import leftover_stages, notices
from nodeclient.core.agent import Agent
from nodeclient.core.departure import LeaveSignals
from nodeclient.core.effects import (
    Effect,
    Exit,
    KeptOrder,
    Kill,
    Level,
    Notice,
    Probe,
    Reconnect,
    SendObserved,
    Show,
    Start,
    StayOrder,
    Sweep,
    Terminate,
    Waiting,
)
from nodeclient.core.events import (
    Diagnosis,
    EmbeddedCoordinatorEnded,
    Event,
    GpusInUse,
    LeaveRequested,
    Prepared,
    SearchBegan,
    StartFailed,
    SweepFailed,
    Swept,
    WorkersStarted,
)
from nodeclient.diagnosis import error_file, oom
from nodeclient.diagnosis.diagnose import diagnose
from nodeclient.diagnosis.stack_service import StackService
from nodeclient.forkserver.starter import WorkerStarter
from nodeclient.host.gpu_memory import look_at_gpus
from nodeclient.host.ports import PortReservation, reached_at
from nodeclient.keeping.resources import KeepSettings
from nodeclient.keeping.state_keeper import StateKeeper
from nodeclient.output.log_paths import LogPaths
from nodeclient.output.output import Output
from nodeclient.shell.agent_loop import AgentLoop
from nodeclient.shell.console import REDRAW_S, Console
from nodeclient.shell.coordinator_connection import CoordinatorConnection, LocalReads
from nodeclient.shell.embedded_coordinator import ALONE, EmbeddedCoordinator
from nodeclient.shell.introduction import Introduction
from nodeclient.shell.log_service import LogService
from nodeclient.shell.master_probe import ProbeListener, look_for_master
from nodeclient.shell.stop_extension import StopExtension
from nodeclient.shell.worker_command import LOCAL_RANK_MACRO, CommandBuilder
from nodeclient.workers.exit_reporter import ExitReporter
from nodeclient.workers.guard import Guard, GuardError
from nodeclient.workers.leftover_processes import LeftoverProcesses
from nodeclient.workers.local_workers import LocalWorkers
from nodeclient.workers.orphans import adopt_orphans, reaping_orphans
from nodeclient.workers.process_tree import UnkillableError
from nodeclient.workers.spawn import SpawnError
from nodeclient.workers.staying_workers import StayingWorkers
from nodeclient.workers.step_slots import Slots


class Node:
    """One nodeclient, from joining to its exit code."""

    def __init__(
        self, config: JoinConfig, embedded: EmbeddedCoordinator = ALONE, systemd: SystemdNotifier | None = None
    ) -> None:
        """Prepare a node, in the running loop. Raises `OSError` if no port is free.

        `embedded` is the coordinator that this node has started, if any; `systemd` is notified of the node's status.
        """
        self._systemd = systemd or SystemdNotifier({}, os.getpid())
        save_s = max(config.stop_timeout_s, config.abort_timeout_s)
        self._stop_extension = StopExtension(self._systemd.notify, save_s)
        self._waiting_for = notices.LOOKING
        self._assignment: tuple[int, Assignment] | None = None
        """The last round in which this node had ranks, with its assignment."""
        self._config = config
        self._embedded = embedded
        self._loop = asyncio.get_running_loop()
        self._port = PortReservation()
        address = reached_at(config.advertise_address, alone=config.standalone)
        self._listener = ProbeListener(config.node, address)
        self._agent = Agent(config.agent_settings, self._port.port, self._loop.time())
        mark = secrets.token_hex(16)
        self._launcher = CommandBuilder(config, os.environ)
        command = self._launcher.common_command()
        self._starter = WorkerStarter(config.preload, command, LOCAL_RANK_MACRO, self._remark, workers=config.workers)
        self._tasks = Tasks()
        self._leftovers = LeftoverProcesses(config.stop_timeout_s, self._tasks, self._remark)
        self._workers = LocalWorkers(mark, self._note_exit, self._leftovers.take, self._starter.spawn)
        self._exit_reporter = ExitReporter(self._diagnose, self.submit)
        self._output = Output(config.output, socket.gethostname(), config.role, self._complain)
        self._console = Console(config.log_level, config.log_format, self._context, self._output.terminal)
        self._error_files: list[Path] = []
        self._slots = Slots(config.workers, self._complain)
        self._lingering = leftover_stages.Lingering()
        self._first_rank = 0
        self._started_at: float | None = None
        """When the workers of the round were started; None once they have reported a step."""
        self._kills = oom.OomKills()
        """The kills by the kernel's OOM killer before the workers were started."""
        self._guard = Guard(mark, self._output.private_folder)
        keep = KeepSettings(config.keep_bytes, config.keep_timeout_s, address=address, copy_rate=config.keep_rate)
        submit, notify, tasks = self.submit, self._console.notify, self._tasks
        self._keeper = StateKeeper(
            keep, config.node, config.workers, submit=submit, notify=notify, tasks=tasks, persist=config.persist
        )
        self._stacks = StackService(self._workers.pid_of, tasks)
        self._staying = StayingWorkers(
            self._workers,
            tasks,
            submit=submit,
            submit_in_order=self._exit_reporter.note_report,
            dismissed_within_s=config.abort_timeout_s,
            complain=self._complain,
        )
        self._logs = LogService(config.output, config.job, config.node, self._complain, self._tasks.fail)
        self._session = CoordinatorConnection(
            config.coordinators,
            config.access,
            make_join=self._join,
            submit=submit,
            reads=LocalReads(self._logs.read, self._stacks.read, self._stacks.read_arrivals),
        )
        self._events = AgentLoop(self._agent, self._carry_out, self._tasks.fail)
        self._exit: asyncio.Future[Exit] = self._loop.create_future()
        self._redrawing: asyncio.TimerHandle | None = None
        now, keeper = self._loop.time(), self._keeper.offer
        self._introduction = Introduction(
            config.job, config.node, config.spec, self._offer, now, command=config.command, keeper=keeper
        )

    async def run(self) -> int:
        """Take part in the job until it is over for this node; return the exit code."""
        counted = LeaveSignals()
        for signum in self._config.signals:
            if signal.getsignal(signum) is not signal.SIG_IGN:  # ignored signals stay ignored, as users of nohup expect
                self._loop.add_signal_handler(signum, self._leave, signum, counted)
        if self._config.preload:
            adopt_orphans()  # makes warm workers children of this process
        with reaping_orphans(self._children):
            try:
                for remark in (*self._config.remarks, *self._launcher.remarks):
                    self._remark(Level.INFO, remark)
                self._tasks.spawn(self._stop_extension.watch(self._keeper.persisting), name="stop extension")
                self._tasks.spawn(self._starter.run(), name="preload")
                self._tasks.spawn(self._exit_reporter.run(), name="diagnosis")
                if self._config.preload:
                    self._tasks.spawn(self._prepare(), name="prepare")
                self._logs.start()
                self._guard.start()  # its start takes 20 ms, and goes on beside what follows
                self._systemd.notify("READY=1", status_of(self._status()))  # ready means that the node tries to join
                self._tasks.spawn(self._systemd.keep_alive(), name="watchdog")
                self._tasks.spawn(self._systemd.keep_informed(self._status), name="status")
                session = self._tasks.spawn(self._attend(), name="session")
                self._tasks.spawn(self._attend_embedded(), name="embedded coordinator")
                self._tasks.spawn(self._output.watch(), name="output")
                ending = await self._tasks.guard(self._exit)
                await self._await_followers()
                await self._staying.settled()
                session.cancel()  # the node is out of the job; silent, it would be let in again and told to end again
                await self._leftovers.end()
                self._console.notify(ending.level, ending.message, "ended", exit_code=int(ending.code))
                return ending.code
            finally:
                await self._tasks.cancel()
                self._keeper.close()
                self._stacks.close()
                self._staying.close()
                self._guard.close()
                await self._output.close()
                await self._logs.settle()
                self._slots.close()
                self._port.close()
                self._listener.close()

    async def _await_followers(self) -> None:
        """Let the followers of the workers' logs read the last lines."""
        await self._settle_followed()
        await self._logs.await_followers()

    async def _settle_followed(self) -> None:
        """Have all that workers have written in their files, if anybody follows them."""
        if self._logs.followed:
            for local_rank in range(self._config.workers):
                await self._output.end_of_stderr(local_rank)

    async def _attend(self) -> None:
        gpus, _ = await asyncio.gather(look_at_gpus(os.environ), self._guard.await_ready_in_loop())
        self._tasks.spawn(self._guard.watch(self._complain), name="guard")
        await self._keeper.look_at_disk()
        self.submit(SearchBegan())  # from here on the agent's deadlines count
        self.submit(GpusInUse(gpus))
        await self._session.run()

    async def _prepare(self) -> None:
        await self._starter.settled()
        self.submit(Prepared())

    async def _attend_embedded(self) -> None:
        if self._embedded.ended is not None:
            self.submit(EmbeddedCoordinatorEnded(await asyncio.shield(self._embedded.ended)))

    def _children(self) -> frozenset[int]:
        others = {pid for pid in (self._guard.pid, self._embedded.pid) if pid is not None}
        return self._workers.pids | self._starter.pids | others

    # Events in

    def submit(self, event: Event) -> None:
        """Let the agent handle an event."""
        self._events.submit(event)

    def _leave(self, signum: int, counted: LeaveSignals) -> None:
        if not counted.note(signum, self._loop.time()):
            return
        self._stop_extension.begin()
        self._leftovers.note_signal()
        self.submit(LeaveRequested(signum))

    # Effects out

    def _carry_out(self, effect: Effect, _: Event) -> None:  # noqa: C901, PLR0912 - one plain case an effect
        match effect:
            case effect if isinstance(effect, KeptOrder):
                self._keeper.carry_out(effect)
            case effect if isinstance(effect, StayOrder):
                self._staying.carry_out(effect)
            case Probe():
                self._assignment = effect.round, effect.assignment
                self._tasks.spawn(self._probe(effect), name="probe")
            case Start():
                self._start(effect)
            case Terminate(signum):
                self._exit_reporter.expect_exits()
                self._leftovers.patience.stop(self._loop.time())
                if signum == signal.SIGINT:
                    self._output.expect_interrupts()
                self._workers.terminate(signum)
            case Kill():
                self._exit_reporter.expect_exits()
                self._workers.kill()
            case Sweep(looks_at_gpus):
                self._tasks.spawn(self._sweep(looks_at_gpus=looks_at_gpus), name="sweep")
            case SendObserved(observed):
                self._session.send(self._note_steps(self._completed(observed)))
                self._end_lingering()
            case Reconnect(reason):
                self._session.close(reason)
            case Notice(level, text, event):
                self._console.notify(level, text, event)
            case Show(report):
                self._console.show(report, now())
                self._logs.fail_round(report.round)
            case Waiting(reason):
                self._waiting_for = reason
                self._console.wait(effect, self._loop.time())
                self._redraw_later()
            case Exit():
                self._end(effect)

    async def _probe(self, probe: Probe) -> None:
        # Both begin now: the node of rank 0 got the round at about the same time.
        result, _ = await asyncio.gather(look_for_master(probe), self._starter.give_way(needed=probe.gives_way))
        await self._staying.dismissed(self._exit_reporter.settled)
        try:
            await self._leftovers.give_way()
        except UnkillableError as error:
            self._complain(str(error))
        self._leftovers.patience.begin_round()
        self.submit(await self._keeper.claim_disk(probe) or result)

    def _start(self, start: Start) -> None:
        assignment = start.assignment
        self._console.notify(Level.INFO, notices.starting(start, self._config.workers), "round_starting")
        place = LogPaths(self._config.job, start.run, start.round)
        own_ranks = range(assignment.first_rank, assignment.first_rank + self._config.workers)
        several_hosts = assignment.group_world_size > 1
        self._started_at, forked_before = None, self._starter.forked
        self._logs.begin_round(place, assignment.first_rank, self._config.workers)
        try:
            self._guard.await_ready()
            self._kills = oom.count()
            with self._output.begin(place, own_ranks, several_hosts=several_hosts) as streams:
                self._error_files = [stream.error_file for stream in streams]
                screens = [stream.screen for stream in streams]
                self._exit_reporter.begin()
                private, port = self._output.private_folder, assignment.master_port
                keep = self._keeper.listen(private, start.round)
                stacks = self._stacks.listen(private, start.run, start.round, own_ranks, port)
                rounds = self._staying.listen(private)
                slots = [{**slot, **keep, **stacks, **rounds} for slot in self._slots.begin(start.run, start.round)]
                self._lingering, self._first_rank = leftover_stages.Lingering(), assignment.first_rank
                commands = [
                    replace(command, slots=self._slots.file)
                    for command in self._launcher.commands(start, self._error_files, slots, screens)
                ]
                self._staying.begin(start.round, commands)
                self._workers.start(commands, streams, dict.fromkeys(start.stays, self._staying.go_on))
        except GuardError as error:
            self._fail_start(0, ExitCode.OS_ERROR, str(error))
        except SpawnError as error:
            self._fail_start(error.local_rank, error.exit_code, error.message)
        except OSError as error:
            self._fail_start(0, ExitCode.OS_ERROR, f"the system refused what the workers need: {error.strerror}")
        else:
            folder = "" if (logs := self._config.output.log_dir) is None else str(place.folder(logs.absolute()))
            text = notices.started(place.round, len(own_ranks), folder, len(start.stays))
            self._console.notify(Level.INFO, text, "workers_started")
            self._started_at = self._loop.time()
            pids = tuple(map(self._workers.pid_of, range(self._config.workers)))
            self.submit(WorkersStarted(self._starter.forked - forked_before, self._starter.why_cold, pids))
            self._output.when_settled(self._logs.delete_old)

    def _fail_start(self, local_rank: int, exit_code: int, message: str) -> None:
        self._workers.let_go()
        self.submit(StartFailed(local_rank, exit_code, message))

    def _note_steps(self, observed: Observed) -> Observed:
        """Write a notice when the workers have done their first step; return the same report."""
        step = next((step for step in observed.steps if step is not None), None)
        if step is not None and self._started_at is not None:
            took_s, self._started_at = self._loop.time() - self._started_at, None
            self._console.notify(Level.INFO, notices.first_step(observed.round, step, took_s), "first_step")
        return observed

    def _end_lingering(self) -> None:
        over = self._slots.over()
        for local_rank in self._lingering.overdue(over, self._loop.time()):
            if self._workers.end_as(local_rank, over[local_rank]):
                pid = self._workers.pid_of(local_rank)
                self._complain(leftover_stages.linger_notice(self._first_rank + local_rank, pid, over[local_rank]))

    def _note_exit(self, local_rank: int, exit_code: int) -> None:
        self._keeper.note_exit(local_rank)
        self._output.note_exit(local_rank, exit_code)
        self._exit_reporter.note(local_rank, exit_code, self._workers.pid_of(local_rank))

    async def _diagnose(self, local_rank: int, exit_code: int) -> Diagnosis:
        stderr = await self._output.end_of_stderr(local_rank)
        pid, file = self._workers.pid_of(local_rank), self._error_files[local_rank]
        # In a thread: it reads files, and the worker made one of them.
        diagnosis = await asyncio.to_thread(diagnose, exit_code, pid, file, stderr, self._kills)
        return diagnosis if (log := self._output.stderr_log(local_rank)) is None else replace(diagnosis, log=str(log))

    def _end(self, ending: Exit) -> None:
        self._systemd.notify("STOPPING=1", status_of(ending.message))
        if ending.report is not None and self._config.error_file is not None:
            obstacle = error_file.write(self._config.error_file, ending.report, now().timestamp())
            if obstacle is not None:
                self._console.notify(Level.WARNING, obstacle, "error_file_failed")
        if not self._exit.done():
            self._exit.set_result(ending)

    def _complain(self, text: str) -> None:
        self._console.notify(Level.WARNING, text, "trouble")

    def _remark(self, level: Level, text: str) -> None:
        self._console.notify(level, text, "remark")

    async def _sweep(self, *, looks_at_gpus: bool) -> None:
        try:
            await self._staying.settled()
            await self._workers.sweep()
            if looks_at_gpus:  # another round may follow
                await self._leftovers.give_way()
        except UnkillableError as error:
            self.submit(SweepFailed(str(error)))
            return
        if looks_at_gpus and (gpus := await look_at_gpus(os.environ)):
            self.submit(GpusInUse(gpus))
            return
        await self._keeper.note_end()
        await self._exit_reporter.settled()
        await self._settle_followed()  # they go on to the next round as soon as it is formed
        self._logs.end_round()
        # Each round has a fresh port, so nothing of an old round can connect to the new one by mistake.
        self._port.close()
        self._port = PortReservation()
        self.submit(Swept(self._port.port))

    def _redraw(self) -> None:
        if self._console.redraw(self._loop.time()):
            self._redraw_later()

    def _redraw_later(self) -> None:
        if self._redrawing is not None:
            self._redrawing.cancel()
        self._redrawing = self._loop.call_later(REDRAW_S, self._redraw)

    # Texts about the node itself

    def _join(self) -> Join:
        now = self._loop.time()
        observed = self._completed(self._agent.observed(now, beat=True))
        return self._introduction.join(observed, now, awaits_own=self._agent.awaits_own(now))

    def _offer(self, **of_host: Any) -> NodeOffer:
        config = self._config
        return NodeOffer(
            workers=config.workers,
            role=config.role,
            topology=config.topology,
            group_rank=config.group_rank,
            advertise_address=config.advertise_address,
            probe_port=self._listener.port,
            join_timeout_s=config.join_timeout_s,
            stop_timeout_s=max(config.stop_timeout_s, config.abort_timeout_s),
            log_dir=self._logs.folder,
            **of_host,
        )

    def _completed(self, observed: Observed) -> Observed:
        return self._keeper.complete(self._slots.complete(observed))

    def _status(self) -> str:
        """Return a line for `systemctl status` about the state of this node."""
        observed = self._agent.observed(self._loop.time(), beat=False)
        round_number, assignment = self._assignment or (0, None)
        own_assignment = assignment if round_number == observed.round else None
        return notices.status(observed, own_assignment, self._config.workers, self._waiting_for)

    def _context(self) -> dict[str, object]:
        return {"job": self._config.job, "node": self._config.node, "round": self._agent.round or None}
