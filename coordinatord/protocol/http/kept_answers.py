"""Answers of the HTTP API about the training state that nodes keep in memory and on a disk."""

from __future__ import annotations

from msgspec import Struct

from coordinatord.protocol.http.answer_fields import AnyText, Number, Whole


class KeptStatus(Struct, frozen=True, kw_only=True):
    """The state that the nodes of a job keep, and what its round resumed from."""

    step: Whole | None = None
    """The newest step of which everything is held; None if there is none at present. State that all workers have alike
    is saved when the round breaks."""
    resumed: Whole | None = None
    """The step that the current or last round resumed from; None if it resumed from none."""
    resumed_from: AnyText = ""
    """Where that step was taken from, in words: `node gpu3's memory`, or `disk`; empty if it resumed from none."""
    redone: Whole | None = None
    """How many steps were done again because of that; None if not known."""
    interval_steps: Whole | None = None
    """How many steps lie between two saves of what no other host has; None if there is no such state."""
    save_s: Number | None = None
    """How long the last save took on the slowest node."""
    used_bytes: Whole = 0
    """How much memory the kept state takes on all nodes."""
    skipped: Whole = 0
    """How many saves were left out because no place was free."""
    copied: Whole | None = None
    """The newest step that outlives the loss of any one host, since what one host alone has is copied to another; None
    if there is none at present."""
    copy_problem: AnyText = ""
    """Why state that only one host has is not copied; empty if it is, is about to be, or there is one host."""
    unkept: AnyText = ""
    """What training depends on and nobody keeps, as the state of an optimizer that was not given to `ctx.keep`; empty
    if nothing like that was noticed."""
    disk_step: Whole | None = None
    """The newest step of this run that is whole on the disk; None if there is none, or none is written."""
    disk_writing: Whole | None = None
    """The step that is being written there; None at present."""
    disk_problem: AnyText = ""
    """Why the last attempt to write a step failed; empty if it did not."""


class NodeKeptStatus(Struct, frozen=True, kw_only=True):
    """The state that one node keeps."""

    used_bytes: Whole = 0
    limit_bytes: Whole | None = None
    """How much memory it may use; None if not known."""
    interval_steps: Whole | None = None
    save_s: Number | None = None
    skipped: Whole = 0
    restoring: AnyText = "nothing"
    """How far it has come with what its workers resume from: `nothing`, `fetching`, `ready` or `failed`."""
    problem: AnyText = ""
    """Why its last save or restore failed, if it did."""
    copied_to: AnyText = ""
    """The node that has a copy of what this node alone keeps; empty if none has."""
    copied_step: Whole | None = None
    """The step of that copy."""
