"""A rendezvous backend for torchrun: `torchrun --rdzv-backend=coordinatord --rdzv-endpoint=HOST[:PORT] ...`.

Every torchrun process is a node like any other: the pure `nodeclient.core` decides for it, and all its workers
together count as one, which torchrun itself starts and ends. `parameters` parses torchrun's parameters, and replaces
our flags in log lines by torchrun's. `membership` has the shell of the agent, which runs in a thread of its own.
`stores` serves each round's store, and torchrun's agent calls `handler`.

Every torchrun on a host with this package loads this file, even with other backends, and while torch's own rendezvous
package is still being imported. So it imports nothing before the backend is chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters


def backend() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """Return the factory of handlers: the entry point `coordinatord` in `torchrun.handlers`."""
    return _create_handler


def _create_handler(parameters: RendezvousParameters) -> RendezvousHandler:
    """Make a handler. Raises `ValueError` for wrong parameters."""
    from nodeclient.torchrun.handler import CoordinatordHandler  # noqa: PLC0415 - see above
    from nodeclient.torchrun.parameters import read  # noqa: PLC0415

    return CoordinatordHandler(read(parameters))
