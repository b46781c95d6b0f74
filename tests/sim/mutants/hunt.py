"""Plays seeds against one mutant until the simulation breaks, and reports what broke.

Not everything that ends a history is a discovery. An invariant that is broken is, and so is an error that the daemon or
the node would have ended with, or a machine that turns round on the spot. An error within the simulation is none: its
invariants would have been fooled, only not by what they look at.
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
    """It never came to the end of a moment."""
    CHECKER = "checker"
    """An error within the simulation, which is no discovery."""


@dataclass(frozen=True, slots=True)
class Fate:
    """The fate of one mutant."""

    name: str
    seeds: int
    """The number that was played until then."""
    cpu_s: float
    death: Death | None = None
    seed: int = 0
    """The one that it died of."""
    what: str = ""
    """What was seen, for a person."""

    @property
    def killed(self) -> bool:
        """Whether the simulation found it."""
        return self.death not in {None, Death.CHECKER}


class SpinsError(BaseException):
    """A history takes too long. Not an `Exception`, lest it is taken for one of the history's."""


def hunt(name: str, mutant: Mutant | None, first: int, most: int) -> Fate:
    """Plant a mutant, or none, into this process, which must be new, and play up to `most` seeds.

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
        death, what = None, ""
        try:
            play_one(seed)
        except SpinsError:
            death, what = Death.SPINS, f"one history takes more than {SPINS_AFTER_S:g} s"
        except Exception as error:  # noqa: BLE001 - whatever breaks a history is what is looked for
            death, what = _judge(error)
        if death is not None:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            return Fate(name, played, time.process_time() - began, death, seed, what)
    signal.setitimer(signal.ITIMER_PROF, 0.0)
    return Fate(name, most, time.process_time() - began)


def _give_up(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise SpinsError


def _judge(error: Exception) -> tuple[Death, str]:
    """Return what kind of discovery an error is, and its text."""
    what = str(error).splitlines()[-1].partition(": ")[2]  # after "seed 7: "
    cause = error.__cause__
    if cause is None:
        return Death.INVARIANT, what
    innermost = traceback.extract_tb(cause.__traceback__)[-1]
    place = Path(innermost.filename).relative_to(ROOT)
    ours = place.parts[0] in {"coordinatord", "nodeclient"}
    return Death.ERROR if ours else Death.CHECKER, f"{what} ({place.name}, {innermost.name})"
