"""Which rows of the tables are taken while something runs: the real tables, watched."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from coordinatord.core.keeping import table as keeping
from coordinatord.core.keeping.known import KeptState
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import Member
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.transitions import table
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


KeepingRow = tuple[State, keeping.Condition]

KEEPING_ROWS: set[KeepingRow] = {(state, when) for state, rows in keeping.ROWS.items() for when, _ in rows}


@contextmanager
def keeping_rows_taken() -> Iterator[set[KeepingRow]]:
    """Collect the rows of `KEEPING_ROWS` that the keeping wings of runs take."""
    taken: set[KeepingRow] = set()

    def watched(state: State, when: keeping.Condition, act: keeping.Action) -> tuple[keeping.Condition, keeping.Action]:
        def act_watched(kept: KeptState, now: float) -> Iterable[Member]:
            taken.add((state, when))
            return act(kept, now)

        return when, act_watched

    acts = {state: tuple(watched(state, *row) for row in rows) for state, rows in keeping.ROWS.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keeping, "ROWS", acts)
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
