"""What can go wrong when a coordinator is asked, each as one line for the person who asked."""

from __future__ import annotations

from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.text import clip


class OperateError(RuntimeError):
    """It could not be done or shown; the text says why, and `code` is what the program exits with."""

    def __init__(self, text: str, code: ExitCode = ExitCode.UNAVAILABLE) -> None:
        super().__init__(clip(text))
        self.code = code


class UnknownNameError(OperateError):
    """The coordinator knows no such job, or no such node."""


class LostError(OperateError):
    """No coordinator answers, or one does no more: what only reads may be tried again."""


class AnswerError(OperateError):
    """The answer is not that of a coordinatord."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the answer is not that of a coordinatord ({what}): see --coord")
