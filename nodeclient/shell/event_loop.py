"""The event loop of a node, whose end no name server delays."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

from coordinatord.runtime.tasks import in_thread

Result = TypeVar("Result")


class NodeLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop, except that look-ups of names have threads of their own.

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
