"""Defines the programs' exit codes, and describes those of workers."""

from __future__ import annotations

from enum import IntEnum
from signal import Signals


class ExitCode(IntEnum):
    """The exit codes of our programs, if no worker's code applies (see sysexits.h)."""

    OK = 0
    USAGE = 64
    """Wrong flags, or a command that does not exist."""
    DATA_ERROR = 65
    """Data cannot be used (sysexits: EX_DATAERR): a state that is damaged or of a newer version, a dump that cannot be
    read, replicas that have diverged."""
    NO_INPUT = 66
    """There is nothing to show: no state directory, no state in it, no such job in it (sysexits: EX_NOINPUT)."""
    UNAVAILABLE = 69
    """The coordinator or the master cannot be reached, or the coordinator does not have what was asked for, such as a
    job or its stacks (sysexits: EX_UNAVAILABLE)."""
    INTERNAL = 70
    """A bug of this project."""
    OS_ERROR = 71
    """The system refused a resource, such as a process or a port."""
    IO_ERROR = 74
    """The state cannot be stored: the disk is full, read-only, broken, in use (sysexits: EX_IOERR)."""
    TEMPFAIL = 75
    """It may succeed later (sysexits: EX_TEMPFAIL): not enough nodes came in time, all have left, this node is drained,
    or the coordinator cannot serve just now."""
    REFUSED = 77
    """The coordinator refuses this node."""
    STOPPED = 79
    """An operator ended the job: a supervisor must not restart its nodes. sysexits defines no code from here on."""
    NO_PROGRESS = 80
    """The job fails again and again without getting any further: a supervisor must not restart its nodes."""
    TIMED_OUT = 124
    """A wait timed out, or a worker hung: the code of timeout(1)."""
    INTERRUPTED = 130
    """Left after Ctrl-C (128 + SIGINT)."""
    TERMINATED = 143
    """Left after SIGTERM (128 + SIGTERM)."""


_SHELL_SIGNALS = frozenset(Signals(number) for number in (2, 3, 4, 6, 7, 8, 9, 11, 15))
"""INT, QUIT, ILL, ABRT, BUS, FPE, KILL, SEGV, TERM: other codes above 128 may mean something else."""


def signal_behind(exit_code: int) -> int | None:
    """Return the signal that ended a worker, or a program that a shell ran as the worker; None without a signal."""
    if exit_code < 0:
        return -exit_code
    return exit_code - 128 if exit_code - 128 in _SHELL_SIGNALS else None


def describe_exit(exit_code: int, *, left: bool = False) -> str:
    """Describe an exit code of `subprocess`: 'exit code 3', 'killed by SIGKILL'.

    A shell's code for a signal is explained: 'exit code 137, a shell's code for SIGKILL'. A worker that has `left` its
    round has not ended: the code is that of its error.
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
    """Convert an exit code to a shell's: 128 + n for signal n."""
    return exit_code if exit_code >= 0 else 128 - exit_code
