"""Reads all jobs without holding up the nodes: in pieces, between which heartbeats are answered.

One job is read at one moment; two jobs may be read at different ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from coordinatord.core.state.run import Run
from coordinatord.server.driver import Driver

JOB_COST = 40
"""The cost of a job as a whole, in nodes, beside its own nodes."""


async def iterate_jobs(driver: Driver, piece: int) -> AsyncIterator[Run]:
    """Yield the run of each job, as far as it is durable, with a pause after every `piece` of nodes."""
    await driver.written()
    cost = 0
    for job in list(driver.machine.jobs):
        run = driver.machine.jobs.get(job)
        if run is None:
            continue  # it was forgotten in a pause
        yield run
        cost += JOB_COST + len(run.members)
        if cost > piece:
            cost = 0
            await asyncio.sleep(0)
            await driver.written()
