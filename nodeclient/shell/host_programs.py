"""Runs the programs that test this host: those of its health check, and the tests with another node.

`core.host_tests` decides when. A health check runs the user's command, and reads the facts that `core.host_health`
judges, for a node and for `nodeclient check`. Facts that may hang in the kernel are read by a process (`host_facts`),
and those that need the network by a thread.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec import json
from msgspec.structs import replace

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import describe_exit
from coordinatord.protocol.fields import SENTENCE_MAX
from coordinatord.protocol.ip_addresses import Endpoint
from coordinatord.protocol.messages import CheckResult
from coordinatord.protocol.pair_messages import PairOrder, PairResult
from coordinatord.protocol.text import clip, sized
from coordinatord.runtime.tasks import in_thread
from nodeclient.access.contact_points import addresses_of
from nodeclient.access.keyring import AccessSettings
from nodeclient.config.operate import CheckConfig
from nodeclient.core.events import HealthChecked, PairTested
from nodeclient.core.host_health import CLOCK_WITHIN_S, Finding, HostFacts, conclude, judge, unchecked
from nodeclient.core.host_tests import EXIT_CODES, WITHIN_S
from nodeclient.host.addresses import interface_towards
from nodeclient.host.devices import visibility_remark
from nodeclient.host.foreign_workerlib import ForeignWorkerlibError, check_workerlib
from nodeclient.host.host_facts import facts_command
from nodeclient.operate.client import Client
from nodeclient.operate.terminal_info import write
from nodeclient.shell.timed_command import CommandEnd, TimedCommand
from nodeclient.workers.spawn import WorkerCommand

COORDINATOR_WITHIN_S = 3.0
"""How long a coordinator may take to tell the time: it answers in milliseconds, and the result of the check waits."""

_NAMED = "directory"
"""The purpose that is shown for a directory which `nodeclient check` was given, with its number."""

_SUMMARIES = {
    CheckResult.GOOD: "nothing is wrong with this host",
    CheckResult.UNKNOWN: "nothing of this host can be checked",
}
"""What `nodeclient check` prints where there is no finding."""


class HostCheck:
    """The health checks of this host."""

    def __init__(
        self,
        command: Sequence[str],
        folders: Mapping[str, Path],
        coordinators: Sequence[Endpoint],
        access: AccessSettings,
        mark: str,
        *,
        reads_facts: bool = True,
    ) -> None:
        """Check nothing yet.

        `command` is that of `--health-check`, empty for none; `folders` are the directories that need space, by their
        use. The processes have the `mark`, so `workers.guard` kills them if the node ends first. Without `reads_facts`
        only the command is run.
        """
        self._command = WorkerCommand(tuple(command), os.environ) if command else None
        self._facts = WorkerCommand(tuple(facts_command(folders)), os.environ) if reads_facts else None
        self._command_runner, self._facts_runner = TimedCommand(mark), TimedCommand(mark)
        self._coordinators = coordinators
        self._access = access
        self._clock_ahead_s: float | None = None
        """The last answer about the clock; None before the first."""

    @property
    def pids(self) -> set[int]:
        """The children that this object reaps."""
        return self._command_runner.pids | self._facts_runner.pids

    async def run(self, within_s: float) -> HealthChecked:
        """Check this host once, for `within_s` at most."""
        ended, facts = await asyncio.gather(self._run_command(within_s), self._read_facts(within_s))
        return replace(ended, facts=facts)

    async def _run_command(self, within_s: float) -> HealthChecked:
        if self._command is None:
            return HealthChecked(0, "")
        ended = await self._command_runner.run(self._command, within_s)
        return HealthChecked(ended.exit_code, ended.text)

    async def _read_facts(self, within_s: float) -> HostFacts | None:
        if self._facts is None:
            return None
        ended, reached = await asyncio.gather(self._facts_runner.run(self._facts, within_s), self._ask_coordinator())
        facts = ended.answer(HostFacts)
        if facts is None:
            how = ended.text if ended.exit_code is None else describe_exit(ended.exit_code)
            return HostFacts(unread=(f"this host (the process that reads its facts: {how})",))
        return replace(
            facts, route=reached.route, clock_ahead_s=reached.clock_ahead_s, clock_unread=reached.clock_unread
        )

    async def _ask_coordinator(self) -> HostFacts:
        """Return the route to the coordinator, and the clock compared with it; neither if no coordinator is known.

        A host whose clock was right does not ask again: after a failed round, thousands would ask at the same time.
        """
        if not self._coordinators:
            return HostFacts()
        known = self._clock_ahead_s
        client = Client(self._coordinators, self._access) if known is None or abs(known) > CLOCK_WITHIN_S else None
        try:
            asked = in_thread(partial(_route_and_clock, self._coordinators[0], client), "coordinator")
            await asyncio.wait([asked], timeout=COORDINATOR_WITHIN_S)
            found = asked.result() if asked.done() else HostFacts(clock_unread="no coordinator answers in time")
        except OSError as error:
            found = HostFacts(clock_unread=str(error))
        if client is None:
            return HostFacts(route=found.route, clock_ahead_s=known)
        self._clock_ahead_s = found.clock_ahead_s
        return found


def _route_and_clock(coordinator: Endpoint, client: Client | None) -> HostFacts:
    route = interface_towards(next(iter(addresses_of(coordinator)), coordinator.host)) or ""
    try:
        return HostFacts(route=route, clock_ahead_s=client.clock_ahead_s() if client else None)
    except OperationalError as error:
        return HostFacts(route=route, clock_unread=str(error))


class HostPrograms:
    """The programs that test the host of one node.

    A test with another node needs the host for itself, so workers are started only after its end.
    """

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
        return replace(figures, number=order.number, text=figures.text or clip(why, SENTENCE_MAX))
    why = ": ".join(filter(None, (why, *end.lines[-1:]))) or "its test printed nothing"
    return PairResult(order.number, None, None, text=clip(why, SENTENCE_MAX))


def run(config: CheckConfig) -> int:
    """Check this host once for a person or a scheduler, and print a line for each finding; return the exit code."""
    folders = {f"{_NAMED} {number}": folder for number, folder in enumerate(config.folders, start=1)}
    check = HostCheck((), folders, config.coordinators, config.access, secrets.token_hex(16))
    facts = asyncio.run(check.run(WITHIN_S)).facts or HostFacts()
    findings = (*_foreign_workerlib(), *judge(facts, None, is_idle=True))
    result, _ = conclude(findings, facts)
    unread = (*([f"the clock ({facts.clock_unread})"] if facts.clock_unread else []), *unchecked(facts))
    if config.json:
        answer = {"result": result, "findings": findings, "seen": _seen(facts), "cannot_be_checked": unread}
        write([json.encode(answer).decode()])
    else:
        lines = [f"{finding.result}: {finding.text}" for finding in findings] or [f"{result}: {_SUMMARIES[result]}"]
        lines += [
            f"{space.path} ({space.what}) does not exist yet: join makes it" for space in facts.spaces if space.is_new
        ]
        write([*lines, *_seen(facts), *(f"cannot be checked: {text}" for text in unread)])
    return EXIT_CODES[result]


def _seen(facts: HostFacts) -> list[str]:
    """Return what a person may not expect: that there is no GPU, and on which file system a named directory is."""
    spaces = [space for space in facts.spaces if space.what.startswith(_NAMED)]
    return [
        *([f"no GPU is seen on this host{visibility_remark(os.environ)}"] if facts.gpus == () else []),
        *(f"{space.path}: {sized(space.free)} of {sized(space.total)} free {space.mount}".rstrip() for space in spaces),
    ]


def _foreign_workerlib() -> tuple[Finding, ...]:
    """Return a warning if no node can start here. The host is not bad: all hosts may share the installation."""
    try:
        check_workerlib()
    except ForeignWorkerlibError as error:
        return (Finding(CheckResult.WARNING, str(error)),)
    return ()
