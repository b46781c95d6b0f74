"""Charges against hosts: which host ended a round, and what several charges add up to. Pure.

A script may fail on each host that it visits, and a network may cut off many at once. So a failure charges a host only
if it may be the host's fault, and if nothing like it happened on another host in the same round. A charge counts only
as long as its job has charged few hosts with the same error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from coordinatord.protocol.fields import Name, Sentence
from coordinatord.protocol.messages import Cause
from coordinatord.protocol.schema import Strict
from coordinatord.protocol.text import is_same_error

CHARGES_MAX = 8
"""How many charges of a host are kept: fewer are enough to quarantine it."""

SPREAD_SHARE = 0.05
"""An error that came on more hosts than this share of a job's, and on more than one, is the fault of none. Bad hosts
crash alike, since a native crash tells only its signal, and three of 63 are bad in a public trace (Lablup, arXiv
2605.09370). With a limit of two hosts, 39 % of their rounds are avoided in `benchmarks/policy`; with this one, 87 %."""

SPREAD_HALF_LIVES = 4
"""The half-lives for which a charge shows that an error has come on a host; it hardly weighs anything then."""

AGE_MAX = 10**9
"""The limit in seconds: some 30 years, in place of no limit."""


KEPT_S = 90 * 86_400.0
"""The seconds after which a charge is forgotten: it weighs at most an eighth then, whatever the half-life. Hosts come
and go, and many have new names."""


class Fault(StrEnum):
    """What a host is charged with."""

    DEVICE = "device"
    HANG = "hang"
    DISK = "disk"
    LOST = "lost"
    """The host went while it was in a round."""
    CRASH = "crash"
    """Native code crashed."""
    DIVERGENCE = "divergence"
    """Its ranks had another state than most others should have had with them."""


FAULT_OF = {
    Cause.DEVICE: Fault.DEVICE,
    Cause.HANG: Fault.HANG,
    Cause.DISK: Fault.DISK,
    Cause.UNKNOWN: Fault.CRASH,
    Cause.DIVERGENCE: Fault.DIVERGENCE,
}
"""The causes that may be a host's fault. An error of the script, a lack of memory, and what somebody outside the job
does to a worker are none. A broken connection is none either, since each end may have failed."""


class Charge(Strict, frozen=True):
    """One failed round that a host ended."""

    fault: Fault
    error: Sentence
    """The error, to compare it with those of other hosts; empty if the fault is certain."""
    age_s: Annotated[float, Meta(ge=0, le=AGE_MAX)]
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
    """The coordinator, for what a preflight has found: another one that finds the host good ends it."""
    OPERATOR = "operator"
    """Only a pardon ends it."""


class HostCharges(Struct, frozen=True):
    """What is on record about one host."""

    charges: tuple[Charge, ...] = ()
    """The last ones, the oldest first."""
    quarantined: str = ""
    """Why rounds do without it if they can; empty if they do not."""
    by: Judge = Judge.CHARGES
    """Who wants the quarantine, if there is one."""
    at: float = 0.0
    """When it was recorded, by the coordinator's clock."""

    def counts(self, now: float) -> bool:
        """Whether the host is quarantined, or has a charge that is not too old at `now`."""
        return bool(self.quarantined) or any(each.age_s <= KEPT_S for each in self.as_of(now))

    def as_of(self, now: float) -> tuple[Charge, ...]:
        """Return the charges with their ages as of `now`."""
        passed = max(0.0, now - self.at)
        return tuple(replace(each, age_s=min(each.age_s + passed, AGE_MAX)) for each in self.charges)


def weight(charges: Iterable[Charge], half_life_s: float, threshold: float) -> float:
    """Return what charges add up to: 1 for each, halved with each half-life.

    A broken GPU is enough by itself.
    """
    full = {Fault.DEVICE: threshold}
    return sum(full.get(each.fault, 1.0) * math.exp2(-each.age_s / half_life_s) for each in charges)


def hosts_with(charge: Charge, hosts: Mapping[str, HostCharges], since: float) -> set[str]:
    """Return the hosts that the same job has charged with the same error at `since` or later.

    That is a time of the coordinator's clock.
    """
    return {
        name
        for name, known in hosts.items()
        if any(known.at - each.age_s >= since and is_same_charge(each, charge) for each in known.charges)
    }


def is_same_charge(one: Charge, other: Charge) -> bool:
    """Whether two charges are for the same error of one job, which then is no fault of either host.

    Two jobs may well meet a bad host each: of a crash, often only the signal is known.
    """
    return one.job == other.job and one.fault is other.fault and is_same_error(one.error, other.error)
