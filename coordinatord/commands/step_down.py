"""`coordinatord --step-down`: revokes the leader's lease, so that a standby leads at once."""

from __future__ import annotations

import asyncio
import sys

from coordinatord.config.store_flags import StepDownConfig
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.store.etcd.gateway import Gateway
from coordinatord.store.etcd.keys import Keys
from coordinatord.store.etcd.roster import end_term, read_coordinators


def step_down(config: StepDownConfig) -> int:
    """End the term of the leader, and print its name; return the exit code. Raises `StoreError`."""
    sys.stdout.write(f"{asyncio.run(_end_term(config))}\n")
    return ExitCode.OK


async def _end_term(config: StepDownConfig) -> str:
    gateway, keys = Gateway(config.location), Keys(config.location.prefix)
    try:
        standbys = (await read_coordinators(gateway, keys)).standbys
        text = f"{(await end_term(gateway, keys)).endpoint} leads no more"
        return text if standbys else f"{text}, but nobody stands by: it leads again in a moment"
    finally:
        await gateway.close()
