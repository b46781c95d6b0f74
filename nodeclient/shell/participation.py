"""One process's part in a job: its agent, its session, its ports and its end, and what it says about itself.

Its users carry the effects out: `node` for nodeclient's own workers, `torchrun` for torchrun's.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Sequence

from coordinatord.protocol.fields import DURATION_S_MAX
from coordinatord.protocol.kept_state import Keeper
from coordinatord.protocol.messages import PROTOCOL_VERSION, JobSpec, Join, NodeOffer, Observed
from coordinatord.runtime import __version__
from nodeclient.config.join_config import command_digest
from nodeclient.core.agent import Agent
from nodeclient.core.agent_settings import Settings
from nodeclient.core.effects import Effect, Exit
from nodeclient.core.events import Event
from nodeclient.host.addresses import host_id, routable_address
from nodeclient.host.ports import PortReservation
from nodeclient.shell.agent_loop import AgentLoop
from nodeclient.shell.coordinator_connection import CoordinatorConnection
from nodeclient.shell.master_probe import ProbeListener


class Introduction:
    """The fields that each `Join` of a process shares, and the answer to nodes that look for this one.

    Must be made in the running loop. Raises `OSError` if there is no port.
    """

    def __init__(
        self,
        job: str,
        node: str,
        spec: JobSpec,
        offer: Callable[..., NodeOffer],
        address: str,
        *,
        command: Sequence[str] = (),
        keeper: Keeper | None = None,
    ) -> None:
        """Begin now, and answer at an `address` of this host; at all of them if it is empty.

        `offer` takes the fields that describe the host, which may change, and knows all others. `command` starts the
        workers, if it is known. `keeper` is how other nodes get what this node keeps, if it keeps anything.
        """
        self._job = job
        self._node = node
        self._spec = spec
        self._offer = offer
        self._command = command_digest(command)
        self._keeper = keeper
        self._incarnation = time.time_ns()
        self._began_at = asyncio.get_running_loop().time()
        self._listener = ProbeListener(node, address)

    def join(self, observed: Observed, now: float, *, awaits_own: bool) -> Join:
        """Return the first message of a session that begins at `now`; see `Join.awaits_own`."""
        return Join(
            version=PROTOCOL_VERSION,
            job=self._job,
            node=self._node,
            incarnation=self._incarnation,
            spec=self._spec,
            offer=self._offer(
                host=socket.gethostname(),
                host_id=host_id(),
                routable_address=routable_address(),
                probe_port=self._listener.port,
            ),
            observed=observed,
            release=__version__,
            age_s=min(now - self._began_at, DURATION_S_MAX),
            command=self._command,
            keeper=self._keeper,
            awaits_own=awaits_own,
        )

    def close(self) -> None:
        """Answer other nodes no longer."""
        self._listener.close()


class Participation:
    """One process's part in a job. Must be made in the running loop. Raises `OSError` if no port is free."""

    def __init__(
        self,
        settings: Settings,
        introduction: Introduction,
        connect: Callable[..., CoordinatorConnection],
        carry_out: Callable[[Effect, Event], None],
        fail: Callable[[Exception], None],
        complete: Callable[[Observed], Observed] = lambda observed: observed,
    ) -> None:
        """Begin outside the job.

        `connect` makes a connection from `make_join`. `carry_out` takes an effect of the agent and its event, `fail`
        the error of a bug. `complete` adds to the agent's report what the agent does not know.
        """
        self._introduction = introduction
        self._complete = complete
        self._loop = asyncio.get_running_loop()
        self._port = self._port_before = PortReservation()
        self.agent = Agent(settings, self._port.port, self._loop.time())
        self.events = AgentLoop(self.agent, carry_out, fail)
        self.session = connect(make_join=self._join)
        self.ended: asyncio.Future[Exit] = self._loop.create_future()
        """Ends as the agent's part in the job does."""

    def end(self, ending: Exit) -> None:
        """End the part in the job; further calls do nothing."""
        if not self.ended.done():
            self.ended.set_result(ending)

    def renew_port(self) -> int:
        """Reserve a port for the next round, and return it.

        Each round has a fresh one, so that nothing of an old round can connect to the new one by mistake. The port of
        the round before stays reserved: torchrun's store there may still be open, for the workers of other nodes.
        """
        self._port_before.close()
        self._port_before, self._port = self._port, PortReservation()
        return self._port.port

    def close(self) -> None:
        """Release the ports."""
        self._introduction.close()
        self._port.close()
        self._port_before.close()

    def _join(self) -> Join:
        now = self._loop.time()
        observed = self._complete(self.agent.observed(now, beat=True))
        return self._introduction.join(observed, now, awaits_own=self.agent.awaits_own(now))
