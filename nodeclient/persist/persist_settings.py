"""What a user chooses about the disk; a command line that is only read imports nothing more."""

from __future__ import annotations

from pathlib import Path

from coordinatord.protocol.frozen_class import frozen
from coordinatord.protocol.persisted_state import PersistOffer

PERSIST_EVERY_S = 600.0
"""The time between two steps on the disk by default: state is in memory meanwhile, so this is for the loss of all."""

PERSIST_KEEP = 2
"""The steps that stay on the disk by default: one more than is needed, if the newest proves to be damaged."""


@frozen
class PersistSettings:
    """Where steps are written, and how often."""

    root: Path
    job: str
    offer: PersistOffer
