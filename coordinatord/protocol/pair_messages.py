"""The parts of messages about a preflight, which looks for bad hosts: the order to test two nodes, and its result.

Both nodes multiply matrices, and then add up a vector over the link between them, as workers do. `Desired` has the
order while the test is wanted, and `Observed` the last result.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from coordinatord.protocol.fields import Address, Counter, Name, Port, Seconds, Sentence
from coordinatord.protocol.schema import Strict

FIGURE_MAX = 1e12
"""The limit of a measured figure: a million times what one GPU computes in 2026."""

Figure = Annotated[float, Meta(ge=0, le=FIGURE_MAX)]


class PairOrder(Strict, frozen=True):
    """The order to run a test with another node, which has the same order with the other rank."""

    number: Counter
    """The number of the test, which the result repeats."""
    rank: Annotated[int, Meta(ge=0, le=1)]
    partner: Name
    address: Address
    """Where rank 0 listens."""
    port: Port
    """The port of rank 0: the one that it has reserved for MASTER_PORT."""
    within_s: Seconds
    """How long the test may take."""


class PairResult(Strict, frozen=True):
    """The measurements of one node in a test with another one."""

    number: Counter
    gflops: Figure | None
    """The speed of its own matrix product in GFLOP/s; None if it has computed none."""
    mb_s: Figure | None
    """The bandwidth of the sum over both nodes, in millions of bytes a second; None if no right sum came."""
    wrong: bool = False
    """Whether its own matrix product was not the right one."""
    text: Sentence = ""
    """Why a figure is missing."""
    gpu: Sentence = ""
    """The name of its first GPU; empty without one."""
