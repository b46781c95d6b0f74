"""Checks this host, for a node and for `nodeclient check`: runs the user's command, and reads the facts to judge it by.

`core.host_health` judges them. Facts that may hang in the kernel are read by a process (`host_facts`), and those that
need the network by a thread.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec import json
from msgspec.structs import replace

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import describe_exit
from coordinatord.protocol.ip_addresses import Endpoint
from coordinatord.protocol.messages import CheckResult
from coordinatord.protocol.text import sized
from coordinatord.runtime.tasks import in_thread
from nodeclient.access.contact_points import addresses_of
from nodeclient.access.keyring import AccessSettings
from nodeclient.config.operate import CheckConfig
from nodeclient.core.events import HealthChecked
from nodeclient.core.host_health import CLOCK_WITHIN_S, Finding, HostFacts, conclude, judge, unchecked
from nodeclient.core.host_tests import EXIT_CODES, WITHIN_S
from nodeclient.host.addresses import interface_towards
from nodeclient.host.devices import visibility_remark
from nodeclient.host.foreign_workerlib import ForeignWorkerlibError, check_workerlib
from nodeclient.host.host_facts import facts_command
from nodeclient.operate.client import Client
from nodeclient.operate.terminal_info import write
from nodeclient.shell.timed_command import TimedCommand
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
    """The checks of this host."""

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
