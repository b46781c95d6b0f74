"""Which rows of the tables are taken while something runs: the real tables, watched."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from coordinatord.core.keeping import protection, write_progress
from coordinatord.core.keeping import table as keeping
from coordinatord.core.keeping.known import KeptState
from coordinatord.core.keeping.protection import Protection, StepState
from coordinatord.core.keeping.write_progress import WRITES, WriteEvent, WriteState
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import Member
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.transitions import table
from coordinatord.protocol.kept_state import KeptStep
from nodeclient.core import agent
from nodeclient.core.table import TABLE, Place, Stimulus


@contextmanager
def run_rows_taken() -> Iterator[set[table.Transition]]:
    """Collect the rows that coordinators take."""
    taken: set[table.Transition] = set()
    look = table.next_row

    def next_row(run: Run, now: float) -> tuple[table.Transition | None, float | None]:
        row, due = look(run, now)
        if row is not None:
            taken.add(row)
        return row, due

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "next_row", next_row)
        yield taken


KeepingRow = tuple[State, keeping.Condition] | tuple[WriteState, WriteEvent] | tuple[StepState, StepState]

KEEPING_ROWS: set[KeepingRow] = {
    *((state, when) for state, rows in keeping.ROWS.items() for when, _ in rows),
    *WRITES,
    *((row.source, row.target) for row in protection.ROWS),
}
"""The rows of the three tables of the keeping wing: what it does, the life of a write, and that of a protected step."""


@contextmanager
def keeping_rows_taken() -> Iterator[set[KeepingRow]]:
    """Collect the rows of `KEEPING_ROWS` that the keeping wings of runs take."""
    taken: set[KeepingRow] = set()

    def watched(state: State, when: keeping.Condition, act: keeping.Action) -> tuple[keeping.Condition, keeping.Action]:
        def act_watched(kept: KeptState, now: float) -> Iterable[Member]:
            taken.add((state, when))
            return act(kept, now)

        return when, act_watched

    class Writes(dict[Any, Any]):
        def __missing__(self, key: tuple[WriteState, WriteEvent]) -> Any:
            taken.add(key)
            return self.setdefault(key, WRITES[key])

    move = Protection._move

    def moved(self: Protection, at: KeptStep, target: StepState) -> None:
        taken.add((self.state_of(at), target))
        move(self, at, target)

    with pytest.MonkeyPatch.context() as patch:
        acts = {state: tuple(watched(state, *row) for row in rows) for state, rows in keeping.ROWS.items()}
        patch.setattr(keeping, "ROWS", acts)
        patch.setattr(write_progress, "WRITES", Writes())
        patch.setattr(Protection, "_move", moved)
        yield taken


@contextmanager
def node_rows_taken() -> Iterator[set[tuple[Place, Stimulus]]]:
    """Collect the rows that agents take."""
    taken: set[tuple[Place, Stimulus]] = set()

    class Watched(dict[Any, Any]):
        def __missing__(self, key: Any) -> Any:
            # Only the first look at a row comes here: to be watched costs a long simulation nothing.
            taken.add(key)
            return self.setdefault(key, TABLE[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent, "TABLE", Watched())
        yield taken
