"""Decides what the end of one node of `nodeclient up` means for the others, and with which code `up` ends."""

from __future__ import annotations

from collections.abc import Collection

from coordinatord.protocol.exit_codes import ExitCode

LOST = 255
"""The exit code of ssh where the host is out of reach or the connection broke (ssh(1)). A command may have it too."""

END_WITHIN_S = 10.0
"""How long after a failed node the others still run that end of the same failure: they hear of it within a lease."""


_WEIGHTS = {ExitCode.OK: 0, ExitCode.TERMINATED: 2, LOST: 3}
"""How little a node's exit code says of the job; 1 for all others."""


class Fleet:
    """The nodes of one `nodeclient up`, one on each host; times are in its shell's clock."""

    def __init__(self, hosts: Collection[str], least: int, stop_timeout_s: float) -> None:
        """Begin with a node on each of `hosts`. A round needs `least` nodes, and a node may take that long to stop."""
        self.live = set(hosts)
        """The hosts whose node has not ended."""
        self.stop_at: float | None = None
        """When to end all nodes that are left, because they can form no round any more; None for never."""
        self._least = least
        self._may_take_s = END_WITHIN_S + stop_timeout_s
        self._codes: list[int] = []

    def record_end(self, host: str, exit_code: int, now: float) -> str | None:
        """Record how the node of a host has ended; return a sentence about it, or None after a success."""
        self.live.remove(host)
        self._codes.append(exit_code)
        if exit_code == ExitCode.OK:
            return None
        if self.stop_at is None and len(self.live) < self._least <= len(self.live) + len(self._codes):
            self.stop_at = now + self._may_take_s
        left = f"{len(self.live)} of {len(self.live) + len(self._codes)} hosts are left"
        if exit_code == LOST:
            return f"the connection is lost, or the node has ended with exit code {LOST}; {left}"
        return f"the node has ended with exit code {exit_code}; {left}"

    def gives_up(self, now: float) -> bool:
        """Whether the time has come to end all nodes that are left; true only once."""
        if self.stop_at is None or now < self.stop_at:
            return False
        self.stop_at, self._least = None, 0
        return True

    @property
    def exit_code(self) -> int:
        """The code of the job: that of the first node that has ended, and was neither ended nor out of reach.

        0 if any node has ended with it, since a job succeeds as a whole.
        """
        return min(self._codes, key=lambda code: _WEIGHTS.get(code, 1))


def why_not_ready(host: str, exit_code: int, said: str, program: str) -> str:
    """Explain the end of a host's program before it was ready; `said` is the end of its standard error."""
    if exit_code == LOST:
        return f"it cannot be reached: {said or 'ssh said nothing'}. See: ssh -o BatchMode=yes {host} true"
    return (
        f"{program} does not run nodeclient there (exit code {exit_code}: {said or 'it said nothing'}): install the"
        " same release there at the same path, or name the Python that has it by --remote-python"
    )
