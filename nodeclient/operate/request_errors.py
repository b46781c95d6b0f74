"""The errors of a request to a coordinator, each one line for its sender."""

from __future__ import annotations

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.text import clip


class RequestError(OperationalError):
    """The request failed, or its answer cannot be shown; the text says why."""

    def __init__(self, text: str, exit_code: ExitCode = ExitCode.UNAVAILABLE) -> None:
        super().__init__(clip(text))
        self.exit_code = exit_code

    @property
    def is_temporary(self) -> bool:
        """Whether the same read may succeed later, such as after a restart of the coordinator."""
        return self.exit_code is ExitCode.TEMPFAIL


class UnknownNameError(RequestError):
    """The coordinator knows no such job, or no such node."""


class LostError(RequestError):
    """No coordinator answers, or the connection was lost; a read may be retried."""

    is_temporary = True


class AnswerError(RequestError):
    """The answer is not that of a coordinatord."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"the answer is not that of a coordinatord ({problem}): see --coord")
