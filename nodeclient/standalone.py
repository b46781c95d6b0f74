"""`--standalone`: a coordinator of this node's own, on a port that the kernel chooses, which ends with the node."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nodeclient.config import Endpoint, JoinConfig
from nodeclient.spawn import die_with_parent

START_WITHIN_S = 30.0
"""It takes a quarter of a second; an overloaded host gets a hundred times that."""

PATIENCE_S = 5.0
"""A coordinator of one's own that does not answer for a lease is dead, and nobody starts it again."""

FLAGS = (
    *("--host", "127.0.0.1", "--port", "0", "--log-level", "warning"),
    *("--ephemeral", "--outage-grace", f"{PATIENCE_S:g}"),
)

_LISTENING = re.compile(rb"coordinatord listening on http://127\.0\.0\.1:(\d+)")


class StandaloneError(RuntimeError):
    """The coordinator of this node's own did not start; it has said why itself."""


@asynccontextmanager
async def own_coordinator(config: JoinConfig) -> AsyncIterator[tuple[JoinConfig, int]]:
    """Start a coordinator; yield what to join it with, and its process id. It lives as long as the context.

    Raises `StandaloneError`.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "coordinatord", *FLAGS),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
        preexec_fn=die_with_parent(),
    )
    try:
        coordinators = (await _endpoint(process),)
        yield (
            dataclasses.replace(config, coordinators=coordinators, join_timeout_s=PATIENCE_S),
            process.pid,
        )
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


async def _endpoint(process: asyncio.subprocess.Process) -> Endpoint:
    assert process.stdout is not None  # noqa: S101 - it was started with stdout=PIPE
    try:
        async with asyncio.timeout(START_WITHIN_S):
            line = await process.stdout.readline()
    except TimeoutError:
        line = b""
    match = _LISTENING.match(line)
    if match is None:
        raise StandaloneError("the coordinator for --standalone did not start")
    return Endpoint("127.0.0.1", int(match[1]))
