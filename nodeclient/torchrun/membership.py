"""This torchrun process's membership in the job: connects torchrun's threads with its node, in a thread of its own.

All workers of this torchrun count as one, with local rank 0, which lives from when torchrun gets a round until torchrun
asks for the next one: torchrun reports nothing else about it. The node can ask only one thing of torchrun: to end its
round. The attribute `round_over` says so, and torchrun's agent looks at it ten times a second (`num_nodes_waiting`).
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from functools import partial

from coordinatord.protocol.errors import OperationalError, operational
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.messages import Desired, Goal, Join, NodeOffer, Phase, Report
from coordinatord.runtime.tasks import Tasks
from nodeclient.core import effects, events
from nodeclient.core.agent_settings import Settings
from nodeclient.core.effects import Effect, Exit, Level, Start
from nodeclient.core.events import Event
from nodeclient.host.ports import listening_address
from nodeclient.shell.coordinator_connection import CoordinatorConnection
from nodeclient.shell.master_probe import ProbeListener, probe_master
from nodeclient.shell.participation import Participation, run_node
from nodeclient.torchrun.parameters import TorchrunConfig, log, log_coordinator, logger, with_torchrun_names

REMIND_S = 30.0
"""The interval of log lines of a process that waits for a round, which would otherwise look like a hang."""

STOP_TIMEOUT_S = 35.0
"""How long torchrun may take to end its workers: it kills them 30 s after SIGTERM, and has to poll first."""

ROLE = "torchrun"
"""The role of every such node: torchrun's agents assign the roles of their workers themselves."""


class EndedError(OperationalError):
    """This membership is over for good."""

    def __init__(self, ending: Exit) -> None:
        super().__init__(ending.message)
        self.exit_code = ending.code


class TorchrunStage(Enum):
    """Where torchrun stands between its calls.

    | from       | by              | to         | since                                                |
    |------------|-----------------|------------|------------------------------------------------------|
    | WAITING    | `begin_round`   | OFFERED    | the coordinator has formed a round with this node    |
    | OFFERED    | `await_round`   | IN_ROUND   | torchrun gets the round                              |
    | OFFERED    | `end_round`     | ROUND_OVER | the coordinator ends the round                       |
    | IN_ROUND   | `end_round`     | ROUND_OVER | the same                                             |
    | IN_ROUND   | `await_round`   | WAITING    | a worker of this torchrun has failed                 |
    | ROUND_OVER | `await_round`   | WAITING    | torchrun has ended its workers, as it should         |
    | IN_ROUND   | `on_succeeded`  | SUCCEEDED  | torchrun enters its exit barrier                     |
    | ROUND_OVER | `on_succeeded`  | SUCCEEDED  | the same, before it has seen that the round is over  |
    | SUCCEEDED  | `end_round`     | RELEASED   | the other nodes begin another round                  |
    | any        | `fail`          | GONE       | torchrun cannot take part in its round, and ends     |
    | any        | `leave`         | GONE       | torchrun ends                                        |

    The end of the membership is the end of the round as well.
    """

    WAITING = auto()
    """It waits for a round, or soon will."""
    OFFERED = auto()
    """There is a round for it, which it does not know yet."""
    IN_ROUND = auto()
    """It has a round: its workers run, or are about to."""
    ROUND_OVER = auto()
    """It has a round, and is to end it and ask for another."""
    SUCCEEDED = auto()
    """All its workers have exited with 0, and it waits in its exit barrier for those of the other nodes."""
    RELEASED = auto()
    """All its workers have exited with 0, and it need not wait for others any more."""
    GONE = auto()
    """Its workers are dead, and it will not ask for another round."""


