"""Faults that befall jobs for weeks, drawn from what operators of clusters have published; `policy` plays them.

| source | what is taken from it |
|---|---|
| Kokolis et al., arXiv 2410.21680 | 6.5 faults in 1,000 days of a host |
| Llama 3, arXiv 2407.21783, table 5 | the kinds of 419 unplanned ends in 54 days |
| Lablup, arXiv 2605.09370 | of 63 hosts, three cause over half of the exclusions; 3 runs a day; 1 retry in 3 succeeds |
| Delta, arXiv 2503.11901 | 5 % of spares are enough |
| Acme, arXiv 2403.07648 | causes of the ends of 880,740 jobs, but no ids of hosts: so hosts are drawn |
| pytorch/ci-infra, pull request 1058 | one host with a lost GPU takes a job every few minutes |

Nobody has published which host failed when, so times and hosts are drawn. Rates of the other families are assumed.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

HOUR_S, DAY_S = 3_600.0, 86_400.0

TRACEBACK = ('File "train.py", line 80, in <module>', 'File "train.py", line {line}, in step')


class Kind(Enum):
    """What happens to a host, or to a worker on it."""

    DEVICE = "device"
    CRASH = "crash"
    DISK = "disk"
    NETWORK = "network"
    SCRIPT = "script"
    LOST = "lost"
    """The host goes with its connection open, and comes back later."""
    TAKEN = "taken"
    """A scheduler takes the host away, and gives it back later."""


TOLD: Mapping[Kind, Mapping[str, Any]] = {
    Kind.DEVICE: {"error": "torch.AcceleratorError: CUDA error: unspecified launch failure", "xids": (79,)},
    Kind.CRASH: {"exit_code": -11},
    Kind.DISK: {"error": "OSError: [Errno 28] No space left on device"},
    Kind.NETWORK: {"error": "torch.distributed.DistBackendError: NCCL error: remote process exited or network error"},
    Kind.SCRIPT: {"error": "RuntimeError: shapes do not match"},
    Kind.LOST: {},
    Kind.TAKEN: {"exit_code": -15},
}
"""What a node reports of the worker that failed."""

LLAMA = {
    Kind.DEVICE: 262,
    Kind.SCRIPT: 56,
    Kind.NETWORK: 42,
    Kind.TAKEN: 32,
    Kind.CRASH: 13,
    Kind.LOST: 11,
    Kind.DISK: 3,
}
"""DEVICE: GPU 148, HBM3 72, SRAM 19, GSP 17, thermal 6. SCRIPT: software bug 54, dependency 2. NETWORK: switch or cable
35, NIC 7. CRASH: NCCL watchdog 7, silent corruption 6. LOST: PSU, CPU, memory, chassis, IO board. DISK: SSD."""

VAGUE = {Kind.CRASH: 6, Kind.LOST: 3, Kind.DISK: 1}
"""Faults of a lemon of which a single one proves nothing; assumed."""


@dataclass(frozen=True)
class Fault:
    """One fault, at a time in seconds from the begin of the trace."""

    at: float
    kind: Kind
    hosts: tuple[int, ...]
    """Those that it befalls together. Empty: one of the round, by `draw`; so each policy meets as many faults."""
    draw: float
    """A number from 0 to 1."""
    of_lemon: bool = False
    of_script: bool = False
    """Whether the script is at fault, so that it may befall lemons as well as any other host."""


@dataclass(frozen=True)
class Family:
    """How the traces of one family are drawn; rates are per day, of the whole job unless it says otherwise."""

    name: str
    hosts: int = 63
    size: int = 60
    """The most hosts of a round: the others are spares."""
    least: int = 48
    per_host: float = 0.0065
    lemons: int = 0
    per_lemon: float = 0.0
    lemon_kinds: Mapping[Kind, int] = field(default_factory=lambda: VAGUE)
    bursts: float = 0.0
    """How often a switch fails, with six hosts."""
    poison: float = 0.0
    """How often the script crashes, on any host."""
    taken: float = 0.0
    alarms: float = 0.0
    """How often a good host is lost or named, though it is not to blame."""
    bug_at_s: float | None = None
    """The training after which each round fails with an error of the script, until a person mends it."""
    keeps_state: bool = False
    """Whether no step is lost; else those since the last checkpoint are."""


FAMILIES = (
    Family("independent faults"),
    Family("lemons (Lablup)", per_host=0.015, lemons=3, per_lemon=0.37),
    Family("lemons with bad GPUs", per_host=0.015, lemons=3, per_lemon=0.37, lemon_kinds={Kind.DEVICE: 1}),
    Family("lemons, state kept", per_host=0.015, lemons=3, per_lemon=0.37, keeps_state=True),
    Family("lemon that cannot be spared", hosts=16, size=16, least=16, lemons=1, per_lemon=1.0),
    Family("black hole", hosts=17, size=16, least=12, lemons=1, per_lemon=140.0, lemon_kinds={Kind.CRASH: 1}),
    Family("bursts", bursts=0.5),
    Family("bug at the start", bug_at_s=0.0),
    Family("bug after a day", bug_at_s=DAY_S + HOUR_S / 2),
    Family("poison script", hosts=64, size=64, per_host=0.0, poison=4.0),
    Family("preemption", taken=6.0),
    Family("false alarms", alarms=1.0),
)


def draw_trace(family: Family, days: float, seed: int) -> list[Fault]:
    """Draw the faults of a job of so many days, in order; the same seed draws the same ones."""
    chance = random.Random(f"{family.name} {seed}")  # noqa: S311 - repeatable on purpose
    faults: list[Fault] = []

    def draw(rate: float, kinds: Mapping[Kind, int], hosts: Sequence[int] = (), count: int = 0, **fault: bool) -> None:
        for at in _times(chance, rate, days):
            (kind,) = chance.choices(list(kinds), list(kinds.values()))
            faults.append(Fault(at, kind, tuple(chance.sample(hosts, count)), chance.random(), **fault))

    draw(family.per_host * family.size, LLAMA)
    draw(family.per_lemon * family.lemons, family.lemon_kinds, range(family.lemons), 1, of_lemon=True)
    draw(family.bursts, {Kind.LOST: 1}, range(family.hosts), 6)
    draw(family.poison, {Kind.CRASH: 1}, of_script=True)
    draw(family.taken, {Kind.TAKEN: 1})
    draw(family.alarms, VAGUE)
    return sorted(faults, key=lambda fault: fault.at)


def _times(chance: random.Random, rate: float, days: float) -> Iterator[float]:
    at = 0.0
    while rate and (at := at + chance.expovariate(rate)) < days:
        yield at * DAY_S
