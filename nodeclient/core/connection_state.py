"""The agent's connection to the coordinator: the state of the session, of the search for one, and the last report."""

from __future__ import annotations

from enum import Enum, auto

from msgspec import Struct

from coordinatord.protocol.exit_codes import ExitCode, shell_exit_code
from coordinatord.protocol.fields import DURATION_S_MAX
from coordinatord.protocol.messages import Desired, Failure, Goal, Observed, Phase, RefusalCode, Refused
from coordinatord.protocol.news import Mark, is_news, marked
from nodeclient.core import notices
from nodeclient.core.effects import Exit, Level, Notice, Reconnect, Show, Waiting

HEARTBEAT_S = 1.0
LEASE_S = 5.0
OUTAGE_GRACE_S = 300.0
"""The defaults of the coordinator's policy. They apply until it grants the node others."""

DROP_SHARE = 0.8
"""The share of a lease after which a node gives up a silent session. If only the connection is dead, since a firewall
has forgotten it, the rest suffices to join by another one before the coordinator counts the node as lost. An earlier
end would cost more nodes their session on a network that loses packets, where TCP is often silent for seconds."""

PROBE_LEASES = 4.0
"""How many leases a node probes the master of a round. The coordinator stretches a lease to three times its length on a
bad network, and must declare a dead master lost before the probe fails: only a failed probe is charged as a restart."""

ERRORS_MAX = 16
"""How many different errors are shown in one outage: several of each of the few coordinators of a job."""

TRANSIENT = frozenset({Phase.IDLE, Phase.STARTING, Phase.STOPPING})
"""Phases that a node passes through at the coordinator's request. The coordinator waits for the next phase, so a node
reports these only with a heartbeat. A round thus costs each node two reports instead of four."""

TEMPORARY = frozenset({RefusalCode.VERSION, RefusalCode.FORBIDDEN})
"""Refusals after which a node that was let in before retries: an upgrade can be undone, and a token replaced."""


class Contact(Enum):
    """How far a node has come with a coordinator."""

    NONE = auto()
    """It looks for one."""
    JOINING = auto()
    """It has a session, and is not let in yet."""
    LET_IN = auto()


class Refusal(Struct, frozen=True):
    """A refusal after which the node retries."""

    refused: Refused
    until: float | None
    """When the refusal becomes final if it stays the same; None if it never does. This is only shown: a refusal that
    is final says so itself (`Refused.retry`)."""
    by: str
    """The coordinator that has refused the node; empty if the node had no session."""


class Shown:
    """The messages of the coordinator that the user was shown, so that none is shown twice."""

    def __init__(self) -> None:
        self._errors: set[str] = set()
        """The errors of this outage."""
        self._report: tuple[str, int] | None = None
        """The last failed round, (run id, round)."""
        self._reason: str | None = None
        """The reason of the last goal."""
        self._remark = ""

    def is_new_error(self, reason: str) -> bool:
        """Record an error; return whether to show it: each once in an outage, and only the first few."""
        new = reason not in self._errors and len(self._errors) < ERRORS_MAX
        if new:
            self._errors.add(reason)
        return new

    def end_outage(self) -> None:
        """Forget the errors, so that they are shown in the next outage."""
        self._errors.clear()

    def unseen(self, desired: Desired, now: float, *, let_in: bool) -> list[Show | Notice | Waiting]:
        """Return the parts of a desired state that the user has not seen yet, and record them as shown.

        The reason to wait is shown again if the node was `let_in` by this message.
        """
        news: list[Show | Notice | Waiting] = []
        if desired.report is not None and self._report != (desired.run, desired.report.round):
            self._report = desired.run, desired.report.round
            news.append(Show(desired.report))
        if desired.remark and desired.remark != self._remark and desired.goal is not Goal.EXIT:
            self._remark = desired.remark
            news.append(Notice(Level.WARNING, desired.remark, "remark"))
        before, self._reason = self._reason, desired.reason
        waits = desired.goal is Goal.WAIT or desired.wait_s is not None
        if waits and (let_in or before != desired.reason):
            news.append(Waiting(desired.reason, None if desired.wait_s is None else now + desired.wait_s))
        return news


