"""Runs the programs that test this host: the command of `--health-check`, and the tests with another node."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec import json
from msgspec.structs import replace

from coordinatord.protocol.exit_codes import describe_exit
from coordinatord.protocol.fields import MESSAGE_MAX
from coordinatord.protocol.pair_messages import PairOrder, PairResult
from coordinatord.protocol.schema import ERRORS
from coordinatord.protocol.text import clip
from nodeclient.core.events import HealthChecked, PairTested
from nodeclient.shell.timed_command import CommandEnd, TimedCommand
from nodeclient.workers.spawn import WorkerCommand

KILLED_WITHIN_S = 5.0
"""The longest wait for the end of a test that was killed: it may hang in a driver, and so would workers then."""


class HostPrograms:
    """The programs of one node. Nothing waits for them but the end of a test that was killed."""

    def __init__(
        self,
        health_check: Sequence[str],
        pair_command: Callable[[PairOrder], WorkerCommand],
        mark: str,
        submit: Callable[[HealthChecked | PairTested], None],
    ) -> None:
        """Run nothing yet; `submit` gets the end of each program, and `pair_command` returns the one of a test."""
        self._health_check = WorkerCommand(tuple(health_check), os.environ)
        self._pair_command, self._submit = pair_command, submit
        self._health, self._pair = TimedCommand(mark), TimedCommand(mark)
        self._wanted: PairOrder | None = None
        self._pair_ended = asyncio.Lock()

    @property
    def pids(self) -> frozenset[int]:
        """The children that this object reaps."""
        return frozenset(self._health.pids | self._pair.pids)

    async def check_health(self, within_s: float) -> None:
        """Run the command of `--health-check` for `within_s` seconds at most."""

        def submit(end: CommandEnd) -> None:
            self._submit(HealthChecked(end.exit_code, end.text))

        await self._health.run(self._health_check, within_s, submit)

    async def test_pair(self, order: PairOrder | None) -> None:
        """Run a test with another node in place of any other one; without an order, end the one that runs."""
        self._wanted = order
        self._pair.kill()
        async with self._pair_ended:
            if order is not None and order is self._wanted:
                await self._pair.run(
                    self._pair_command(order), order.within_s, lambda end: self._submit(PairTested(_result(order, end)))
                )

    async def await_pair_end(self) -> None:
        """Wait until a test that was killed has ended, `KILLED_WITHIN_S` at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(KILLED_WITHIN_S), self._pair_ended:
                pass


def _result(order: PairOrder, end: CommandEnd) -> PairResult:
    """Return what a test has measured: its last line of figures has all that it came to."""
    why = end.problem if end.exit_code is None else describe_exit(end.exit_code) if end.exit_code else ""
    for line in reversed(end.lines):
        with suppress(*ERRORS):
            figures = json.decode(line, type=PairResult)
            return replace(figures, number=order.number, text=figures.text or clip(why, MESSAGE_MAX))
    why = ": ".join(filter(None, (why, *end.lines[-1:]))) or "its test printed nothing"
    return PairResult(order.number, None, None, text=clip(why, MESSAGE_MAX))
