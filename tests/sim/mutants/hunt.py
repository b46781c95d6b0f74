"""Plays seeds against one mutant until the simulation breaks, and reports what broke.

Not everything that ends a history is a discovery. A broken invariant is one, and so is an error of the daemon or the
node, or a machine in an endless loop. An error within the simulation is none, since no invariant has found the mutant.
"""

from __future__ import annotations

import gc
import importlib
import signal
import time
import traceback
from dataclasses import dataclass
from enum import StrEnum
from itertools import count, islice
from pathlib import Path
from types import FrameType

from tests.sim.mutants import seeds
from tests.sim.mutants.mutant import ROOT, Mutant, plant

SPINS_AFTER_S = 15.0
"""The limit of CPU time for one history: a hundred times what it takes."""

GARBAGE = 200_000
"""Objects between two collections: a history makes many that live for a moment."""


class Death(StrEnum):
    """What a mutant died of."""

    INVARIANT = "invariant"
    ERROR = "error"
    """An error of the coordinator or the node itself: the program would have ended with it."""
    SPINS = "spins"
    """The simulated time stood still."""
    CHECKER = "checker"
    """An error within the simulation, which is no discovery."""


@dataclass(frozen=True, slots=True)
class Fate:
    """The fate of one mutant."""

    name: str
    seeds: int
    """The number of seeds that were played."""
    cpu_s: float
    death: Death | None = None
    seed: int = 0
    """The seed that killed it."""
    finding: str = ""
    """A description of the death."""

    @property
    def killed(self) -> bool:
        """Whether the simulation found it."""
        return self.death not in {None, Death.CHECKER}


class SpinsError(BaseException):
    """A history takes too long. It is no `Exception`, so that it is not taken for an error of the history."""


def hunt(name: str, mutant: Mutant | None, first: int, most: int) -> Fate:
    """Plant a mutant, or none, into this new process, and play up to `most` seeds.

    Against a mutant the likely seeds come first, and then, as for none, all from `first` upward.
    """
    if mutant is not None:
        plant(mutant)
    module, _, function = ("small_world" if mutant is None else mutant.plays).rpartition(".")
    histories = importlib.import_module(f"tests.sim.{module or 'history'}")  # now, so that it has the mistake
    play_one = getattr(histories, function)
    gc.set_threshold(GARBAGE)
    signal.signal(signal.SIGPROF, _give_up)
    began = time.process_time()
    order = count(first) if mutant is None else seeds.in_order(name, first)
    for played, seed in enumerate(islice(order, most), start=1):
        signal.setitimer(signal.ITIMER_PROF, SPINS_AFTER_S)
        death, finding = None, ""
        try:
            play_one(seed)
        except SpinsError:
            death, finding = Death.SPINS, f"one history takes more than {SPINS_AFTER_S:g} s"
        except Exception as error:  # noqa: BLE001 - whatever breaks a history is a result
            death, finding = _judge(error)
        if death is not None:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            return Fate(name, played, time.process_time() - began, death, seed, finding)
    signal.setitimer(signal.ITIMER_PROF, 0.0)
    return Fate(name, most, time.process_time() - began)


def _give_up(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise SpinsError


def _judge(error: Exception) -> tuple[Death, str]:
    """Return the kind of death that an error is, and its text."""
    finding = str(error).splitlines()[-1].partition(": ")[2]  # after "seed 7: "
    cause = error.__cause__
    if cause is None:
        return Death.INVARIANT, finding
    innermost = traceback.extract_tb(cause.__traceback__)[-1]
    place = Path(innermost.filename).relative_to(ROOT)
    ours = place.parts[0] in {"coordinatord", "nodeclient"}
    return Death.ERROR if ours else Death.CHECKER, f"{finding} ({place.name}, {innermost.name})"
