"""What a node brings into a run."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from coordinatord.protocol.fields import LOG_MAX, WORKERS_MAX, Address, Count, Name, Port, Seconds
from coordinatord.protocol.schema import Strict, printable


class NodeOffer(Strict, frozen=True):
    """What one node brings into a run, fixed for the life of its process."""

    host: Address
    """The host's own name, for people and for the order of new nodes; never used to connect."""
    host_id: Name
    """Equal on two nodes exactly if they reach each other over loopback: the boot id and the network namespace."""
    workers: Annotated[int, Meta(ge=1, le=WORKERS_MAX)]
    """The size of its local worker group."""
    role: Name
    topology: Annotated[str, printable(128)]
    """Nodes with equal or neighbouring keys get neighbouring ranks; empty if unknown."""
    group_rank: Count | None
    """The group rank that its user asks for; granted as far as others do not ask for the same."""
    advertise_address: Address | None
    """The address that its user wants others to reach it at."""
    routable_address: Address | None
    """Its own guess at such an address, used only where the coordinator has seen none, or a proxy's."""
    probe_port: Port
    """The port at which it answers with its node id, so that others can find out whether an address leads to it."""
    join_timeout_s: Seconds
    """How long it is willing to wait for a round."""
    stop_timeout_s: Seconds
    """How long its workers get to end after SIGTERM at most, before SIGKILL."""
    log_dir: Annotated[str, printable(LOG_MAX)] = ""
    """The folder on its host with the logs of this job, in RUN/round_N/RANK below it; empty if it keeps none, or it is
    not known."""
