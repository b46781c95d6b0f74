"""How a node leaves its job: the signals that ask for it, the wait for the coordinator's decision, and the exit.

A node that is asked to leave reports that, and goes on: the coordinator stops the round, so that the workers of all
nodes save the same step, and then tells the node to exit. The node stops its workers by itself only if no decision
comes in time, or no coordinator is there.

If the training of its workers is over, the node puts that report off, so that they may end by themselves: then the
round goes on, and the job may succeed.
"""

from __future__ import annotations

from signal import Signals

from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.messages import Desired, Goal, Phase, Result
from nodeclient.core import notices
from nodeclient.core.agent_settings import BACK_WITHIN_S, LEAVE_WITHIN_S, STAGE_SHARE
from nodeclient.core.connection_state import ConnectionState
from nodeclient.core.effects import Exit, Level, Notice
from nodeclient.core.table import WORKING

ECHO_S = 1.0
"""A program that runs this one, such as timeout(1), may forward a Ctrl-C that the terminal has sent to both. It does so
within milliseconds."""


class LeaveSignals:
    """The signals that ask a node to leave. After the second one, the agent waits for no save."""

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None
        """The number of the last signal that counted, and when it came."""

    def counts(self, signum: int, now: float) -> bool:
        """Record a signal; return whether it counts. The same signal again within `ECHO_S` does not."""
        if self._last is not None and self._last[0] == signum and now < self._last[1] + ECHO_S:
            return False
        self._last = signum, now
        return True


