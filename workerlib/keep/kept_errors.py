"""The exceptions that kept state raises in a training script."""

from __future__ import annotations


class KeptStateError(RuntimeError):
    """State cannot be kept or restored; the text says what, and what to do."""


class LeftRoundError(BaseException):
    """The round is over, and this process takes part in the next one: it is for `workerlib.rounds` alone.

    It is no `Exception`, so that no script takes it for an error of its own.
    """
