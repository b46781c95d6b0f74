"""The judgement on a host: the failed rounds that it ended, and whether rounds do without it.

A *charge* is a failed round that a host ended by a fault that may be its own, such as a broken GPU. A host with enough
recent charges is *quarantined*: rounds take its nodes only if too few others are there. The wing `judging` decides
both. An operator may quarantine a host too, or end its quarantine and drop its charges.
"""

from __future__ import annotations

import math
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from coordinatord.core.rounds.values.due_times import NOW
from coordinatord.core.rounds.values.time_ledger import SPAN_MAX, Span
from coordinatord.protocol.fields import Name, Sentence
from coordinatord.protocol.schema import Strict

CHARGES_MAX = 8
"""The most charges of a host that are kept, the last ones: two are enough to quarantine it."""

REMEMBERED_S = 90 * 86_400.0
"""The seconds after which a charge is forgotten: three of the longest half-lives that may be set, so that it weighs at
most an eighth then. Otherwise hosts that have gone for good would stay on record."""


class Fault(StrEnum):
    """The kind of fault that a host is charged with."""

    DEVICE = "device"
    HANG = "hang"
    DISK = "disk"
    LOST = "lost"
    """The host went while it was in a round."""
    CRASH = "crash"
    """Native code crashed."""
    DIVERGENCE = "divergence"
    """Its ranks had another state than most of the ranks that should have had the same."""


class Charge(Strict, frozen=True):
    """One failed round that a host ended."""

    fault: Fault
    error: Sentence
    """The error, to compare it with those of other hosts: one that comes on many hosts is no host's own fault. Empty if
    the fault is certain."""
    age_s: Span
    """How long ago it was, as of the record that has it."""
    job: Name
    """The job of the round."""


class Judge(StrEnum):
    """Who keeps a host in quarantine."""

    CHARGES = "charges"
    """The coordinator, for charges."""
    CHECK = "check"
    """The coordinator, for a failed health check: a check that passes ends it."""
    PREFLIGHT = "preflight"
    """The coordinator, for a finding of a preflight: another one that finds the host good ends it."""
    OPERATOR = "operator"
    """An operator: only a pardon ends it."""


class JudgedHost(Struct, frozen=True):
    """The judgement on one host."""

    charges: tuple[Charge, ...] = ()
    """The last ones, the oldest first."""
    quarantined: str = ""
    """Why rounds do without it if they can; empty if they do not."""
    by: Judge = Judge.CHARGES
    """Who wants the quarantine, if there is one."""
    at: float = 0.0
    """When it was recorded, by the coordinator's clock."""

    @property
    def forgotten_at(self) -> float:
        """When it is forgotten: not while it is quarantined, else once its last charge is to be forgotten."""
        if self.quarantined:
            return math.inf
        return max((self.at + REMEMBERED_S - each.age_s for each in self.charges), default=NOW)

    def as_of(self, now: float) -> tuple[Charge, ...]:
        """Return the charges with their ages as of `now`."""
        passed = max(0.0, now - self.at)
        return tuple(replace(each, age_s=min(each.age_s + passed, SPAN_MAX)) for each in self.charges)
