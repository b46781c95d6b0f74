"""Delays the end of the daemon as long as nodes need it.

After SIGTERM it waits for runs that are ending, whose nodes need it until their last step is written. With
`--until-unused` a node has started it as its child, but other nodes may need it longer: standard input ends with that
node, and the coordinator ends once no other node needs it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from coordinatord.core.own_end import may_end_at, runs_to_await
from coordinatord.core.rounds.state.run import Run
from coordinatord.runtime.logs import fields
from coordinatord.runtime.systemd import SystemdNotifier, extension_of
from coordinatord.server.driver import Driver

log = logging.getLogger(__name__)

POLL_EVERY_S = 0.05
"""How often to check whether nodes still need this coordinator: the node that started it may wait for its end."""

CLOSE_MARGIN_S = 30.0
"""The time to request from systemd beyond the wait, for closing sessions and the store."""

SERVES_ON = "coordinatord serves on for "
"""The beginning of the line on standard output that names the jobs which go on without the node."""

JOBS_NAMED_MAX = 3
"""The most jobs that a line names: a person has few."""


def set_done(future: asyncio.Future[None]) -> None:
    """Set a future, unless it is done."""
    if not future.done():
        future.set_result(None)


async def end_when_unused(driver: Driver, ended: asyncio.Future[None]) -> None:
    """Set `ended` once standard input has ended and no node needs this coordinator."""
    await _end_of_stdin()
    log.info("the node that brought this coordinator along has ended", extra=fields("starter_ended"))
    _print_live_jobs(driver)
    _release_stderr()
    while (until := driver.machine.needed_until()) > driver.now:  # noqa: ASYNC110 - sessions and deadlines have no event in common
        await asyncio.sleep(min(POLL_EVERY_S, until - driver.now))
    set_done(ended)


async def end_after_ending_runs(driver: Driver, systemd: SystemdNotifier, ended: asyncio.Future[None]) -> None:
    """Set `ended` once no run is ending, or writing a step to the disk; the daemon was asked to end just now.

    systemd is asked to wait as long: its unit cannot know the stop timeouts of the nodes.
    """
    asked_at, is_logged = driver.now, False
    longest, runs = asked_at, driver.machine.registry.runs
    while (until := may_end_at(runs.values(), asked_at)) > driver.now:
        if until > longest:
            longest = until
            systemd.notify(extension_of(until - driver.now + CLOSE_MARGIN_S))
        if not is_logged and (ending := runs_to_await(runs.values())):
            is_logged = True
            text = (
                "waits up to %.0f s for nodes of %s, which end or write to the disk; a second signal ends it at once%s"
            )
            error = driver.machine.store_error
            unrecorded = "" if error is None else f"; nothing can be recorded meanwhile: {error}"
            log.info(text, until - driver.now, _named(ending), unrecorded, extra=fields("awaits_nodes"))
        await asyncio.sleep(min(POLL_EVERY_S, until - driver.now))
    set_done(ended)


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


def _named(runs: Sequence[Run]) -> str:
    more = ", ..." if len(runs) > JOBS_NAMED_MAX else ""
    return f"{', '.join(run.job for run in runs[:JOBS_NAMED_MAX])}{more}"


def _print_live_jobs(driver: Driver) -> None:
    live = list(driver.machine.cluster.live)
    if not live:
        return
    with suppress(OSError):  # the node may have gone without waiting for it
        print(f"{SERVES_ON}{_named(live)}", flush=True)  # noqa: T201 - the node that started this program reads it


def _release_stderr() -> None:
    """Redirect standard error to /dev/null, which is the node's terminal or pipe: a reader waits until it is closed.

    Standard output stays open: it is a pipe to the node, and its end means that no node needs this coordinator.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stderr.fileno())
    os.close(nowhere)