class ConnectionState:
    """The agent's side of the session, or of the search for one. Times are in the agent's clock.

    The agent calls `begin_search` first, and `close` for each attempt that fails. If one succeeds, it calls `open`,
    then `record_desired` or `record_alive` for each message and `record_report` for each report, and at last `close`.
    For a refusal it calls `record_refusal`, and `close` with the message of the refusal. The search is shown as refused
    until an attempt fails for another reason. A node that gives up names the refusal all the same.
    """

    def __init__(self, now: float) -> None:
        self.coordinator = ""
        """The coordinator of the present or last session."""
        self._contact = Contact.NONE
        self.searching_since = now
        """When the search for a coordinator began, or the present or last outage."""
        self.error = "no answer yet"
        """Why the coordinator is out of reach."""
        self.heartbeat_s = HEARTBEAT_S
        self.lease_s = LEASE_S
        self.outage_grace_s = OUTAGE_GRACE_S
        """How long workers may go on without the coordinator. After that it may have replaced this node."""
        self.heard_at = now
        """When the coordinator of the session was last heard, or when the session began."""
        self.beat_at = now
        """When the next heartbeat of the session is due."""
        self.shown = Shown()
        self._refusal: Refusal | None = None
        """The last refusal; None once a coordinator has let the node in."""
        self._reported: Observed | None = None
        """The last report, by which the next one is judged to be news."""

    @property
    def connected(self) -> bool:
        """Whether there is a session."""
        return self._contact is not Contact.NONE

    def begin_search(self, now: float) -> None:
        """Begin to look for a coordinator: the time without one counts from now."""
        self.searching_since = now

    def open(self, coordinator: str, joined_with: Observed, now: float) -> None:
        """Begin a session whose first message carried `joined_with`."""
        self.coordinator = coordinator
        self._contact = Contact.JOINING
        self.heard_at = now
        self.beat_at = now + self.heartbeat_s
        self._reported = joined_with

    @property
    def probe_s(self) -> float:
        """How long to probe the master of a round."""
        return PROBE_LEASES * self.lease_s

    @property
    def drop_at(self) -> float:
        """When to give up the session if the coordinator stays silent."""
        return self.heard_at + DROP_SHARE * self.lease_s

    def drop(self, now: float) -> Reconnect:
        """Return the effect that ends a session whose coordinator was silent for too long."""
        self.heard_at = now  # so that it is not given up again before the shell submits `SessionClosed`
        return Reconnect(f"the coordinator has been silent for {DROP_SHARE * self.lease_s:g} s")

    def heard_s(self, now: float) -> float:
        """Return how many seconds ago the coordinator was last heard in this session; 0 without a session."""
        return min(now - self.heard_at, DURATION_S_MAX) if self.connected else 0.0

    def close(self, reason: str, now: float) -> bool:
        """End the session, or record a failed attempt; return whether the coordinator had let the node in."""
        was_let_in, self._contact = self._contact is Contact.LET_IN, Contact.NONE
        self.error = reason
        if was_let_in:
            self.searching_since = now
        return was_let_in

    def search_deadline(self, phase: Phase, without_workers_since: float, patience_s: float) -> float:
        """Return when a node in this phase stops looking for a coordinator.

        A node without workers looks for `patience_s`, from `searching_since` or the later `without_workers_since` on.
        """
        if phase.has_workers:
            return self.searching_since + self.outage_grace_s
        return max(self.searching_since, without_workers_since) + patience_s

    def is_grace_over(self, now: float) -> bool:
        """Whether a node that is not let in has looked for a coordinator for the whole outage grace."""
        return now >= self.searching_since + self.outage_grace_s

    def record_refusal(self, refused: Refused, until: float | None) -> None:
        """Record that a coordinator refuses this node; the same refusal after `until`, if set, will be final."""
        self._refusal = Refusal(refused, until, self.coordinator if self.connected else "")

    def search_notice(self, until: float, *, working: bool) -> Waiting:
        """Return the notice of a search for a coordinator that ends at `until`."""
        refusal = self._refusal
        if refusal is None or refusal.refused.message != self.error:
            return Waiting(f"{notices.SEARCHING}: {self.error}", until, working)
        by = f" by {refusal.by}" if refusal.by else ""
        text = f"{notices.NOT_LET_IN}{by}: {self.error}"
        until = until if refusal.until is None else min(until, refusal.until)
        return Waiting(text, until, working, Level.WARNING)

    def exit_of_search(self, waited_s: float, phase: Phase, failure: Failure | None) -> Exit:
        """Return the exit of a node in this phase that has found no coordinator within `waited_s`."""
        refused = None if self._refusal is None else self._refusal.refused
        code = ExitCode.UNAVAILABLE
        if refused is None:
            reason = f"no coordinator reached within {waited_s:g} s: {self.error}; see --coord and --join-timeout"
        elif refused.message != self.error:
            reason = notices.not_let_in(f"{refused.message}; and then: {self.error}", waited_s)
        else:
            reason = notices.not_let_in(self.error, waited_s)
            code = ExitCode.TEMPFAIL if refused.code is RefusalCode.DRAINED else code
        text = notices.search_ended(reason, phase, failure)
        return Exit(code if failure is None else shell_exit_code(failure.exit_code), text)

    def record_desired(self, desired: Desired, now: float) -> bool:
        """Record the times that the coordinator grants; return whether this is its first message in this session."""
        self.heartbeat_s, self.lease_s = desired.heartbeat_s, desired.lease_s
        self.outage_grace_s = desired.outage_grace_s
        # The heartbeats may have been further apart so far; then the next one would be too late.
        self.beat_at = min(self.beat_at, now + self.heartbeat_s)
        self.shown.end_outage()
        self._refusal = None
        return self.record_alive(now)

    def record_alive(self, now: float) -> bool:
        """Record a message of the coordinator; return whether it is the first one in this session."""
        first = self._contact is Contact.JOINING
        self.heard_at = now
        if first:
            self._contact = Contact.LET_IN
        return first

    def make_beat_due(self, now: float) -> None:
        """Make a heartbeat due now, because the shell's part of the report has changed."""
        self.beat_at = min(self.beat_at, now)

    def record_report(self, observed: Observed, now: float) -> bool:
        """Return whether to send this report: it has changed, or a heartbeat is due. If so, record it as sent."""
        if observed.beat:
            self.beat_at = now + self.heartbeat_s
        due = observed.beat or self._reported is None or _is_change(self._reported, observed)
        if due:
            self._reported = observed
        return due


def _is_change(before: Observed, observed: Observed) -> bool:
    """Whether a change is reported before the next heartbeat: the coordinator waits for it, or acts on it at once.

    A field that has become None can wait. So can a change to one of the `TRANSIENT` phases, unless it is the end of the
    last worker, or of the preparation. With a phase that can wait, a new run or round can wait, too, unless a failure
    is reported.
    """
    changed = {
        name
        for name in _AT_ONCE
        if getattr(observed, name) is not None and is_news(getattr(observed, name), getattr(before, name))
    }
    ends_workers = before.phase.has_workers and not observed.phase.has_workers
    ends_preparation = before.phase is Phase.PREPARING and observed.phase is not Phase.PREPARING
    if observed.phase in TRANSIENT and not (ends_workers or ends_preparation):
        changed -= {"phase"} if observed.failure else {"phase", "run", "round"}
    return bool(changed)


_AT_ONCE = marked(Observed, Mark.AT_ONCE)
