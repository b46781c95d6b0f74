"""Writes values of a job's settings in the syntax of their flags, to name them to users. Pure."""

from __future__ import annotations

from coordinatord.protocol.fields import RANKS_MAX
from coordinatord.protocol.messages import JobSpec

_UNITS = (("h", 3_600), ("min", 60), ("s", 1))
"""The units of the window in `--max-restarts 3/6h`, each with its seconds."""


def hang_timeout(spec: JobSpec) -> str:
    """Return the longest time without a step, in the syntax of `--hang-timeout`, or `not given`."""
    if spec.hang_timeout_s is None:
        return "not given"
    return f"{spec.hang_timeout_s:g}" if spec.hang_timeout_s else "off"


def drain_laggards(spec: JobSpec) -> str:
    """Return the slowdown from which a node is drained, in the syntax of `--drain-laggards`, or `not given`."""
    return f"{spec.drain_laggards:g}" if spec.drain_laggards else "not given"


def nnodes(spec: JobSpec) -> str:
    """Return the range of nodes, in the syntax of `--nnodes`."""
    if spec.nodes_min == spec.nodes_max:
        return str(spec.nodes_min)
    if spec.nodes_max == RANKS_MAX:
        return f"{spec.nodes_min}:"
    return f"{spec.nodes_min}:{spec.nodes_max}"


def restarts(spec: JobSpec) -> str:
    """Return the budget as its flag has it: `3`, or `3/6h`."""
    window_s = spec.restart_window_s
    if window_s is None:
        return str(spec.max_restarts)
    unit, length = next((unit, length) for unit, length in _UNITS if window_s % length == 0 or unit == "s")
    return f"{spec.max_restarts}/{window_s / length:g}{unit}"
