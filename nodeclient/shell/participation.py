"""One process's part in a job: its agent, its session, its ports and its exit.

A nodeclient and the rendezvous of a torchrun have all of this in common. `node` carries the agent's effects out for
nodeclient's own workers, and `torchrun` for torchrun's. `AgentLoop` runs the pure agent in an event loop: it hands over
events one at a time, has the effects carried out, and keeps the agent's timer.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from coordinatord.protocol.fields import DURATION_S_MAX
from coordinatord.protocol.messages import PROTOCOL_VERSION, Join, NodeOffer, Observed
from coordinatord.runtime import __version__
from coordinatord.runtime.flight_recorder import FlightRecorder, Subject
from coordinatord.runtime.tasks import in_thread
from coordinatord.runtime.timers import DeadlineTimer
from nodeclient.core.agent import Agent
from nodeclient.core.agent_settings import Settings
from nodeclient.core.effects import Effect, Exit
from nodeclient.core.events import Event, Tick
from nodeclient.host.addresses import host_id, routable_address
from nodeclient.host.ports import PortReservation
from nodeclient.shell.coordinator_connection import CoordinatorConnection
from nodeclient.shell.master_probe import ProbeListener

Result = TypeVar("Result")

ROUNDS_RESERVED = 2
"""How many rounds' ports are reserved at once: that of the present or next round, and the one before."""

RECORDED = Subject("nodeclient", ("nodeclient.core", "coordinatord.protocol", "signal"), code=())
"""The agent as the flight recorder sees it: all its attributes are state, of types in these packages."""


def crash_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the folder for crash files; None if the environment names no directory for state."""
    base, home = environ.get("XDG_STATE_HOME", ""), environ.get("HOME", "")
    if base.startswith("/"):
        return Path(base, "nodeclient", "crashes")
    return Path(home, ".local", "state", "nodeclient", "crashes") if home.startswith("/") else None


class AgentLoop:
    """Runs an agent in the running loop. An event that an effect causes waits until all effects are carried out."""

    def __init__(
        self, agent: Agent, carry_out: Callable[[Effect, Event], None], fail: Callable[[Exception], None]
    ) -> None:
        """Run `agent`; `carry_out` gets an effect and its event, and `fail` the error of a bug, which ends the node."""
        self._agent = agent
        self._carry_out = carry_out
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._timer = DeadlineTimer(self._loop, lambda now: self._handle(Tick(), now))
        self._events: deque[tuple[Event, float]] = deque()
        self._recorder = FlightRecorder(RECORDED, agent)

    def submit(self, event: Event) -> None:
        """Let the agent handle an event now, or right after the one that it is handling."""
        self._handle(event, self._loop.time())

    def _handle(self, event: Event, now: float) -> None:
        self._events.append((event, now))
        if len(self._events) > 1:
            return  # called from an effect; the loop below takes the event
        try:
            while self._events:
                event, now = self._events[0]
                for effect in self._handled(event, now):
                    self._carry_out(effect, event)
                self._events.popleft()
        except Exception as error:
            # Later events would wait for this one for ever: the node would do nothing, and its workers would go on.
            self._fail(error)
            raise
        self._timer.arm(self._agent.next_deadline())

    def _handled(self, event: Event, now: float) -> Sequence[Effect]:
        self._recorder.record(event, now)
        try:
            return self._agent.handle(event, now)
        except Exception as error:
            self._fail(self._recorder.explain(error, crash_folder(os.environ)))
            raise


class Participation:
    """One process's part in a job. Create it in the running loop. Raises `OSError` if no port is free."""

    def __init__(
        self,
        settings: Settings,
        join: Callable[..., Join],
        offer: Callable[..., NodeOffer],
        listener: ProbeListener,
        connect: Callable[..., CoordinatorConnection],
        carry_out: Callable[[Effect, Event], None],
        fail: Callable[[Exception], None],
        complete: Callable[[Observed], Observed] = lambda observed: observed,
    ) -> None:
        """Begin outside the job.

        `join` and `offer` make a `Join` and a `NodeOffer`, and lack only the fields that this class adds. `listener`
        answers probes of other nodes. `connect` makes a connection from `make_join`. `carry_out` gets an effect of the
        agent and its event, `fail` the error of a bug. `complete` adds the shell's part to a report of the agent.
        """
        loop = asyncio.get_running_loop()
        self._make_join = partial(join, version=PROTOCOL_VERSION, incarnation=time.time_ns(), release=__version__)
        self._offer = offer
        self._listener = listener
        self._complete = complete
        self._began_at = loop.time()
        self._ports = [PortReservation()]
        self.agent = Agent(settings, self._ports[0].port, self._began_at)
        self.events = AgentLoop(self.agent, carry_out, fail)
        self.session = connect(make_join=self._join)
        self.ended: asyncio.Future[Exit] = loop.create_future()
        """Done with the exit once the agent has decided on it."""

    def end(self, ending: Exit) -> None:
        """Record the exit; further calls do nothing."""
        if not self.ended.done():
            self.ended.set_result(ending)

    def renew_port(self) -> int:
        """Reserve a port for the next round, and return it.

        Each round has a new one, so that no process of an old round connects to it by mistake. The port of the round
        before stays reserved, because torchrun's store there may still be open for the workers of other nodes.
        """
        self._ports.append(PortReservation())
        if len(self._ports) > ROUNDS_RESERVED:
            self._ports.pop(0).close()
        return self._ports[-1].port

    def close(self) -> None:
        """Release the ports."""
        self._listener.close()
        for port in self._ports:
            port.close()

    def _join(self) -> Join:
        now = asyncio.get_running_loop().time()
        return self._make_join(
            offer=self._offer(
                host=socket.gethostname(),
                host_id=host_id(),
                routable_address=routable_address(),
                probe_port=self._listener.port,
            ),
            observed=self._complete(self.agent.observed(now, beat=True)),
            age_s=min(now - self._began_at, DURATION_S_MAX),
            awaits_own=self.agent.awaits_own(now),
        )


class NodeLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop, except that look-ups of names have threads of their own, so that none delays its end.

    A look-up may hang for half a minute. In asyncio's executor it would delay the end of the program, and the work that
    waits for a free thread there, such as ending processes.
    """

    async def getaddrinfo(self, host: Any, port: Any, **hints: Any) -> Any:
        """Look up a name, as `socket.getaddrinfo` does. Raises `OSError` and `UnicodeError`."""
        return await in_thread(partial(socket.getaddrinfo, host, port, **hints), "names")


def run_node(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a node to its end, as `asyncio.run` does, in this thread."""
    with asyncio.Runner(loop_factory=NodeLoop) as runner:
        return runner.run(main)
