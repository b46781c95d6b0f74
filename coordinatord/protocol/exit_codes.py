"""Exit codes: how a worker's code is described and passed on, and those of the programs themselves."""

from __future__ import annotations

from enum import IntEnum
from signal import Signals


class ExitCode(IntEnum):
    """What a program of this project exits with when no worker's own code applies (see sysexits.h)."""

    OK = 0
    USAGE = 64
    """Wrong flags, or a command that does not exist."""
    DATA_ERROR = 65
    """The state cannot be read: it is damaged, or a newer version's (sysexits: EX_DATAERR)."""
    NO_INPUT = 66
    """There is nothing to show: no state directory, no state in it, no such job (sysexits: EX_NOINPUT)."""
    UNAVAILABLE = 69
    """The coordinator cannot be reached."""
    INTERNAL = 70
    """A bug of this project."""
    OS_ERROR = 71
    """The system refused what the program needs, such as a process or a port."""
    IO_ERROR = 74
    """The state cannot be kept: the disk is full, read-only, broken, in use (sysexits: EX_IOERR)."""
    TEMPFAIL = 75
    """Not enough nodes came in time."""
    REFUSED = 77
    """The coordinator refuses this node."""
    STOPPED = 79
    """An operator ended the job. It is the first number that sysexits leaves free: a program that starts nodes again
    when they fail or leave can see that these are not wanted back."""
    TIMED_OUT = 124
    """A worker that hung counts as ended with this, and a wait that took too long ends so: the code of timeout(1)."""
    INTERRUPTED = 130
    """Left after Ctrl-C (128 + SIGINT)."""
    TERMINATED = 143
    """Left after SIGTERM (128 + SIGTERM)."""


_SHELL_SIGNALS = frozenset(Signals(number) for number in (2, 3, 4, 6, 7, 8, 9, 11, 15))
"""INT, QUIT, ILL, ABRT, BUS, FPE, KILL, SEGV, TERM: other codes above 128 may mean something else."""


def signal_behind(exit_code: int) -> int | None:
    """Return the signal that ended a worker, or a program that a shell ran as the worker; None if no signal did."""
    if exit_code < 0:
        return -exit_code
    return exit_code - 128 if exit_code - 128 in _SHELL_SIGNALS else None


def describe_exit(exit_code: int, *, left: bool = False) -> str:
    """Return a text for an exit code of `subprocess`: 'exit code 3', 'killed by SIGKILL'.

    A code that a shell gives for a signal is explained: 'exit code 137, a shell's code for SIGKILL'. The process of a
    worker that has `left` its round has not ended: the code is the one that its error would have ended it with.
    """
    if left:
        return "left its round"
    if exit_code >= 0:
        signum = signal_behind(exit_code)
        return f"exit code {exit_code}" + (f", a shell's code for {Signals(signum).name}" if signum else "")
    try:
        return f"killed by {Signals(-exit_code).name}"
    except ValueError:
        return f"killed by signal {-exit_code}"


def shell_exit_code(exit_code: int) -> int:
    """Return what a shell would report for it: 128 + n for signal n."""
    return exit_code if exit_code >= 0 else 128 - exit_code