class Leaving:
    """Whether and how one node leaves its job. Times are in the agent's clock."""

    def __init__(self, stop_timeout_s: float) -> None:
        """Begin without a request. Workers have `stop_timeout_s` from the first one until they are killed."""
        self._stop_timeout_s = stop_timeout_s
        self._asked_at: float | None = None
        """When the node was first asked to leave; None before."""
        self._reports_since: float | None = None
        """When the node began to report that it leaves; None before."""
        self.signum: int | None = None
        """The signal that asked the node to leave, 0 if it was asked in another way; None while it does not leave."""
        self.decide_by: float | None = None
        """The deadline of the coordinator's decision about its leaving; None if the node does not wait for one."""
        self.exit: Exit | None = None
        """The exit that the node has decided on by itself, once no worker lives; None before it has."""
        self.hurry = False
        """Whether workers get no more time to save."""
        self.has_state = False
        """Whether its workers have kept state. If so, a node that leaves waits for a coordinator."""

    @property
    def leaves(self) -> bool:
        """Whether the node was asked to leave."""
        return self.signum is not None

    @property
    def is_reported(self) -> bool:
        """Whether the coordinator is to know that the node leaves."""
        return self._reports_since is not None

    @property
    def put_off_until(self) -> float | None:
        """When the node reports at the latest that it leaves, if it puts that off; None if it does not."""
        if self._asked_at is None or self.is_reported:
            return None
        return self._asked_at + STAGE_SHARE * self._stop_timeout_s

    @property
    def is_certain(self) -> bool:
        """Whether no round follows for the node: it was asked to leave, or has decided on its exit."""
        return self.leaves or self.exit is not None

    @property
    def workers_end_by(self) -> float | None:
        """When workers that live are killed because the node was asked to leave; None if it was not."""
        return None if self._asked_at is None else self._asked_at + self._stop_timeout_s

    def on_request(
        self,
        signum: int,
        connection: ConnectionState,
        phase: Phase,
        now: float,
        *,
        has_workers: bool,
        may_put_off: bool,
    ) -> list[Notice]:
        """Record a request to leave by a signal; return the notice of the first request.

        `may_put_off` is whether the workers may end by themselves. A person who presses Ctrl-C does not wait for that.
        """
        first, self.signum = not self.leaves, signum
        if not first:
            return []
        self._asked_at = now
        puts_off = may_put_off and self._stop_timeout_s > 0 and signum != Signals.SIGINT
        if not puts_off:
            self.report(now)
        grace_s = self._stop_timeout_s if has_workers else None
        put_off_s = None if self.put_off_until is None else self.put_off_until - now
        text = notices.leaving(signum, grace_s, self.leaves_in_s(connection, phase, now), put_off_s)
        if connection.connected:
            self.on_undecided(now)
        return [Notice(Level.INFO, text, "leaving")]

    def report(self, now: float) -> None:
        """Report from now on that the node leaves, if it was asked to."""
        if self.put_off_until is not None:  # it was asked to, and has not reported yet
            self._reports_since = now

    def on_desired(self, desired: Desired, now: float) -> None:
        """Stop waiting for a decision if this desired state is one: to stop, to exit, or to write to the disk first.

        While workers are to run, an order to write does not count: it may be older than the node's request to leave.
        """
        if desired.goal is Goal.RUN:
            self.on_undecided(now)  # the last decision was not about its leaving
        elif desired.goal in {Goal.STOP, Goal.EXIT} or desired.persist is not None:
            self.decide_by = None

    def on_undecided(self, now: float) -> None:
        """Wait for a decision: the coordinator is connected, and has not decided about the leaving of this node."""
        if self.is_reported and self.decide_by is None:
            self.decide_by = now + LEAVE_WITHIN_S

    def leaves_in_s(self, connection: ConnectionState, phase: Phase, now: float) -> float | None:
        """Return how long a leaving node still waits for a coordinator that is out of reach; None if it does not."""
        left_s = self._search_until(connection, phase) - now
        return left_s if self.is_reported and not connection.connected and left_s > 0 else None

    def _search_until(self, connection: ConnectionState, phase: Phase) -> float:
        """Return when a leaving node stops waiting for a coordinator that is out of reach."""
        until = connection.searching_since + (BACK_WITHIN_S if self.has_state else 0.0)
        wait_until = self._wait_until(phase)
        return until if wait_until is None else min(until, wait_until)

    def _wait_until(self, phase: Phase) -> float | None:
        """Return when workers have to be asked to end to have time for it; None without workers or a reported leave."""
        end_by = self.workers_end_by
        if end_by is None or self._reports_since is None or phase not in WORKING:
            return None
        return self._reports_since + STAGE_SHARE * (end_by - self._reports_since)

    def deadlines(self, phase: Phase, connection: ConnectionState) -> list[float]:
        """Return the times at which the node leaves without a decision."""
        dues: list[float | None] = []
        if phase is not Phase.STOPPING:
            dues.append(self.decide_by)
        if self.is_reported and self.exit is None:
            dues.append(self._wait_until(phase) if connection.connected else self._search_until(connection, phase))
        return [due for due in dues if due is not None]

    # Its exit

    def abandon(self, *, hurry: bool, loses_step: bool) -> None:
        """Leave without a decision of the coordinator; `loses_step` is whether a step that is kept is then lost."""
        self.decide_by = None
        signum, is_lost = self.signum or 0, self.has_state and loses_step and not hurry
        text = notices.left(signum, notices.LEFT_UNDECIDED if is_lost else "left the job")
        self.end_with(Exit(128 + signum, text, Level.WARNING if is_lost else Level.INFO), hurry=hurry)

    def end_with(self, decided: Exit, *, hurry: bool = False) -> None:
        """Decide on an exit; with `hurry`, workers get no time to save."""
        self.exit = decided
        self.hurry |= hurry

    def exit_now(self, *, has_succeeded: bool) -> Exit | None:
        """Return the exit that a node without workers has decided on; None if it has not.

        If the coordinator is gone for good, and the node knows that the run `has_succeeded`, that is a success.
        """
        if has_succeeded and self.exit is not None and self.exit.code == ExitCode.UNAVAILABLE:
            return unreported_success(self.exit.message)
        return self.exit

    def exit_as_directed(self, desired: Desired) -> Exit:
        """Return the exit that the coordinator asks for. Its line is a warning if a remark says that a step is lost."""
        outcome = desired.outcome
        assert outcome is not None  # noqa: S101 - `exit` carries one, see `messages`
        code, summary = outcome.exit_code, outcome.summary
        if outcome.result is Result.LEFT and self.signum is not None:
            code, summary = 128 + self.signum, notices.left(self.signum, summary)
        well = outcome.result in {Result.SUCCEEDED, Result.LEFT, Result.STOPPED}
        level = Level.ERROR if not well else Level.WARNING if desired.remark else Level.INFO
        return Exit(code, summary, level, desired.report)


def unreported_success(error: str) -> Exit:
    """Return the exit of a node that knows of the run's success, and cannot report it because of this error."""
    return Exit(ExitCode.OK, notices.unreported_success(error), Level.INFO)
