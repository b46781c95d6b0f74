"""How a node comes to its end: which signals count, its wait for a decision, and its exit."""

from __future__ import annotations

from collections.abc import Callable

from coordinatord.protocol.messages import Desired, Goal, Phase
from nodeclient.core.agent_settings import BACK_WITHIN_S, LEAVE_WITHIN_S
from nodeclient.core.connection_state import ConnectionState
from nodeclient.core.effects import Exit, Level

ECHO_S = 1.0
"""A program around this one, such as timeout(1), may pass on the Ctrl-C that the terminal has sent to both. It does so
within milliseconds."""


class LeaveSignals:
    """The signals that ask a node to leave, of which the second one leaves no time to save."""

    def __init__(self) -> None:
        """Begin without a signal."""
        self._last: tuple[int, float] | None = None
        """The last signal that counted, and when it came."""

    def note(self, signum: int, now: float) -> bool:
        """Note a signal; return whether it counts: the same one again within `ECHO_S` is an echo, and does not."""
        if self._last is not None and self._last[0] == signum and now < self._last[1] + ECHO_S:
            return False
        self._last = signum, now
        return True


class Departure:
    """The end of one node, as far as it is known."""

    def __init__(self) -> None:
        """Begin with a node that does not leave."""
        self.signum: int | None = None
        """The signal by which the node leaves, or 0 if it leaves without one; None while it does not leave."""
        self.decide_by: float | None = None
        """When the node stops waiting for the coordinator's decision about its leaving."""
        self.ending: Exit | None = None
        """The exit that the node has decided on by itself, for when no worker lives any more."""
        self.hurry = False
        """Whether workers get no more time to save."""
        self.has_state = False
        """Whether its workers keep state, or have kept some."""

    @property
    def leaves(self) -> bool:
        """Whether the node was asked to leave."""
        return self.signum is not None

    @property
    def is_certain(self) -> bool:
        """Whether no round follows for the node: it was asked to leave, or has decided on its exit."""
        return self.leaves or self.ending is not None

    def request(self, signum: int) -> bool:
        """Note a signal that asks the node to leave; return whether it is the first one."""
        first = not self.leaves
        self.signum = signum
        return first

    def await_decision(self, now: float) -> None:
        """Wait for the coordinator's decision, for `LEAVE_WITHIN_S`."""
        self.decide_by = now + LEAVE_WITHIN_S

    def take_in(self, desired: Desired, now: float) -> None:
        """Take in a desired state, which may be the decision."""
        if desired.goal in {Goal.STOP, Goal.EXIT} or desired.persist is not None:
            self.decide_by = None  # a leaving node waits for this decision
        elif desired.goal is Goal.RUN:
            self.note_undecided(now)  # the decision before was not about its leaving

    def note_undecided(self, now: float) -> None:
        """Note that the coordinator is in reach, and has decided nothing about the leaving of this node."""
        if self.leaves and self.decide_by is None:
            self.await_decision(now)

    def leaves_in_s(self, connection: ConnectionState, now: float) -> float | None:
        """Return how long a node that leaves still waits for a coordinator that is out of reach.

        None if it waits for none.
        """
        left_s = self._search_until(connection) - now
        return left_s if self.leaves and not connection.connected and left_s > 0 else None

    def _search_until(self, connection: ConnectionState) -> float:
        """Return until when the coordinator may be back in time."""
        return connection.alone_since + (BACK_WITHIN_S if self.has_state else 0.0)

    def leave_undecided(self) -> Exit:
        """Stop waiting for a decision; return the exit of a node that leaves without one."""
        self.decide_by = None
        return Exit(128 + (self.signum or 0), "left the job", Level.INFO)

    def deadlines(
        self, phase: Phase, connection: ConnectionState, abandon: Callable[[float], None]
    ) -> list[tuple[float, Callable[[float], None]]]:
        """Return the deadlines, with what is due then; `abandon` has the node leave without a decision."""
        dues: list[tuple[float, Callable[[float], None]]] = []
        if self.decide_by is not None and phase is not Phase.STOPPING:
            dues.append((self.decide_by, abandon))
        if self.leaves and self.ending is None and not connection.connected:
            dues.append((self._search_until(connection), abandon))
        return dues

    def end_with(self, ending: Exit, *, hurry: bool) -> None:
        """Decide on an exit, and whether workers still have time to save."""
        self.ending = ending
        self.hurry |= hurry