class Membership:
    """The membership from `begin` to `end`. Its methods wait only if their docstrings say so."""

    def __init__(self, config: TorchrunConfig) -> None:
        self._config = config
        self._thread = threading.Thread(target=self._run, name="coordinatord", daemon=True)
        self._ready = threading.Event()
        """Set when the next two fields are valid, or never will be."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._node: TorchrunNode | None = None

        self._waiting_for = "the coordinator"
        """Why there is no round yet, for people."""

        self._changed = threading.Condition()
        """Guards changes of the fields below, which both threads make, and announces them."""
        self._stage = TorchrunStage.WAITING
        self._round: Start | None = None
        """The round that torchrun has, or is about to get; None once the node knows that its workers are dead."""
        self._ending: Exit | None = None
        """How the membership ended."""

    @property
    def ended(self) -> bool:
        """Whether the membership is over."""
        return self._ending is not None

    @property
    def round_over(self) -> bool:
        """Whether torchrun's round is over, so that torchrun need not wait for anything in it any more."""
        return self._stage in {TorchrunStage.ROUND_OVER, TorchrunStage.RELEASED}

    @property
    def succeeded(self) -> bool:
        """Whether all workers of this torchrun have exited with 0."""
        return self._stage in {TorchrunStage.SUCCEEDED, TorchrunStage.RELEASED}

    @property
    def begun(self) -> bool:
        """Whether `begin` was called."""
        return self._thread.ident is not None

    def begin(self) -> None:
        """Join the job, or start looking for its coordinator; further calls do nothing."""
        if not self.begun:
            self._thread.start()
            self._ready.wait()

    def await_round(self) -> Start:
        """Wait for a round. torchrun's workers of the last one, if any, are dead by now. Raises `EndedError`."""
        # If the coordinator has ended that round, the node knows, and counts their end as no failure.
        self._report_dead_workers("a worker of this torchrun failed, see its own output")
        with self._changed:
            while self._round is None:
                if self._ending is not None:
                    raise EndedError(self._ending)
                if not self._changed.wait(REMIND_S):
                    logger.warning("job %s: no round yet: %s", self._config.job, self._waiting_for)
            if self._stage is TorchrunStage.OFFERED:
                self._stage = TorchrunStage.IN_ROUND
            return self._round

    def on_started(self) -> None:
        """Record that torchrun starts the workers of its round."""
        self._post(lambda node: node.on_started())

    def on_succeeded(self) -> None:
        """Record that all workers of this torchrun have exited with 0, and that it will start no more."""
        self._report(TorchrunStage.SUCCEEDED, lambda node: node.on_succeeded())

    def wait_until_over(self, timeout_s: float) -> bool:
        """Wait until the round or the membership is over; return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self.round_over or self.ended, timeout_s)

    def fail(self, why: str) -> None:
        """Leave the job, because this torchrun cannot take part in its round."""
        self._report(TorchrunStage.GONE, lambda node: node.fail(why))

    def leave(self, within_s: float, *, failed: bool) -> None:
        """Leave the job after all workers are dead; wait for the coordinator's decision, at most `within_s`.

        `failed` says that torchrun ends because its workers failed. Otherwise they have succeeded, or a signal ends
        torchrun. After a signal, the round has not failed: if there is one, the node ends it by `end_round`.
        """
        if failed:
            self._report_dead_workers("the workers of this torchrun failed for good, see its own output")
        with self._changed:
            self._stage = TorchrunStage.GONE
        self._post(lambda node: node.leave())
        self.wait_until_ended(within_s)

    def wait_until_ended(self, within_s: float) -> None:
        """Wait until the membership is over, at most `within_s`."""
        with self._changed:
            self._changed.wait_for(lambda: self.ended, within_s)

    def end(self, within_s: float) -> None:
        """End the thread in any case, and wait for its end, at most `within_s`."""
        self._post(lambda node: node.end())
        self._thread.join(within_s)

    def _report_dead_workers(self, why_failed: str) -> None:
        """Report that the workers of torchrun's round are dead, if it has a round."""
        with self._changed:
            if self._stage is not TorchrunStage.OFFERED:  # otherwise no worker of this round was started yet
                self._report(TorchrunStage.WAITING, lambda node: node.on_ended(why_failed))

    def _report(self, stage: TorchrunStage, report: Callable[[TorchrunNode], None]) -> None:
        """Enter a stage without a round, and report to the node how the round ended, if there was one."""
        with self._changed:
            round_, self._round, self._stage = self._round, None, stage
            if round_ is not None:
                self._post(report)

    def _post(self, call: Callable[[TorchrunNode], None]) -> None:
        if self._loop is not None and self._node is not None:
            with suppress(RuntimeError):  # the thread has ended, so there is nothing to notify
                self._loop.call_soon_threadsafe(call, self._node)

    # In the membership's thread

    def begin_round(self, start: Start) -> None:
        """Give torchrun a round."""
        with self._changed:
            self._round = start
            if self._stage is not TorchrunStage.GONE:  # torchrun may have left a moment ago, which the node hears next
                self._stage = TorchrunStage.OFFERED
            self._changed.notify_all()

    def end_round(self) -> bool:
        """Make torchrun end its round, if it has one; return whether its workers are dead without the node knowing.

        They are if a signal has ended torchrun.
        """
        with self._changed:
            self._release()
            is_dead = self._stage is TorchrunStage.GONE and self._round is not None
            if is_dead:
                self._round = None
            return is_dead

    def on_waiting(self, reason: str) -> None:
        """Record why the node waits."""
        self._waiting_for = reason

    def _run(self) -> None:
        try:
            ending = run_node(self._run_node())
        except Exception as error:  # noqa: BLE001 - the last resort of the thread, which reports every error
            ending = _ending(error)
        self._ready.set()
        with self._changed:
            self._ending = ending
            self._release()

    def _release(self) -> None:
        """End torchrun's wait for its workers, or for those of other nodes."""
        match self._stage:
            case TorchrunStage.OFFERED | TorchrunStage.IN_ROUND:
                self._stage = TorchrunStage.ROUND_OVER
            case TorchrunStage.SUCCEEDED:
                self._stage = TorchrunStage.RELEASED
        self._changed.notify_all()

    async def _run_node(self) -> Exit:
        self._node, self._loop = TorchrunNode(self._config, self), asyncio.get_running_loop()
        self._ready.set()
        return await self._node.run()


