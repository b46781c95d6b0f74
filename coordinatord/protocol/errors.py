"""The base classes of all errors: operational ones, which a correct program meets, and internal ones, which are bugs.

A user sees an `OperationalError` as one line, and a program that it ends exits with its code. An `InternalError` ends
the program with a traceback and a crash file; a `CompleteMap` raises it for a missing key.
"""

from __future__ import annotations

from typing import Never, TypeVar

from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.text import clip

STATE_MAX = 500
"""The most characters of a state or a stimulus in an error's text; the crash file has the rest."""

Key = TypeVar("Key")
Value = TypeVar("Value")


class CoordinatordError(Exception):
    """The base class of all errors of this project."""


class OperationalError(CoordinatordError):
    """An error of a user, a peer or the system, which a correct program has to handle.

    The text is for the person who can fix it: what went wrong, where, why and what to do.
    """

    exit_code: int = ExitCode.UNAVAILABLE
    """The exit code of a program that this error ends."""


class RefusedBySystemError(OperationalError):
    """The operating system refused a process, a port or a file."""

    exit_code = ExitCode.OS_ERROR


class OutputError(OperationalError):
    """Standard output cannot be written, for example because the disk is full."""

    exit_code = ExitCode.IO_ERROR

    def __init__(self, error: OSError) -> None:
        super().__init__(f"the output cannot be written: {error.strerror}")


class InternalError(CoordinatordError):
    """A bug of this project. The state of the machine that raised it may be wrong."""

    def __init__(self, text: str, *, where: str, state: object, stimulus: object) -> None:
        """Describe a bug in the map or the program that `where` names, while it handled `stimulus`.

        `state` is that of the missing key; None if the key has none, or if another error was raised.
        """
        super().__init__(text)
        self.add_note(f"in {where}, state {_short(state)}, stimulus {_short(stimulus)}")


def operational(error: Exception) -> OperationalError | None:
    """Convert an error that ends a program to an `OperationalError`; None if it is a bug."""
    if isinstance(error, OSError):
        return RefusedBySystemError(f"the system refused a request: {error}")
    return error if isinstance(error, OperationalError) else None


class CompleteMap(dict[Key, Value]):
    """A map with a value for each key that may come. A missing key is a bug, and raises `InternalError`.

    Its keys are pairs of a state and a stimulus, or only stimuli.
    """

    def __init__(self, name: str) -> None:
        """Make an empty map; add values with `|=`."""
        super().__init__()
        self._name = name

    def __missing__(self, key: Key) -> Never:
        state, stimulus = key if isinstance(key, tuple) else (None, key)
        raise InternalError("the map has nothing for this", where=self._name, state=state, stimulus=stimulus)


def _short(thing: object) -> str:
    return clip(thing if isinstance(thing, str) else repr(thing), STATE_MAX)
