"""Why rounds end, as a label of few values: the conditions of the table, not the sentences for people."""

from __future__ import annotations

from coordinatord.core.queries import conditions
from coordinatord.core.state.run import State
from coordinatord.core.transitions.table import ROWS

WORKER_FAILED = conditions.NAMES[conditions.worker_failed]
NODE_LOST = conditions.NAMES[conditions.node_lost]

OTHER = "other"
"""Of a record that another version made."""

_CONDITIONS = dict.fromkeys(
    conditions.NAMES[row.when]
    for row in ROWS
    if row.source in {State.STARTING, State.RUNNING} and row.target is not State.RUNNING
)

REASONS = (*_CONDITIONS, OTHER)
"""Every value of the label."""


def known(condition: str) -> str:
    """Return the condition of a record, as far as this version knows it."""
    return condition if condition in _CONDITIONS else OTHER
