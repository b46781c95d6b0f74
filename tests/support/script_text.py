"""How a script is read and written: the words of `script` for records and messages, and its numbers."""

from __future__ import annotations

from coordinatord.core.values.records import (
    Record,
    RoundEnded,
    RoundFormed,
    RoundStarted,
    RoundStopped,
    RunEnded,
    TrainingBegan,
)
from coordinatord.protocol.messages import Desired
from tests.support.kept_state import kept_text


def record_text(record: Record) -> str:
    """Write a record with its facts and its reason."""
    kind = record.KIND
    facts = ""
    match record:
        case RoundFormed():
            facts = f" round {record.round} of {', '.join(ranks.node for ranks in record.nodes)}"
        case RoundEnded():
            facts = f" round {record.round}, {'charged' if record.charged else 'free'}"
        case RoundStarted() | TrainingBegan():
            facts = f" round {record.round}"
        case RoundStopped():
            facts = f" round {record.round}, {'planned' if record.planned else 'at once'}"
        case RunEnded():
            facts = f" {record.outcome.result} with exit code {record.outcome.exit_code:d}"
        case _:
            node = getattr(record, "node", "")
            facts = f" {node}" if node else ""
    return f"{kind}{f' {record.run}' if record.run else ''}{facts}: {record.reason}"


def desired_text(desired: Desired) -> tuple[str, str]:
    """Describe a desired state and its reason."""
    goal, reason = str(desired.goal), desired.reason
    if desired.assignment is not None:
        part = desired.assignment
        goal += f" as group rank {part.group_rank} of {part.group_world_size}, ranks from {part.first_rank} of"
        goal += f" {part.world_size}, master {part.master_address}:{part.master_port}"
        goal += f", restarts {part.restarts_used} of {part.max_restarts}"
    goal += kept_text(desired)
    if desired.outcome is not None:
        goal += f", {desired.outcome.result} with exit code {desired.outcome.exit_code:d}"
        reason = desired.outcome.summary
    goal += ", planned" if desired.planned else ""
    goal += "" if desired.wait_s is None else ", for a limited time"
    return f"{desired.run} round {desired.round}: {goal}", reason


def seconds_of(text: str) -> float:
    """Read a duration such as `12s`."""
    return float(text.removesuffix("s"))


def number_of(node: str) -> int:
    """Return the number in the name of a node."""
    return int("".join(letter for letter in node if letter.isdigit()) or 99)
