"""One node: puts its parts together, carries events to the agent, and carries out the agent's effects.

The agent, which `participation` runs, takes the decisions. `_carry_out` has one case for each of its effects, and the
parts that carry them out submit further events by `submit`.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
from collections.abc import Sequence
from functools import partial

from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.log_messages import ReadLog
from coordinatord.protocol.messages import Join, NodeOffer, Observed
from coordinatord.runtime.local_time import now
from coordinatord.runtime.systemd import SystemdNotifier, status_of
from coordinatord.runtime.tasks import Tasks
from nodeclient.config.join_config import JoinConfig, command_digest
from nodeclient.core import effects, events, leftover_stages, notices
from nodeclient.core.effects import Effect, Level
from nodeclient.core.events import Event
from nodeclient.core.leaving import LeaveSignals
from nodeclient.diagnosis import error_file
from nodeclient.diagnosis.diagnose import RoundDiagnoses, early_output
from nodeclient.diagnosis.stack_service import StackService
from nodeclient.host.gpu_memory import sample_gpus
from nodeclient.host.ports import listening_address
from nodeclient.keeping.resources import KeepSettings
from nodeclient.keeping.state_keeper import StateKeeper
from nodeclient.output.log_paths import LogPaths
from nodeclient.output.output import Output
from nodeclient.shell.console import Console
from nodeclient.shell.coordinator_connection import Answer, CoordinatorConnection, Request
from nodeclient.shell.embedded_coordinator import EmbeddedCoordinator
from nodeclient.shell.host_programs import HostCheck, HostPrograms
from nodeclient.shell.log_service import LogService
from nodeclient.shell.master_probe import ProbeListener, probe_master
from nodeclient.shell.participation import Participation
from nodeclient.shell.round_setup import RoundSetup
from nodeclient.shell.stop_extension import StopExtension
from nodeclient.shell.worker_command import CommandBuilder
from nodeclient.workers.exit_reporter import ExitReporter
from nodeclient.workers.guard import Guard, GuardError
from nodeclient.workers.leftover_processes import LeftoverProcesses, program_of
from nodeclient.workers.local_workers import LocalWorkers
from nodeclient.workers.orphans import adopt_orphans, reaping_orphans
from nodeclient.workers.process_tree import UnkillableError
from nodeclient.workers.reusable_workers import ReusableWorkers
from nodeclient.workers.spawn import SpawnError


class Node:
    """One nodeclient, from joining to its exit code."""

    def __init__(self, config: JoinConfig) -> None:
        """Connect the parts of a node, in the running loop. Raises `OSError` if no port is free."""
        self._config = config
        self._tasks = Tasks()
        launcher, mark = CommandBuilder(config, os.environ), secrets.token_hex(16)
        self._leftovers = LeftoverProcesses(config.stop_timeout_s, self._tasks, self._remark)
        self._exit_reporter = ExitReporter(self.submit)
        self._output = Output(config.output, socket.gethostname(), config.role, self._complain)
        self._console = Console(config.log_level, config.log_format, self._log_fields, self._output.terminal)
        guard, stacks = Guard(mark, self._output.private_folder), StackService(self._pid_of, self._tasks)
        folders = {"logs": config.output.log_dir, "--persist": None if config.persist is None else config.persist.root}
        check = HostCheck(
            config.health_check,
            {what: folder for what, folder in folders.items() if folder is not None},
            config.coordinators,
            config.access,
            mark,
            reads_facts=not config.no_builtin_check,
        )
        programs = HostPrograms(check, launcher.pair_command, mark, self.submit)
        self._setup = RoundSetup(
            config, launcher, guard, stacks, programs, remark=self._remark, complain=self._complain
        )
        watch, spawn = self._leftovers.watch, self._setup.starter.spawn
        self._workers = LocalWorkers(mark, self._record_exit, watch, spawn, self._record_outlived)
        address = listening_address(config.advertise_address, standalone=config.standalone)
        keep = KeepSettings(config.keep_bytes, config.keep_timeout_s, address=address, copy_rate=config.keep_rate)
        submit, notify, tasks = self.submit, self._console.notify, self._tasks
        self._keeper = StateKeeper(
            keep, config.node, config.workers, submit=submit, notify=notify, tasks=tasks, persist=config.persist
        )
        self._reusable = ReusableWorkers(
            self._workers,
            tasks,
            submit=submit,
            submit_in_order=self._exit_reporter.record_report,
            dismissed_within_s=config.abort_timeout_s,
            complain=self._complain,
        )
        self._logs = LogService(config.output, config.job, config.node, self._complain, self._tasks.fail)

        def answer_request(wanted: Request, answer: Answer) -> None:
            if isinstance(wanted, ReadLog):
                self._logs.read(wanted, answer)
            else:
                stacks.read(wanted, answer)

        offer = partial(
            NodeOffer,
            workers=config.workers,
            role=config.role,
            topology=config.topology,
            group_rank=config.group_rank,
            advertise_address=config.advertise_address,
            join_timeout_s=config.join_timeout_s,
            stop_timeout_s=self._end_timeout_s,
            log_dir=self._logs.folder,
        )
        command, keeper = command_digest(config.command), self._keeper.offer
        join = partial(Join, job=config.job, node=config.node, spec=config.spec, command=command, keeper=keeper)
        self._participation = Participation(
            config.agent_settings,
            join,
            offer,
            ProbeListener(config.node, address),
            partial(CoordinatorConnection, config.coordinators, config.access, submit=submit, read=answer_request),
            self._carry_out,
            self._tasks.fail,
            self._completed,
        )

    async def run(self, embedded: EmbeddedCoordinator, systemd: SystemdNotifier) -> int:
        """Take part in the job until it is over for this node; return the exit code.

        `embedded` is the coordinator that this node may have started; `systemd` is notified of the node's status.
        """
        extension = StopExtension(systemd.notify, self._end_timeout_s)
        leave_signals, loop, setup = LeaveSignals(), asyncio.get_running_loop(), self._setup
        self._participation.session.is_child = lambda at: embedded.runs and at == self._config.coordinators[0]
        for signum in self._config.signals:
            if signal.getsignal(signum) is not signal.SIG_IGN:  # ignored signals stay ignored, as users of nohup expect
                loop.add_signal_handler(signum, self._leave, signum, leave_signals, extension)
        if self._config.preload:
            adopt_orphans()  # makes warm workers children of this process
        with reaping_orphans(partial(self._children, embedded)):
            try:
                for remark in (*self._config.remarks, *setup.remarks):
                    self._remark(Level.INFO, remark)
                self._tasks.spawn(extension.watch(self._keeper.persisting), name="stop extension")
                self._tasks.spawn(setup.starter.run(), name="preload")
                self._tasks.spawn(self._exit_reporter.run(), name="diagnosis")
                if self._config.preload:
                    self._tasks.spawn(self._prepare(), name="prepare")
                self._logs.start()
                setup.guard.start()  # its start takes 20 ms, in parallel with the rest
                systemd.notify("READY=1", status_of(self._status()))  # ready means that the node tries to join
                self._tasks.spawn(systemd.keep_alive(), name="watchdog")
                self._tasks.spawn(systemd.report_status(self._status), name="status")
                session = self._tasks.spawn(self._run_session(), name="session")
                self._tasks.spawn(self._watch_embedded(embedded), name="embedded coordinator")
                self._tasks.spawn(self._output.watch(), name="output")
                ending = await self._tasks.guard(self._participation.ended)
                systemd.notify("STOPPING=1", status_of(ending.message))
                await self._flush_followed_logs()
                await self._logs.await_followers()
                await self._reusable.dismissals.await_unless_unkillable()
                session.cancel()  # otherwise the node, which is out of the job, would join again and be told to exit
                await self._leftovers.end()
                self._console.notify(ending.level, ending.message, "ended", exit_code=int(ending.code))
                return ending.code
            finally:
                await self._tasks.cancel()
                self._keeper.close()
                self._reusable.close()
                self._setup.close()  # ends the guard, which kills workers that still live, so that their output ends
                await self._output.close()
                await self._logs.settle()
                self._participation.close()

    async def _flush_followed_logs(self) -> None:
        """Wait until the log files have all output of the workers, if anyone follows them."""
        if self._logs.followed:
            for local_rank in range(self._config.workers):
                await self._output.end_of_stderr(local_rank)

    async def _run_session(self) -> None:
        """Join the job, once the guard is up and the steps on the disk are known."""
        gpus, _ = await asyncio.gather(sample_gpus(os.environ), self._setup.guard.await_ready_in_loop())
        self._tasks.spawn(self._setup.guard.watch(self._complain), name="guard")
        await self._logs.try_out()
        await self._keeper.find_steps_on_disk()
        self.submit(events.SearchBegan())  # from here on the agent's deadlines count
        self.submit(events.GpusInUse(gpus))
        await self._participation.session.run()

    async def _prepare(self) -> None:
        await self._setup.starter.settled.wait()
        self.submit(events.Prepared())

    async def _watch_embedded(self, embedded: EmbeddedCoordinator) -> None:
        if embedded.ended is not None:
            self.submit(events.EmbeddedCoordinatorEnded(await asyncio.shield(embedded.ended)))

    def _children(self, embedded: EmbeddedCoordinator) -> frozenset[int]:
        """Return the child processes that are no orphans, since parts of this node reap them."""
        others = {pid for pid in (self._setup.guard.pid, embedded.pid) if pid is not None}
        return self._workers.pids | self._setup.starter.pids | self._setup.programs.pids | others

    @property
    def _end_timeout_s(self) -> float:
        """How long the workers may take to end, be it planned or after a failure."""
        return max(self._config.stop_timeout_s, self._config.abort_timeout_s)

    # Events in

    def submit(self, event: Event) -> None:
        """Hand an event to the agent."""
        self._participation.events.submit(event)

    def _leave(self, signum: int, signals: LeaveSignals, extension: StopExtension) -> None:
        if signals.counts(signum, self._now):
            extension.begin()
            self._leftovers.on_signal()
            self.submit(events.LeaveRequested(signum, self._setup.slots.training_is_over()))

    # Effects out

    def _carry_out(self, effect: Effect, _: Event) -> None:  # noqa: C901, PLR0912 - one plain case for each effect
        match effect:
            case effect if isinstance(effect, effects.KeptOrder):
                self._keeper.carry_out(effect)
            case effect if isinstance(effect, effects.ReuseOrder):
                self._reusable.carry_out(effect)
            case effects.Probe():
                self._setup.assigned = effect.round, effect.assignment
                self._tasks.spawn(self._probe(effect), name="probe")
            case effects.Start():
                self._start(effect)
            case effects.Terminate(signum, planned):
                self._exit_reporter.expect_exits(planned=planned)
                self._leftovers.stages.stop(self._now)
                if signum == signal.SIGINT:
                    self._output.expect_interrupts()
                self._workers.terminate(signum)
            case effects.Kill():
                self._exit_reporter.expect_exits(planned=False)
                self._workers.kill()
            case effects.Sweep(checks_gpus):
                self._tasks.spawn(self._sweep(checks_gpus=checks_gpus), name="sweep")
            case effects.CheckHealth(within_s):
                self._tasks.spawn(self._setup.programs.check_health(within_s), name="health check")
            case effects.RunPairTest(order):
                self._tasks.spawn(self._setup.programs.test_pair(order), name="test with another node")
            case effects.SendObserved(observed):
                self._send(self._completed(observed))
                self._kill_lingering()  # each heartbeat is a report, so this is looked for as often
            case effects.Reconnect(reason):
                self._participation.session.close(reason)
            case effects.Notice(level, text, event):
                self._console.notify(level, text, event)
            case effects.Show(report):
                self._console.show(report, now())
                self._logs.fail_round(report.round)
            case effects.Waiting():
                self._console.follow(effect)
            case effects.Exit():
                self._end(effect)

    async def _probe(self, probe: effects.Probe) -> None:
        """Answer a probe once nothing is in the way of new workers: test, dismissed worker, leftover or other run."""
        # Both begin at once: rank 0's node got this round at about the same time, and its head start counts from there.
        result, _ = await asyncio.gather(
            probe_master(probe), self._setup.starter.delay_start(needed=probe.delays_start)
        )
        await self._setup.programs.await_pair_end()
        if self._setup.assigned != (probe.round, probe.assignment):
            return  # a later round has begun meanwhile
        obstacle = await self._keeper.claim_disk(probe)
        await self._reusable.dismissals.await_all(self._clear_up)
        self.submit(obstacle or result)  # without another await: a dismissal meanwhile would end the new workers

    async def _clear_up(self) -> None:
        """Wait until all exits are reported, and kill the leftovers with a GPU or a port that a round may need."""
        await self._exit_reporter.await_reported()
        try:
            await self._leftovers.free_resources()
        except UnkillableError as error:
            self._complain(str(error))

    def _start(self, start: effects.Start) -> None:
        self._console.notify(Level.INFO, notices.starting(start, self._config.workers), "round_starting")
        setup, place = self._setup, LogPaths(self._config.job, start.run, start.round)
        own_ranks, forked_before = setup.begin(start), setup.starter.forked
        self._leftovers.stages.begin_round()
        self._logs.begin_round(place, own_ranks)
        try:
            setup.guard.await_ready()
            several_hosts = start.assignment.group_world_size > 1
            with self._output.begin(place, own_ranks, several_hosts=several_hosts) as streams:
                files = [stream.error_file for stream in streams]
                self._exit_reporter.begin(RoundDiagnoses(self._output, files).diagnose)
                private = self._output.private_folder
                sockets = self._keeper.listen(private, start.round) | self._reusable.listen(
                    private, self._config.workers
                )
                commands = setup.commands(start, streams, private, sockets)
                self._reusable.begin(start.round, commands)
                self._workers.start(commands, streams, dict.fromkeys(start.reused, self._reusable.continue_in_round))
        except GuardError as error:
            self._fail_start(0, ExitCode.OS_ERROR, str(error))  # no worker was started, so the first one failed
        except SpawnError as error:
            self._fail_start(error.local_rank, error.exit_code, str(error))
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""  # a lack of descriptors has no name
            problem = f"the system refused a resource of the workers: {where}{error.strerror}"
            self._fail_start(0, ExitCode.OS_ERROR, problem)
        else:
            folder = "" if (logs := self._config.output.log_dir) is None else str(place.folder(logs.absolute()))
            text = notices.started(place.round, len(own_ranks), folder, len(start.reused))
            self._console.notify(Level.INFO, text, "workers_started")
            setup.started_at = self._now
            pids = tuple(map(self._pid_of, range(self._config.workers)))
            self.submit(events.WorkersStarted(setup.starter.forked - forked_before, setup.starter.why_cold, pids))
            self._output.call_when_written(self._logs.delete_old)

    def _fail_start(self, local_rank: int, exit_code: int, message: str) -> None:
        self._workers.release_parked()  # so that the sweep ends them, too: they were to be in this round
        self.submit(events.StartFailed(local_rank, exit_code, message))

    def _send(self, observed: Observed) -> None:
        if (text := self._setup.first_step(observed, self._now)) is not None:
            self._console.notify(Level.INFO, text, "first_step")
        self._participation.session.send(observed)

    def _kill_lingering(self) -> None:
        for local_rank, exit_code in self._setup.overdue(self._now):
            if self._workers.end_as(local_rank, exit_code):
                rank, pid = self._setup.ranks[local_rank], self._pid_of(local_rank)
                self._complain(leftover_stages.linger_notice(rank, pid, exit_code))

    def _record_exit(self, local_rank: int, exit_code: int) -> None:
        slots = self._setup.slots
        if exit_code == -signal.SIGKILL:  # its program may have been over, with a code of its own
            exit_code = slots.exit_codes().get(local_rank, exit_code)
        self._keeper.record_exit(local_rank)
        self._output.on_worker_exit(local_rank, exit_code)
        pid = self._workers.pid_of(local_rank)
        self._exit_reporter.record_exit(local_rank, exit_code, pid, slots.over_s(local_rank))

    def _record_outlived(self, local_rank: int, pids: Sequence[int]) -> None:
        rank = str(self._setup.ranks[local_rank])
        leftovers = tuple(leftover_stages.Leftover(pid, program_of(pid), rank) for pid in pids)
        self.submit(events.WorkerOutlived(local_rank, leftovers))

    def _end(self, ending: effects.Exit) -> None:
        if ending.report is not None and self._config.error_file is not None:
            obstacle = error_file.write(self._config.error_file, ending.report, now().timestamp())
            if obstacle is not None:
                self._console.notify(Level.WARNING, obstacle, "error_file_failed")
        self._participation.end(ending)

    def _complain(self, text: str) -> None:
        self._console.notify(Level.WARNING, text, "trouble")

    def _remark(self, level: Level, text: str) -> None:
        self._console.notify(level, text, "remark")

    async def _sweep(self, *, checks_gpus: bool) -> None:
        try:
            await self._reusable.dismissals.await_unless_unkillable()
            await self._workers.sweep()
            if checks_gpus:  # the next sample is to be without the memory of leftovers; else `_probe` ends them
                await self._leftovers.free_resources()
        except UnkillableError as error:
            self.submit(events.SweepFailed(str(error)))
            return
        if checks_gpus and (gpus := await sample_gpus(os.environ)):
            self.submit(events.GpusInUse(gpus))  # the agent will order another sweep, which does the rest
            return
        await self._keeper.end_round()
        await self._exit_reporter.await_reported()
        await self._flush_followed_logs()  # followers read the next round once it is formed
        self._logs.end_round()
        observed = self._completed(self._participation.agent.observed(self._now, beat=False))
        self._keeper.warn_of_unused_disk(observed)
        output = await early_output(observed.ended, self._output, self._setup.ranks)
        self.submit(events.Swept(self._participation.renew_port(), output))

    # The state of the node

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _pid_of(self, local_rank: int) -> int:
        return self._workers.pid_of(local_rank)

    def _completed(self, observed: Observed) -> Observed:
        """Return a report with the steps and the kept state; warn the user if the script reports no steps."""
        with_steps = self._setup.slots.complete(observed)
        self._keeper.warn_of_unstepped(with_steps)
        return self._keeper.complete(with_steps)

    def _status(self) -> str:
        agent = self._participation.agent
        observed = agent.observed(self._now, beat=False)
        part = self._setup.assignment_in(observed.round)
        return notices.status(
            observed, part, self._config.workers, self._console.waiting_for, connected=agent.connected
        )

    def _log_fields(self) -> dict[str, object]:
        return {"job": self._config.job, "node": self._config.node, "round": self._participation.agent.round or None}
