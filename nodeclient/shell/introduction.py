"""What a node sends about itself in each `Join` of one process: its identity, its offer and its age."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from typing import Protocol

from coordinatord.protocol.fields import DURATION_S_MAX
from coordinatord.protocol.kept_state import Keeper
from coordinatord.protocol.messages import PROTOCOL_VERSION, JobSpec, Join, NodeOffer, Observed
from coordinatord.runtime import __version__
from nodeclient.config.join_config import JoinConfig, command_digest
from nodeclient.host.addresses import host_id, routable_address


class NodeSettings(Protocol):
    """The settings that every node has, whichever program starts its workers."""

    @property
    def job(self) -> str:
        """The job id."""

    @property
    def node(self) -> str:
        """The node id."""

    @property
    def spec(self) -> JobSpec:
        """What all nodes of the job have to agree on."""

    @property
    def advertise_address(self) -> str | None:
        """The address at which its user wants other nodes to reach it."""

    @property
    def join_timeout_s(self) -> float:
        """How long the node waits for a round."""


class Introduction:
    """What stays the same in each `Join` of a process."""

    def __init__(
        self,
        settings: NodeSettings,
        now: float,
        *,
        workers: int,
        role: str,
        probe_port: int,
        stop_timeout_s: float,
        topology: str = "",
        group_rank: int | None = None,
        command: Sequence[str] = (),
        log_dir: str = "",
        keeper: Keeper | None = None,
    ) -> None:
        """Begin at `now`, by the clock of the event loop.

        `command` starts the workers, if it is known. `keeper` is how other nodes get what this node keeps, if it keeps
        anything. The others are fields of `NodeOffer`.
        """
        self._settings = settings
        self._workers = workers
        self._role = role
        self._probe_port = probe_port
        self._stop_timeout_s = stop_timeout_s
        self._topology = topology
        self._group_rank = group_rank
        self._command = command_digest(command)
        self._log_dir = log_dir
        self._keeper = keeper
        self._incarnation = time.time_ns()
        self._began_at = now

    @classmethod
    def of_launcher(
        cls,
        config: JoinConfig,
        now: float,
        *,
        probe_port: int,
        stop_timeout_s: float,
        log_dir: str,
        keeper: Keeper | None,
    ) -> Introduction:
        """Return the introduction of a node that starts its workers itself."""
        return cls(
            config,
            now,
            workers=config.workers,
            role=config.role,
            probe_port=probe_port,
            stop_timeout_s=stop_timeout_s,
            topology=config.topology,
            group_rank=config.group_rank,
            command=config.command,
            log_dir=log_dir,
            keeper=keeper,
        )

    def join(self, observed: Observed, now: float, *, awaits_own: bool) -> Join:
        """Return the first message of a session that begins at `now`; see `Join.awaits_own`."""
        return Join(
            version=PROTOCOL_VERSION,
            job=self._settings.job,
            node=self._settings.node,
            incarnation=self._incarnation,
            spec=self._settings.spec,
            offer=self._offer(),
            observed=observed,
            release=__version__,
            age_s=min(now - self._began_at, DURATION_S_MAX),
            command=self._command,
            keeper=self._keeper,
            awaits_own=awaits_own,
        )

    def _offer(self) -> NodeOffer:
        return NodeOffer(
            host=socket.gethostname(),
            host_id=host_id(),
            workers=self._workers,
            role=self._role,
            topology=self._topology,
            group_rank=self._group_rank,
            advertise_address=self._settings.advertise_address,
            routable_address=routable_address(),
            probe_port=self._probe_port,
            join_timeout_s=self._settings.join_timeout_s,
            stop_timeout_s=self._stop_timeout_s,
            log_dir=self._log_dir,
        )
