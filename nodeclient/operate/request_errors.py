"""What can go wrong when a coordinator is asked, each as one line for the person who asked."""

from __future__ import annotations

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.text import clip


class RequestError(OperationalError):
    """It could not be done or shown; the text says why."""

    def __init__(self, text: str, exit_code: ExitCode = ExitCode.UNAVAILABLE) -> None:
        super().__init__(clip(text))
        self.exit_code = exit_code


class UnknownNameError(RequestError):
    """The coordinator knows no such job, or no such node."""


class LostError(RequestError):
    """No coordinator answers, or one does no more: what only reads may be tried again."""


class AnswerError(RequestError):
    """The answer is not that of a coordinatord."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the answer is not that of a coordinatord ({what}): see --coord")
