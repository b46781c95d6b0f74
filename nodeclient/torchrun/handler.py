"""The rendezvous handler, which torchrun's agent calls.

The agent calls `next_rendezvous` when it has no workers, `num_nodes_waiting` ten times a second while they run, and
`shutdown` when it ends by itself. After a signal it ends without a call; torch 2.5 to 2.7 then call `shutdown` as well
(pytorch/pytorch#117066, until #152525).
"""

from __future__ import annotations

import os
import sys
import weakref

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public all the same
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from coordinatord.protocol.exit_codes import ExitCode
from nodeclient.core.effects import Start
from nodeclient.torchrun.membership import EndedError, Membership
from nodeclient.torchrun.parameters import BACKEND, TorchrunConfig, logger, with_torchrun_names
from nodeclient.torchrun.stores import AgentStore, AgentStoreError, RoundOverError, connect, serve
from workerlib.contract.env import escape_for_locale

LEAVE_WITHIN_S = 6.0
"""How long to wait until the coordinator has recorded that the node leaves. The node gives up a silent session after
4 s."""

SUCCEED_WITHIN_S = 5.0
"""How long to wait for the coordinator's record of a success; it may be restarting."""

EXIT_WITHIN_S = 1.0
"""How long to wait after a signal: not long, because the coordinator counts a node as lost 1 s after its connection has
closed."""


class CoordinatordHandler(RendezvousHandler):
    """The rendezvous of one torchrun process."""

    def __init__(self, config: TorchrunConfig) -> None:
        self._config = config
        self._membership = Membership(config)
        # The finalizer also runs if the handler is dropped without a shutdown, as in a notebook after a signal.
        self._finalizer = weakref.finalize(self, _leave, self._membership)
        self._closed = False
        self._served: TCPStore | None = None
        """The store of the last round, if this process serves it."""

    def get_backend(self) -> str:
        """Return the name for `--rdzv-backend`."""
        return BACKEND

    def get_run_id(self) -> str:
        """Return the job id."""
        return self._config.job

    @property
    def use_agent_store(self) -> bool:
        """Whether the workers, including rank 0, are clients of the store that is served here."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for a round, and take part in it.

        An earlier round of this process is over: the coordinator has ended it, or a worker of this process has failed.

        Raises `RendezvousTimeoutError` if not enough nodes came in time, `RendezvousConnectionError` if the coordinator
        or group rank 0 is unreachable, and `RendezvousClosedError` if this node is not admitted. If the job succeeded
        without this node, which may be a spare, it ends the process with success, by `SystemExit`: torchrun's own
        `RendezvousGracefulExitError` ends in an AttributeError.
        """
        if self._closed:
            raise RendezvousClosedError(f"job {self._config.job}: this torchrun has left it")
        self._membership.begin()
        while True:
            try:
                return self._enter_round(self._membership.await_round())
            except RoundOverError:
                continue
            except AgentStoreError as error:
                self._membership.fail(str(error))
                raise RendezvousConnectionError(f"job {self._config.job}: {error}") from None
            except EndedError as ended:
                raise self._exception_for(ended) from None

    def num_nodes_waiting(self) -> int:
        """Return 1 if torchrun should ask for another round, whatever the reason, else 0. Never waits."""
        return int(self._membership.round_over)

    def is_closed(self) -> bool:
        """Whether there will be no further round for this process."""
        return self._closed or self._membership.ended

    def set_closed(self) -> None:
        """Refuse further rounds for this process. The other nodes are notified when it shuts down."""
        self._closed = True

    def shutdown(self) -> bool:
        """Leave the job, which continues for the others; further calls do nothing.

        Unless the workers of this process have succeeded, or torchrun got a signal, they have failed for good.
        """
        self._closed = True
        membership = self._membership
        if self._finalizer.detach() and membership.begun:
            signalled = isinstance(sys.exc_info()[1], SignalException)
            if succeeded := membership.succeeded:
                membership.wait_until_ended(SUCCEED_WITHIN_S)
            membership.leave(LEAVE_WITHIN_S, failed=not (succeeded or signalled))
            membership.end(EXIT_WITHIN_S)
        self._served = None
        return True

    def _enter_round(self, start: Start) -> RendezvousInfo:
        assignment = start.assignment
        self._served = None  # it has served the workers of the last round until now: these are all dead, on every node
        if assignment.group_rank == 0:
            self._served = serve(assignment.master_port)
        # torchrun's agent keeps the store that it gets, and the served one must end with the round. So on this host too
        # the agent gets a client.
        address = "localhost" if self._served else assignment.master_address
        store = connect(address, assignment.master_port, self._membership)
        if self._membership.wait_until_over(0):
            raise RoundOverError
        self._membership.on_started()
        os.environ.update(self._variables(start))
        place = f"group rank {assignment.group_rank} of {assignment.group_world_size}"
        store_at = f"store {assignment.master_address}:{assignment.master_port}"
        logger.info("job %s: round %d: %s, %s: %s", self._config.job, start.round, place, store_at, start.reason)
        agents = AgentStore(store, self._membership, assignment.group_rank, assignment.group_world_size)
        return RendezvousInfo(
            agents,
            assignment.group_rank,
            assignment.group_world_size,
            RendezvousStoreInfo(assignment.master_address, assignment.master_port),
        )

    def _variables(self, start: Start) -> dict[str, str]:
        """Return the variables of `workerlib.contract.env` that torchrun does not set; its workers inherit them."""
        variables = {
            "COORDINATORD_JOB": self._config.job,
            "COORDINATORD_RUN": start.run,
            "COORDINATORD_ROUND": str(start.round),
            "COORDINATORD_NODE": self._config.node,
            "COORDINATORD_REASON": start.reason,
        }
        return escape_for_locale(variables)

    def _exception_for(self, ended: EndedError) -> BaseException:
        text = f"job {self._config.job}: {with_torchrun_names(str(ended))}"
        match ended.exit_code:
            case ExitCode.OK:
                logger.warning("%s; this torchrun had no part in its last round, and ends", text)
                return SystemExit(0)
            case ExitCode.TEMPFAIL:
                return RendezvousTimeoutError(text)
            case ExitCode.UNAVAILABLE:
                return RendezvousConnectionError(text)
            case _:
                return RendezvousClosedError(text)


def _leave(membership: Membership) -> None:
    if membership.begun:
        membership.leave(EXIT_WITHIN_S, failed=False)
        membership.end(EXIT_WITHIN_S)
