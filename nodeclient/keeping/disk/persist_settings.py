"""The user's settings for kept state on a disk. `nodeclient.config` imports no other module of this package."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from coordinatord.protocol.kept_state import PersistOffer

PERSIST_EVERY_S = 600.0
"""The default time between two steps on the disk. It is long, because memory has newer steps unless all hosts are
lost."""

PERSIST_KEEP = 2
"""How many steps are left on the disk by default: one more than is needed, in case the newest proves damaged."""


class PersistSettings(Struct, frozen=True):
    """Where steps are written, and how often."""

    root: Path
    """The directory that the user has named."""
    job: str
    offer: PersistOffer
    """The settings that the coordinator has to know."""
    command: str = ""
    """The digest of the workers' command, which distinguishes two trainings; empty without a command."""
    named: bool = True
    """Whether the user has named the job. If so, another command may resume from its steps."""
