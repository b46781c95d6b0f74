"""Rendezvous handlers within the test's own process, each with a thread that stands for torchrun's agent."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
from torch.distributed.elastic.utils import store as store_util

from nodeclient.torchrun.stores import TERMINAL_STATE
from tests.support.programs import TIMEOUT_S, wait_until

BARRIER_S = 300
"""How long torchrun's agents wait in their exit barrier."""


class Agent:
    """What torchrun's agent does with its handler."""

    def __init__(self, handler: RendezvousHandler) -> None:
        self.handler = handler
        self.info: RendezvousInfo | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="agent")

    def rendezvous(self, least: int = 1) -> Future[RendezvousInfo]:
        """Begin to wait for the next round of so many workers at least."""
        return self._thread.submit(self._rendezvous, least)

    def finish(self) -> Future[None]:
        """Do as the agent does whose workers have all succeeded: enter the exit barrier, then shut down."""
        return self._thread.submit(self._finish)

    def await_call(self) -> None:
        """Wait until the agent would see that it should ask for another round."""
        wait_until("num_nodes_waiting", lambda: self.handler.num_nodes_waiting() == 1)

    def run(self, call: Any, *arguments: Any) -> Future[Any]:
        """Do something in the agent's thread."""
        return self._thread.submit(call, *arguments)

    def close(self) -> None:
        """Shut down, and end the thread."""
        self.handler.shutdown()
        self._thread.shutdown()

    def drop(self) -> None:
        """Forget the handler, as a notebook does that goes on after a signal."""
        self._thread.shutdown()
        del self.handler, self.info

    def _rendezvous(self, least: int) -> RendezvousInfo:
        info = self.handler.next_rendezvous()
        while info.world_size < least:  # on a busy machine a round may form before all have come
            self.await_call()
            info = self.handler.next_rendezvous()
        self.info = info
        return info

    def _finish(self) -> None:
        assert self.info is not None
        store_util.barrier(self.info.store, self.info.world_size, TERMINAL_STATE, BARRIER_S)
        self.handler.shutdown()


class Job:
    """The handlers of one job."""

    def __init__(self, endpoint: str, name: str) -> None:
        self.endpoint = endpoint
        self.name = name
        self.agents: list[Agent] = []

    def agent(self, nnodes: str = "1:4", *, local_addr: str | None = None, **conf: Any) -> Agent:
        """Make an agent with a handler, as torchrun makes it."""
        least, _, most = nnodes.partition(":")
        parameters = RendezvousParameters(
            "coordinatord", self.endpoint, self.name, int(least), int(most or least), local_addr, timeout=900, **conf
        )
        agent = Agent(get_rendezvous_handler(parameters))
        self.agents.append(agent)
        return agent

    def close(self) -> None:
        """Shut all of them down."""
        for agent in self.agents:
            agent.close()


def meet(*agents: Agent) -> list[RendezvousInfo]:
    """Have all agents ask for a round until they are in one together, and return each one's result."""
    return [answer.result(TIMEOUT_S) for answer in [agent.rendezvous(len(agents)) for agent in agents]]


def ranks(*agents: Agent) -> list[tuple[int, int]]:
    """Have all agents ask for a round, and return the rank of each, and of how many."""
    return [(info.rank, info.world_size) for info in meet(*agents)]


def master(info: RendezvousInfo) -> tuple[str, int]:
    """Return where the workers of a round meet."""
    where = info.bootstrap_store_info
    assert where is not None
    return where.master_addr, where.master_port
