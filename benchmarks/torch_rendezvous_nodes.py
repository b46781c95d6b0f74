"""torch's `DynamicRendezvousHandler` as N nodes: the program that `torch_rendezvous` starts.

With `serve` it is the TCPStore that they need. Otherwise its argument says which nodes it plays, each in a thread with
a connection of its own; for each line on standard input all of them take part in a round, and it prints one JSON
object.
"""

import json
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public all the same
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend, Token, create_handler

BASE64_GROWTH = 4 / 3
"""The growth of the state, as it is sent."""

JOIN_S = 600
"""torch's own default; the program that starts this one has less patience."""


class Counted(RendezvousBackend):
    """A backend that counts its calls."""

    def __init__(self, backend: RendezvousBackend) -> None:
        self._backend = backend
        self.calls = 0
        self.bytes = 0

    @property
    def name(self) -> str:
        """Return the name of the counted backend."""
        return self._backend.name

    def get_state(self) -> tuple[bytes, Token] | None:
        """Read the state, whole."""
        found = self._backend.get_state()
        self._count(found[0] if found else b"")
        return found

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Write it, if it is still at `token`, and read it."""
        found = self._backend.set_state(state, token)
        self.bytes += len(token) if isinstance(token, bytes) else 0  # it is the old state, already encoded
        self._count(state + (found[0] if found else b""))
        return found

    def _count(self, state: bytes) -> None:
        self.calls += 1
        self.bytes += int(len(state) * BASE64_GROWTH)


class Node:
    """One node."""

    def __init__(self, place: dict[str, Any], index: int) -> None:
        """Connect, which is not timed: torch looks up the other end's name, which takes seconds without DNS."""
        parameters = RendezvousParameters(
            backend="c10d",
            endpoint=place["endpoint"],
            run_id="rendezvous",
            min_nodes=max(1, place["size"] - 1),
            max_nodes=place["size"],
            local_addr=f"node-{index:05}",
            is_host=False,
            join_timeout=JOIN_S,
            last_call_timeout=place["last_call_s"],
        )
        backend, store = create_backend(parameters)
        self.backend = Counted(backend)
        self.handler = create_handler(store, self.backend, parameters)

    def take_part(self) -> dict[str, object]:
        """Join the next round; return this node's rank, when it had it, and what that took."""
        calls, size = self.backend.calls, self.backend.bytes
        rank = self.handler.next_rendezvous().rank
        at = time.monotonic()
        return {"rank": rank, "at": at, "calls": self.backend.calls - calls, "bytes": self.backend.bytes - size}


def play(place: dict[str, Any]) -> None:
    """Play the nodes until standard input ends."""
    with ThreadPoolExecutor(place["count"]) as threads:
        nodes = list(threads.map(partial(Node, place), range(place["first"], place["first"] + place["count"])))
        _write({"event": "ready"})
        for _ in sys.stdin:
            try:
                _write({"nodes": list(threads.map(Node.take_part, nodes))})
            except Exception as error:  # noqa: BLE001 - whoever started this says it
                _write({"error": f"{type(error).__name__}: {error}"})


def serve() -> None:
    """Serve the TCPStore until SIGTERM."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # also in the store's own threads
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    print(f"store listening on c10d://127.0.0.1:{store.port}", flush=True)
    signal.sigwait({signal.SIGTERM})


def _write(facts: dict[str, object]) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        play(json.loads(sys.argv[1]))
