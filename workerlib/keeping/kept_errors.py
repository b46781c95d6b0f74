"""The exceptions that kept state raises in a training script."""

from __future__ import annotations


class KeptStateError(RuntimeError):
    """State cannot be kept or restored; the text says which, and what to do."""


class UnfitStateError(KeptStateError):
    """The kept state does not fit the objects of this script."""

    def __init__(self, problem: str) -> None:
        """Add a remedy to the `problem`."""
        super().__init__(f"{problem}: run the script as it was, or begin anew with another directory of --persist")


class LeftRoundError(BaseException):
    """The round is over, and this process takes part in the next one. `workerlib.rounds` catches this.

    It is not an `Exception`, so that no script handles it as an error of its own.
    """
