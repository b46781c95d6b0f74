"""Which rows of the two tables are taken while something runs: the real tables, watched."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

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
