"""Which rows of the two tables are taken while something runs: the real tables, watched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from coordinatord.core import table
from coordinatord.core.run import Run
from coordinatord.wire.messages import Phase
from nodeclient.core import agent
from nodeclient.core.table import TABLE, Stimulus


@contextmanager
def run_rows_taken() -> Iterator[list[table.Row]]:
    """Collect the rows that coordinators take."""
    taken: list[table.Row] = []
    look = table.due_row

    def due_row(run: Run, now: float) -> table.Row | None:
        row = look(run, now)
        if row is not None:
            taken.append(row)
        return row

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "due_row", due_row)
        yield taken


@contextmanager
def node_rows_taken() -> Iterator[set[tuple[Phase, Stimulus]]]:
    """Collect the rows that agents take."""
    taken: set[tuple[Phase, Stimulus]] = set()

    class Watched(dict[Any, Any]):
        def __getitem__(self, key: Any) -> Any:
            row = super().__getitem__(key)
            taken.add(key)
            return row

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent, "TABLE", Watched(TABLE))
        yield taken
