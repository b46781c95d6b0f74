"""All mutants, as the texts beside this module list them.

They are mistakes that could have been made: a condition left out, a bound off by one, one of two places forgotten. An
entry of a text is a name with what the mistake breaks, the place (`@`), the pattern (`-`), and the source that replaces
it (`+`)::

    stop-sent-late: another goal is only sent with the answer to the next heartbeat
    @ coordinatord.core.rounds.queries.desired_state:message_to in standby_world
    - sent is None or sent.goal is not goal
    + sent is None

`mutant` says what each is. The histories (`in`) are those of `small_world` by default; `#` begins a comment.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.sim.mutants.mutant import Mutant


def read(text: str) -> Iterator[Mutant]:
    """Yield the mutants of a text. Raises `ValueError` where an entry has no name or no place."""
    for entry in text.split("\n\n"):
        lines = [line for line in entry.splitlines() if not line.startswith("#")]
        if not lines:
            continue
        old, new, places = ("\n".join(line[2:] for line in lines if line[0] == sign) for sign in "-+@")
        name, breaks = " ".join(line.strip() for line in lines if line[0] not in "-+@").split(": ", 1)
        where, _, plays = places.partition(" in ")
        module, place = where.split(":")
        yield Mutant(name, breaks, module, place, old, new, plays or "small_world")


MUTANTS = tuple(
    mutant for path in sorted(Path(__file__).parent.glob("*.txt")) for mutant in read(path.read_text(encoding="utf-8"))
)
