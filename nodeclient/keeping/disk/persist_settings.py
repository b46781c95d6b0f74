"""What a user chooses about the disk. Command lines import this module, and nothing else of this room."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from coordinatord.protocol.kept_state import PersistOffer

PERSIST_EVERY_S = 600.0
"""The default time between two steps on the disk. Memory has the newest state, so the disk is for the loss of all
hosts."""

PERSIST_KEEP = 2
"""How many steps stay on the disk by default: one more than is needed, in case the newest proves to be damaged."""


class PersistSettings(Struct, frozen=True):
    """Where steps are written, and how often."""

    root: Path
    job: str
    offer: PersistOffer
    command: str = ""
    """The digest of the workers' command, by which two trainings are told apart; empty if there is none."""
    named: bool = True
    """Whether somebody has named the job: then another command may go on from its steps."""
