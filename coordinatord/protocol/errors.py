"""The errors of the two programs, in two branches: whose fault something is decides what is done about it.

An `OperationalError` is for the user: one clear line, and the program, if that ends it, exits with the error's code. An
`InternalError` is for us: it ends the program with a traceback, and with what led to it in a crash file. Every
exception class of coordinatord and nodeclient is of one branch. `Table` makes an error of ours of a missing row.
"""

from __future__ import annotations

from typing import Never, TypeVar

from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.text import clip

STATE_MAX = 500
"""The length of a state or a stimulus, in characters: the crash file has more of either."""

Key = TypeVar("Key")
Row = TypeVar("Row")


class CoordinatordError(Exception):
    """What every error of this project is. Never raised itself: it is of one branch or of the other."""


class OperationalError(CoordinatordError):
    """A user, a peer or the system did what a correct program has to bear.

    The text is for whoever can help it. It says what went wrong, where, why and what to do.
    """

    exit_code: int = ExitCode.UNAVAILABLE
    """The exit code of a program that this ends."""


class RefusedBySystemError(OperationalError):
    """The operating system refused what is needed: a process, a port, a file."""

    exit_code = ExitCode.OS_ERROR


class OutputError(OperationalError):
    """Standard output takes nothing more: the disk is full, say."""

    exit_code = ExitCode.IO_ERROR

    def __init__(self, error: OSError) -> None:
        super().__init__(f"the output cannot be written: {error.strerror}")


class InternalError(CoordinatordError):
    """A bug of this project. The state of what raised it is not to be trusted any more."""

    def __init__(self, text: str, *, table: str, state: object, stimulus: object) -> None:
        """Raise in the `state` of a machine, when `table` has no answer to `stimulus`."""
        super().__init__(text)
        self.table = table
        self.state = state
        self.stimulus = stimulus
        self.add_note(f"table {table}, state {_short(state)}, stimulus {_short(stimulus)}")


def operational(error: Exception) -> OperationalError | None:
    """Return an error that ends a program as one that is not our fault; None if it is a bug."""
    if isinstance(error, OSError):
        return RefusedBySystemError(f"the system refused a request: {error}")
    return error if isinstance(error, OperationalError) else None


class Table(dict[Key, Row]):
    """The table of a machine, which has a row for everything that can happen: that one is missing is a bug.

    Its keys are pairs of a state and a stimulus, or stimuli alone. Looking a row up raises `InternalError`.
    """

    def __init__(self, name: str) -> None:
        """Make a table without rows, which are added by `|=`."""
        super().__init__()
        self._name = name

    def __missing__(self, key: Key) -> Never:
        state, stimulus = key if isinstance(key, tuple) else (None, key)
        raise InternalError("the table has no row for this", table=self._name, state=state, stimulus=stimulus)


def _short(thing: object) -> str:
    return clip(thing if isinstance(thing, str) else repr(thing), STATE_MAX)
