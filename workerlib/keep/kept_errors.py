"""The error that a training script sees when state cannot be kept, or cannot be brought back."""

from __future__ import annotations


class KeptStateError(RuntimeError):
    """State cannot be kept or restored; the text says what, and what to do."""
