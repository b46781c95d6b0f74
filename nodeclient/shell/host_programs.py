"""Runs the programs that test this host: those of its health check, and the tests with another node.

`core.host_tests` decides when. A test needs the host for itself, so workers are started only after its end.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from coordinatord.protocol.exit_codes import describe_exit
from coordinatord.protocol.fields import MESSAGE_MAX
from coordinatord.protocol.pair_messages import PairOrder, PairResult
from coordinatord.protocol.text import clip
from nodeclient.core.events import HealthChecked, PairTested
from nodeclient.shell.host_check import HostCheck
from nodeclient.shell.timed_command import CommandEnd, TimedCommand
from nodeclient.workers.spawn import WorkerCommand


class HostPrograms:
    """The programs that test the host of one node."""

    def __init__(
        self,
        check: HostCheck,
        pair_command: Callable[[PairOrder], WorkerCommand],
        mark: str,
        submit: Callable[[HealthChecked | PairTested], None],
    ) -> None:
        """Run nothing yet; `submit` gets the end of each program, and `pair_command` returns the one of a test."""
        self._check, self._pair_command, self._submit = check, pair_command, submit
        self._pair = TimedCommand(mark)
        self._wanted: PairOrder | None = None
        """The last order to test with another node."""

    @property
    def pids(self) -> frozenset[int]:
        """The children that this object reaps."""
        return frozenset(self._check.pids | self._pair.pids)

    async def check_health(self, within_s: float) -> None:
        """Check this host, for `within_s` seconds at most."""
        self._submit(await self._check.run(within_s))

    async def test_pair(self, order: PairOrder | None) -> None:
        """Run a test with another node in place of any other one; without an order, end the one that runs."""
        self._wanted = order
        self._pair.kill()
        await self._pair.await_end()
        if order is not None and order is self._wanted:  # no later order has come meanwhile
            end = await self._pair.run(self._pair_command(order), order.within_s)
            self._submit(PairTested(_result(order, end)))

    async def await_pair_end(self) -> None:
        """Wait until a test that was killed has ended, but not for ever.

        What it hangs in, such as a driver, would make the workers hang too, so a longer wait would gain nothing.
        """
        await self._pair.await_end()


def _result(order: PairOrder, end: CommandEnd) -> PairResult:
    """Return the result of a test, from its last line of figures, which includes those of the lines before."""
    why = describe_exit(end.exit_code) if end.exit_code else end.problem
    figures = end.answer(PairResult)
    if figures is not None:
        return replace(figures, number=order.number, text=figures.text or clip(why, MESSAGE_MAX))
    why = ": ".join(filter(None, (why, *end.lines[-1:]))) or "its test printed nothing"
    return PairResult(order.number, None, None, text=clip(why, MESSAGE_MAX))
