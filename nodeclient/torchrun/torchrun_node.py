"""The node of a torchrun process: carries out what the pure agent decides, as `nodeclient.shell.node` does elsewhere.

torchrun starts and ends the workers. This node tells torchrun of a round and of its end, and hears of the workers from
torchrun: that it starts them, that they are dead, or that all have succeeded. Each is about all workers at once, so to
the agent they are one worker, with local rank 0. Everything here runs in one thread, which `Membership` connects with
torchrun's threads.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Protocol

from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.messages import Desired, Goal, Join, NodeOffer, Phase, Report
from coordinatord.runtime.tasks import Tasks
from nodeclient.core import effects, events
from nodeclient.core.agent_settings import Settings
from nodeclient.core.effects import Effect, Level
from nodeclient.core.events import Event
from nodeclient.host.ports import listening_address
from nodeclient.shell.coordinator_connection import CoordinatorConnection
from nodeclient.shell.master_probe import ProbeListener, probe_master
from nodeclient.shell.participation import Participation
from nodeclient.torchrun.parameters import TorchrunConfig, log, log_coordinator, with_torchrun_names

STOP_TIMEOUT_S = 35.0
"""How long torchrun may take to end its workers: it kills them 30 s after SIGTERM, and has to poll first."""

ROLE = "torchrun"
"""The role of every such node: torchrun's agents assign the roles of their workers themselves."""


class Torchrun(Protocol):
    """The node's requests to torchrun."""

    def begin_round(self, start: effects.Start) -> None:
        """Give torchrun a round."""

    def end_round(self) -> bool:
        """Make torchrun end its round; return whether its workers are already dead."""

    def on_waiting(self, reason: str) -> None:
        """Record why this node waits."""


class TorchrunNode:
    """One torchrun process as a node. Make it in the running loop. Raises `OSError` if there is no port."""

    def __init__(self, config: TorchrunConfig, torchrun: Torchrun) -> None:
        self._config = config
        self._torchrun = torchrun
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
        self._own_exit: effects.Exit | None = None
        """How this node ends if torchrun cannot take part in its round."""

    async def run(self) -> effects.Exit:
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
        self._participation.end(effects.Exit(ExitCode.OK, "this torchrun has left the job"))

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
        self._torchrun.end_round()  # which lets it out of the barrier
        self.leave()

    # Effects

    def _carry_out(self, effect: Effect, event: Event) -> None:  # noqa: C901, PLR0912 - one plain case an effect
        """Carry out an effect. None of them is about health, kept state or reused workers: `Settings` asks for none."""
        job = self._config.job
        match effect:
            case effects.Probe():
                self._tasks.spawn(self._probe(effect), name="probe")
            case effects.Start():
                self._torchrun.begin_round(effect)
            case effects.Terminate():
                if self._torchrun.end_round():
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
                self._torchrun.on_waiting(with_torchrun_names(reason))
                log(job, Level.INFO, reason)  # `log` replaces the names itself
            case effects.Exit():
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
        self._own_exit = effects.Exit(ExitCode.UNAVAILABLE, why)
        self._submit(event)
        self.leave()