def _ending(error: Exception) -> Exit:
    """Convert an error that has ended the thread to the end of the membership."""
    known = operational(error)
    if known is not None:
        return Exit(known.exit_code, str(known))
    text = "a bug of the rendezvous backend coordinatord"
    logger.error(text, exc_info=error)
    return Exit(ExitCode.INTERNAL, f"{text}: {error!r}")


class TorchrunNode:
    """One torchrun process as a node: it carries out what the agent decides, as `nodeclient.shell.node` does elsewhere.

    torchrun starts and ends the workers. This node tells torchrun of a round and of its end, by `membership`, and hears
    of the workers from it. Make it in the running loop of the membership's thread. Raises `OSError` without a port.
    """

    def __init__(self, config: TorchrunConfig, membership: Membership) -> None:
        self._config = config
        self._membership = membership
        self._tasks = Tasks()
        offer = partial(
            NodeOffer,
            workers=1,
            role=ROLE,
            topology="",
            group_rank=None,
            advertise_address=config.advertise_address,
            join_timeout_s=config.join_timeout_s,
            stop_timeout_s=STOP_TIMEOUT_S,
        )
        self._participation = Participation(
            # torchrun takes as long to end its workers in an unplanned stop as in a planned one, and kills them itself.
            Settings(1, config.join_timeout_s, STOP_TIMEOUT_S, abort_timeout_s=STOP_TIMEOUT_S, kills=False),
            partial(Join, job=config.job, node=config.node, spec=config.spec),
            offer,
            ProbeListener(config.node, listening_address(config.advertise_address, standalone=False)),
            partial(CoordinatorConnection, config.coordinators, config.access, submit=self._receive),
            self._carry_out,
            self._tasks.fail,
        )
        self._succeeded: tuple[str, int] | None = None
        """The run and the round in which all of torchrun's workers succeeded."""
        self._leaving = False
        self._own_exit: Exit | None = None
        """How this node ends if torchrun cannot take part in its round."""

    async def run(self) -> Exit:
        """Take part in the job until it is over for this node."""
        if self._config.remark:
            log(self._config.job, Level.INFO, self._config.remark)
        try:
            self._submit(events.SearchBegan())
            self._tasks.spawn(self._participation.session.run(), name="session")
            return await self._tasks.guard(self._participation.ended)
        finally:
            await self._tasks.cancel()
            self._participation.close()

    # Calls of `Membership`

    def on_started(self) -> None:
        """Record that torchrun starts the workers of its round."""
        if self._participation.agent.phase is Phase.STARTING:  # otherwise the round is over already
            self._submit(events.WorkersStarted())

    def on_ended(self, why_failed: str) -> None:
        """Record that torchrun's workers are dead. If nobody asked for that, one has failed, for `why_failed`."""
        exit_code = 0 if self._participation.agent.phase is Phase.STOPPING else 1
        self._submit(events.WorkerExited(0, exit_code, events.Diagnosis(pid=os.getpid(), message=why_failed)))

    def on_succeeded(self) -> None:
        """Record that torchrun's workers all succeeded."""
        is_in_time = self._participation.agent.phase is not Phase.STOPPING
        self._submit(events.WorkerExited(0, 0, events.Diagnosis(pid=os.getpid())))
        if is_in_time:
            self._succeeded = (self._participation.agent.run, self._participation.agent.round)
        else:
            self._leave_by_itself()  # the round ends anyway, and torchrun cannot take part in the next one

    def fail(self, why: str) -> None:
        """Leave because torchrun cannot take part in its round."""
        self._fail(events.StartFailed(local_rank=0, exit_code=ExitCode.UNAVAILABLE, message=why), why)

    def leave(self) -> None:
        """Leave the job; further calls do nothing."""
        if not self._leaving:
            self._leaving = True
            self._submit(events.LeaveRequested(signum=0))

    def end(self) -> None:
        """End `run` in any case."""
        self._participation.end(Exit(ExitCode.OK, "this torchrun has left the job"))

    # Events

    def _submit(self, event: Event) -> None:
        self._participation.events.submit(event)

    def _receive(self, event: Event) -> None:
        self._submit(event)
        if isinstance(event, events.DesiredReceived):
            self._leave_if_done(event.desired)

    def _leave_if_done(self, desired: Desired) -> None:
        """Leave if torchrun has succeeded and its round ends before the job does: torchrun cannot start again."""
        is_same_round = desired.goal is Goal.RUN and (desired.run, desired.round) == self._succeeded
        if self._succeeded and desired.goal is not Goal.EXIT and not is_same_round:
            self._leave_by_itself()

    def _leave_by_itself(self) -> None:
        """Leave before torchrun asks for it: its workers have succeeded, and it waits in its exit barrier."""
        self._membership.end_round()  # which lets it out of the barrier
        self.leave()

    # Effects

    def _carry_out(self, effect: Effect, event: Event) -> None:  # noqa: C901, PLR0912 - one plain case an effect
        """Carry out an effect. None of them is about health, kept state or reused workers: `Settings` asks for none."""
        job = self._config.job
        match effect:
            case effects.Probe():
                self._tasks.spawn(self._probe(effect), name="probe")
            case Start():
                self._membership.begin_round(effect)
            case effects.Terminate():
                if self._membership.end_round():
                    self._submit(events.WorkerExited(0, 0, events.Diagnosis(pid=os.getpid())))
            case effects.Kill():
                log(job, Level.WARNING, f"torchrun has not ended its workers within {STOP_TIMEOUT_S:g} s")
            case effects.Sweep():
                # torchrun ends its processes itself, so only the port is renewed.
                self._submit(events.Swept(self._participation.renew_port()))
            case effects.SendObserved(observed):
                self._participation.session.send(observed)
            case effects.Reconnect(reason):
                self._participation.session.close(reason)
            case effects.Notice(_, text, "connected"):  # logged even if torch logs only warnings
                log_coordinator(job, text)
            case effects.Notice(level, text, _):
                # torchrun itself has reported already that its workers ended.
                log(job, Level.INFO if isinstance(event, events.WorkerExited) else level, text)
            case effects.Show(report):
                self._show(report)
            case effects.Waiting(reason):
                self._membership.on_waiting(with_torchrun_names(reason))
                log(job, Level.INFO, reason)  # `log` replaces the names itself
            case Exit():
                self._participation.end(self._own_exit or effect)

    async def _probe(self, probe: effects.Probe) -> None:
        event = await probe_master(probe)
        agent = self._participation.agent
        is_current = (probe.run, probe.round, Phase.STARTING) == (agent.run, agent.round, agent.phase)
        if isinstance(event, events.Unreached) and is_current:
            # The probe would fail again in the next round, and torchrun has no budget to end that.
            self._fail(event, event.message)
        else:
            self._submit(event)

    def _show(self, report: Report) -> None:
        if report.node != self._config.node:  # torchrun itself shows the failures of its own workers
            text = f"round {report.round} failed first on node {report.node}: {report.failure.message}"
            log(self._config.job, Level.WARNING, text)

    def _fail(self, event: Event, why: str) -> None:
        self._own_exit = Exit(ExitCode.UNAVAILABLE, why)
        self._submit(event)
        self.leave()
