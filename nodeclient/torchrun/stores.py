"""Serves a store for each round, and connects to it, so that every wait in it ends with the round.

Group rank 0's torchrun serves the store. torchrun's agents distribute ranks through it, and wait in it for each other
at the end. The workers are its clients too (`TORCHELASTIC_USE_AGENT_STORE`), under keys of their own.

An agent that waits in torch's own store for another host that is gone would wait for the timeout, and miss the next
round. So the agents get an `AgentStore`, which asks `membership` whether the round is over.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from torch.distributed import DistError, DistStoreError, PrefixStore, TCPStore  # type: ignore[attr-defined]

from coordinatord.protocol.errors import OperationalError
from nodeclient.torchrun.membership import Membership

Result = TypeVar("Result")

PREFIX = "coordinatord/agents"
"""The prefix that separates the keys of torchrun's agents from those of the workers."""

TERMINAL_STATE = "torchelastic/agent/terminal_state"
"""The key of the exit barrier, where torchrun's agents wait for each other once all of their workers have succeeded."""

ROLE_INFO = "torchelastic/role_info/"
"""The key, followed by its group rank, where each agent writes its number of workers."""

SERVE_WITHIN_S = 60.0
"""How long group rank 0 may take to serve the store after its node has answered a probe."""

ROUND_ENDS_WITHIN_S = 60.0
"""How long the end of the round may come after an error of its store: most likely the node that serves it is lost."""

CONNECT_WITHIN = timedelta(seconds=60)
"""How long torch may take to connect to a store that has just accepted a connection. It also looks up the name of the
store's address: 10 s if no name server answers, by the defaults of resolv.conf(5), and 30 s with three of them."""

TIMEOUT = timedelta(seconds=300)
"""The limit of the agents' waits for each other; torch's default."""

POLL_FIRST_S = 0.002
POLL_LAST_S = 0.5
"""The first and the longest interval of polling a key. torch's own wait cannot be interrupted from here."""

ACCEPT_WITHIN_S = 2.0
"""The timeout of a connection: a lost packet is retransmitted after 1 s."""


class RoundOverError(OperationalError):
    """The round was over before its store was usable, so there is no store to return."""


class AgentStoreError(OperationalError):
    """The store of a round cannot be served or reached."""


def serve(port: int) -> TCPStore:
    """Serve a store at a reserved port, on all interfaces. Raises `AgentStoreError`."""
    try:
        return TCPStore("localhost", port, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
    except DistError as error:
        raise AgentStoreError(f"cannot serve the store of the round at port {port}: {_first_line(error)}") from None


def connect(address: str, port: int, membership: Membership) -> TCPStore:
    """Connect to the store of the round, as soon as it is served. Raises `RoundOverError` and `AgentStoreError`."""
    deadline, pause_s = time.monotonic() + SERVE_WITHIN_S, POLL_FIRST_S
    # torch's own attempts cannot be interrupted when the round is over, and write pages about each that fails.
    while not _accepts(address, port):
        if membership.wait_until_over(pause_s):
            raise RoundOverError
        pause_s = min(2 * pause_s, POLL_LAST_S)
        if time.monotonic() >= deadline:
            raise AgentStoreError(
                f"cannot reach the store of the round at {address}:{port}: see --local-addr of its node"
            )
    try:
        store = TCPStore(address, port, is_master=False, timeout=CONNECT_WITHIN)
    except DistError as error:
        if membership.wait_until_over(ROUND_ENDS_WITHIN_S):
            raise RoundOverError from None
        raise AgentStoreError(f"cannot connect to the store of the round: {_first_line(error)}") from None
    store.set_timeout(TIMEOUT)
    return store


def _accepts(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=ACCEPT_WITHIN_S).close()
    except OSError:
        return False
    return True


def _first_line(error: DistError) -> str:
    return str(error).partition("\n")[0]


class AgentStore(PrefixStore):
    """The store of a round for torchrun's agent: a wait in it ends with the round.

    If the agent enters the exit barrier, its workers have succeeded; the coordinator then decides how the round ends.

    Where torchrun's agent waits for the others' numbers of workers, it cannot be interrupted. So if another agent dies
    before it has written its number, `get` returns a plausible one, and the agent soon learns that the round is over.
    """

    def __init__(self, store: TCPStore, membership: Membership, rank: int, nodes: int) -> None:
        super().__init__(PREFIX, store)
        self._membership = membership
        self._rank = rank
        self._nodes = nodes
        self._own: dict[str, Any] = {}
        """What this agent has written under `ROLE_INFO`, such as its number of workers."""

    def set(self, key: str, value: str) -> None:
        """Set a value; an error is ignored if the round is over or then ends."""
        if key.startswith(ROLE_INFO):
            self._own = json.loads(value)
        self._unless_over(partial(super().set, key, value), None)

    def get(self, key: str) -> bytes:
        """Return a value as soon as it exists; once the round is over, return a plausible one."""
        self._wait_for([key])
        goes_on = not self._membership.wait_until_over(0)
        return (goes_on and self._unless_over(partial(super().get, key), b"")) or self._plausible_value(key)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Return several values, each as `get` does."""
        return [self.get(key) for key in keys]

    def add(self, key: str, value: int) -> int:
        """Add to a number. In the exit barrier this means that all workers of the agent have succeeded."""
        if key.startswith(TERMINAL_STATE):
            self._membership.on_succeeded()
        return self._unless_over(partial(super().add, key, value), 0)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until the keys exist or the round is over. Raises `DistStoreError` after the store's timeout."""
        del timeout  # torchrun's agent sets the store's own instead
        self._wait_for(list(keys))

    def _wait_for(self, keys: list[str]) -> None:
        timeout = self.timeout  # type: ignore[attr-defined]  # torch's stubs do not know it
        deadline, pause_s = time.monotonic() + timeout.total_seconds(), POLL_FIRST_S
        while not self._membership.wait_until_over(pause_s) and not self._unless_over(partial(self.check, keys), True):
            if time.monotonic() >= deadline:
                raise DistStoreError(f"no value of {', '.join(keys)} within {timeout}")
            pause_s = min(2 * pause_s, POLL_LAST_S)

    def _unless_over(self, operation: Callable[[], Result], otherwise: Result) -> Result:
        """Return the result of an operation of the store; return `otherwise` if it fails and the round then ends."""
        try:
            return operation()
        except DistError:
            if self._membership.wait_until_over(ROUND_ENDS_WITHIN_S):
                return otherwise
            raise

    def _plausible_value(self, key: str) -> bytes:
        """Return a value that torchrun's agent accepts, as if all agents had as many workers as this one."""
        workers = self._own["local_world_size"]
        if key.startswith(ROLE_INFO):
            return json.dumps(self._own | {"rank": int(key.removeprefix(ROLE_INFO))}).encode()
        # The agent's first rank and the number of ranks: in the world, and within the role.
        first, size = self._rank * workers, self._nodes * workers
        return json.dumps([first, size, first, size]).encode()
