"""What an exit code says of the signal behind it. Pure; how a code is said in words is in `coordinatord.wire.exits`."""

from __future__ import annotations

from signal import Signals

from coordinatord.wire.exits import describe_exit

_SHELL_SIGNALS = frozenset(Signals(number) for number in (2, 3, 4, 6, 7, 8, 9, 11, 15))
"""INT, QUIT, ILL, ABRT, BUS, FPE, KILL, SEGV, TERM: greater codes than 128 mean something else as well."""


def signal_behind(exit_code: int) -> int | None:
    """Return the signal that ended a worker, or the program that a shell in its place has run; None if none did."""
    if exit_code < 0:
        return -exit_code
    return exit_code - 128 if exit_code - 128 in _SHELL_SIGNALS else None


def describe(exit_code: int) -> str:
    """Say an exit code in words, with the signal that a shell means by it."""
    signum = signal_behind(exit_code)
    said = describe_exit(exit_code)
    return f"{said}, as a shell says {Signals(signum).name}" if signum is not None and exit_code > 0 else said
