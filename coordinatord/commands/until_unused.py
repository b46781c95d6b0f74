"""`coordinatord --until-unused`: an embedded coordinator, which outlives the node that started it while others need it.

That node holds the other end of standard input, which is closed at the node's end, however it ends. From then on the
coordinator ends by itself as soon as no node needs it any more.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from contextlib import suppress
from itertools import islice

from coordinatord.runtime.logs import fields
from coordinatord.server.driver import Driver

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 0.05
"""How often it is checked whether a node needs this coordinator: the node that started it waits for its end."""

SERVES_ON = "coordinatord serves on for "
"""The beginning of the line on standard output that names the jobs which go on without the node."""

JOBS_NAMED_MAX = 3
"""The most jobs that the line names: it is for a person, who has few."""


async def end_when_unused(driver: Driver, ended: asyncio.Future[None]) -> None:
    """Set `ended` once standard input has ended and no node needs the coordinator."""
    await _end_of_stdin()
    log.info("the node that brought this coordinator along has ended", extra=fields("starter_ended"))
    _print_live_jobs(driver)
    _release_stderr()
    while (until := driver.machine.needed_until()) > driver.now:  # noqa: ASYNC110 - sessions and deadlines have no event in common
        await asyncio.sleep(min(LOOK_AGAIN_S, until - driver.now))
    if not ended.done():
        ended.set_result(None)


async def _end_of_stdin() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    try:
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    except (OSError, ValueError):  # a file, or nothing at all: no process holds the other end
        return
    try:
        while await reader.read(1024):
            pass  # no input is expected
    finally:
        transport.close()


def _print_live_jobs(driver: Driver) -> None:
    live = driver.machine.cluster.live
    names = [run.job for run in islice(live, JOBS_NAMED_MAX)]
    if not names:
        return
    more = ", ..." if any(True for _ in live) else ""
    with suppress(OSError):  # the node may have gone without waiting for it
        print(f"{SERVES_ON}{', '.join(names)}{more}", flush=True)  # noqa: T201 - the node that started this program reads it


def _release_stderr() -> None:
    """Redirect standard error to nowhere: it is the node's terminal or pipe, whose reader must not wait for us.

    Standard output is the node's own pipe. Its end shows the node that nobody needs this coordinator any more.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stderr.fileno())
    os.close(nowhere)
