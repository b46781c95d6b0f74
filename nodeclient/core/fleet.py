"""Decides for `nodeclient up` what the end of one node means for the others, and with which exit code `up` ends.

`nodeclient up` starts a node on each of several hosts by ssh. The coordinator decides about the job. This module only
sees how the programs on the hosts end, and makes sure that none is left that can never train.
"""

from __future__ import annotations

from collections.abc import Collection

from coordinatord.protocol.exit_codes import ExitCode

LOST = 255
"""The exit code of ssh where the host is out of reach or the connection broke (ssh(1)). A program on the host that ends
with it looks the same."""

END_WITHIN_S = 10.0
"""How long other nodes may take to end of the same failure: they hear of it within a lease."""

SIGNALS_MAX = 2
"""How many signals nodes get: the first one lets workers save, and the second one does not."""

_ORDER = {ExitCode.OK: 0, ExitCode.TERMINATED: 2, LOST: 3}
"""The order of the nodes' exit codes, 1 for all others: the first one becomes the code of the job."""


class Fleet:
    """The nodes of one `nodeclient up`, one on each host; times are in its shell's clock."""

    def __init__(self, hosts: Collection[str], least: int, stop_timeout_s: float) -> None:
        """Begin with a node on each of `hosts`. A round needs `least` nodes; workers have `stop_timeout_s` to end."""
        self.live = set(hosts)
        """The hosts whose node has not ended."""
        self.stop_at: float | None = None
        """When to end all nodes that are left, because they can form no round any more; None for never."""
        self._least = least
        self._may_take_s = END_WITHIN_S + stop_timeout_s
        self._codes: list[int] = []
        """The exit codes of the nodes that have ended, in order."""
        self._signals: list[int] = []
        """The signals that were sent to all nodes, in order."""
        self._is_too_small = False
        """Whether the nodes that were left were ended, because they could form no round any more."""

    def record_end(self, host: str, exit_code: int, now: float) -> str | None:
        """Record how the node of a host has ended; return a sentence about it, or None after a success."""
        self.live.remove(host)
        self._codes.append(exit_code)
        if exit_code == ExitCode.OK:
            return None
        left, hosts = len(self.live), len(self.live) + len(self._codes)
        # If a round needs more nodes than there are hosts, the others are started elsewhere, and are not known here.
        if self.stop_at is None and left < self._least <= hosts:
            self.stop_at = now + self._may_take_s
        node = "the connection is lost, or the node was killed, or it" if exit_code == LOST else "the node"
        return f"{node} has ended with exit code {exit_code}; {left} of {hosts} hosts are left"

    def time_out(self) -> bool:
        """End the wait at `stop_at`; return whether to end the remaining nodes: only once, and never after a signal."""
        due = self.stop_at is not None and bool(self.live)
        self.stop_at, self._least = None, 0  # from now on all nodes are to end, so no other wait begins
        self._is_too_small |= due
        return due

    def record_signal(self, signum: int) -> bool:
        """Record a signal to all nodes; return whether to wait for them.

        After `SIGNALS_MAX` signals, a person who sends another one does not want to wait: a host may hang, or nobody
        may read the output.
        """
        self.stop_at, self._least = None, 0
        self._signals.append(signum)
        return len(self._signals) <= SIGNALS_MAX

    @property
    def exit_code(self) -> int:
        """The code of the job: 0 if any node has ended with it, since a job succeeds as a whole.

        Otherwise it is that of the first node to end by itself. Nodes that were ended by SIGTERM, or whose hosts are
        out of reach, count only if there is no other one. It is 75 if SIGTERM came only from `time_out`.
        """
        code = min(self._codes, key=lambda code: _ORDER.get(code, 1), default=LOST)
        if code == ExitCode.TERMINATED and self._is_too_small and not self._signals:
            return ExitCode.TEMPFAIL
        # A signal may come before any node has begun, or kill them as they begin. Then no node has a code of its own.
        return 128 + self._signals[0] if code == LOST and self._signals else code


def why_not_ready(host: str, exit_code: int, *, is_here: bool, serves: bool) -> str:
    """Explain the end of a host's program that gave no answer; its output, or that of ssh, was shown before.

    `is_here` tells whether the host is this machine, so that no ssh is needed, and `serves` whether the program was to
    bring up the coordinator.
    """
    if exit_code == LOST and is_here:
        return f"its nodeclient was killed before it answered, or has ended with exit code {LOST}, see above"
    if exit_code == LOST:
        return f"it cannot be reached, for the reason above. See: ssh -o BatchMode=yes {host} true"
    ended = f"(exit code {exit_code}, see above)"
    if serves and is_here:
        return f"its coordinator did not start {ended}"
    remedy = "install the same release there at the same path, or name the Python that has it by --remote-python"
    if serves:
        return f"its coordinator did not start {ended}, or it has no nodeclient of this release: {remedy}"
    return f"there is no nodeclient of this release {ended}: {remedy}"
