"""What the kernel tells of a process without asking it: its state, where it waits, and the time that it has used."""

from __future__ import annotations

import os
from pathlib import Path

from coordinatord.protocol.frozen_class import frozen

STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting for IO",
    "T": "stopped",
    "t": "traced",
    "Z": "ended",
    "X": "ended",
    "I": "idle",
}
"""The states of proc_pid_stat(5), in words."""

HALTED = frozenset({"stopped", "traced", "ended"})
"""The states in which a process does nothing, whatever it is sent."""

_STATE, _USER, _SYSTEM = 0, 11, 12
"""Fields of /proc/PID/stat, counted after the name."""


@frozen
class ProcessState:
    """A look at one process."""

    state: str
    """A word, or the kernel's own letter."""
    waits_in: str
    """The function of the kernel in which its main thread waits; empty if it waits in none or this is not told."""
    cpu_s: float
    """The time that all of its threads have used."""


def look_at(pid: int, proc: Path = Path("/proc")) -> ProcessState | None:
    """Look at a process; None if it is gone."""
    try:
        fields = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    try:
        waits_in = (proc / str(pid) / "wchan").read_text(errors="replace")
    except OSError:  # only for those who may trace the process
        waits_in = ""
    ticks = int(fields[_USER]) + int(fields[_SYSTEM])
    letter = fields[_STATE]
    return ProcessState(
        STATES.get(letter, letter), waits_in if waits_in != "0" else "", ticks / os.sysconf("SC_CLK_TCK")
    )


def catches(pid: int, signum: int, proc: Path = Path("/proc")) -> bool:
    """Whether a process has a handler for a signal: any other would end by it."""
    try:
        lines = (proc / str(pid) / "status").read_text(errors="replace").splitlines()
    except OSError:
        return False
    caught = next((int(line.partition(":")[2], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(caught >> (signum - 1) & 1)
