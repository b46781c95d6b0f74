"""Gets what the workers of one round resume from, and sends it to each worker that requests it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from coordinatord.protocol.kept_state import Restoring, Resume
from nodeclient.core.effects import Level
from nodeclient.core.events import KeptChanged
from nodeclient.keeping.parts.arenas import size_in_words
from nodeclient.keeping.resources import KeepResources
from nodeclient.keeping.restoration import DamagedError, FileSystemError, Restoration, RestoreError
from workerlib.contract.channel_messages import DESCRIPTORS_MAX, NOTHING, ResumeFrom

Send = Callable[[int, ResumeFrom, Sequence[int]], None]
"""Sends a worker, by its local rank, what it resumes from, with the descriptors of the parts."""


class Resuming:
    """The beginning of one round, as far as kept state is concerned."""

    def __init__(self, resources: KeepResources, send: Send, run: str = "", number: int = 0, unkept: str = "") -> None:
        """Begin before it is known what this round resumes from. `unkept` is lost with the workers of the last one."""
        self._resources = resources
        self._send = send
        self._run = run
        self._number = number
        self._unkept = unkept
        self._asking: set[int] = set()
        """The local ranks of workers that wait for what they resume from."""
        self._resumed: set[int] = set()
        """The local ranks of workers to which it was sent."""
        self._answer: ResumeFrom | None = None
        """What the workers resume from, without the parts; None until these are ready."""
        self._restoration: Restoration | None = None
        self._getting: asyncio.Task[None] | None = None
        self.restoring = Restoring.NOTHING
        self._problem = ""

    @property
    def problem(self) -> str:
        """Why parts cannot be had, or could not be had so far; empty if all is well."""
        if self._problem or self.restoring is not Restoring.FETCHING or self._restoration is None:
            return self._problem
        return self._restoration.problem

    def pursue(self, resume: Resume | None) -> None:
        """Get what the coordinator has chosen, or nothing for None. A later call may name other holders."""
        if resume is None:
            self._answer = NOTHING
            self._answer_all()
        elif resume.complete and self.restoring in {Restoring.NOTHING, Restoring.FETCHING}:
            self.give_up()
            self.restoring, self._problem = Restoring.FETCHING, ""
            self._restoration = Restoration(self._resources, self._run)
            self._getting = self._resources.tasks.spawn(self._get(self._restoration, resume), name="restore")

    def ask(self, local_rank: int) -> None:
        """Answer a worker's request, now or when the answer is known."""
        self._asking.add(local_rank)
        self._answer_all()

    def lose(self, local_rank: int) -> None:
        """Note that a worker is gone."""
        self._asking.discard(local_rank)

    def give_up(self) -> None:
        """Stop getting what the round was to resume from."""
        if self._getting is not None:
            self._getting.cancel()
        if self._restoration is not None:
            self._restoration.give_up()

    async def _get(self, restoration: Restoration, resume: Resume) -> None:
        loop, resources = asyncio.get_running_loop(), self._resources
        began = loop.time()
        try:
            await restoration.get(resume)
        except (RestoreError, OSError) as error:
            if isinstance(error, DamagedError):
                resources.note_damage(error.held)
                self._problem = str(error)
                # The coordinator may name another holder meanwhile, which cancels this.
                await asyncio.sleep(resources.settings.patience_s)
            self.restoring, self._problem = Restoring.FAILED, str(error)
            if resume.disk is not None and resources.disk is not None:
                may_pass = isinstance(error, FileSystemError)
                resources.disk.steps.withdraw(resume.disk, resume.step, str(error), may_pass=may_pass)
            text = f"round {self._number} cannot resume at step {resume.step} from {_place(resume)}: {error}"
            resources.notify(Level.WARNING, text, "state_not_restored")
            resources.submit(KeptChanged())
            return
        self.restoring = Restoring.READY
        self._answer = ResumeFrom(resume.round, resume.step, resume.world_size, ())
        resources.notify(Level.INFO, self._resumption(resume, restoration, loop.time() - began), "state_ready")
        self._answer_all()

    def _resumption(self, resume: Resume, restoration: Restoration, took_s: float) -> str:
        """Return the notice that everything is there that the round resumes from."""
        ready = restoration.ready
        steps = "step" if resume.redone == 1 else "steps"
        redone = "" if resume.redone is None else f", {resume.redone:,} {steps} redone"
        lacking = f", without {self._unkept}" if self._unkept else ""
        text = f"round {self._number} resumes at step {resume.step:,} from {_place(resume)}{redone}{lacking}"
        size = size_in_words(ready.received_bytes)
        if resume.disk is not None:
            return f"{text}: {len(ready.parts)} parts, {size}, were read in {took_s:.2g} s"
        if ready.received:
            return (
                f"{text}: {ready.received} of {len(ready.parts)} parts, {size}, came from other nodes in {took_s:.2g} s"
            )
        return f"{text}: all of it is on this host"

    def _answer_all(self) -> None:
        """Send the workers that wait what they resume from, if it is ready."""
        if self._answer is None:
            return
        ready = [] if self._restoration is None else self._restoration.ready.parts
        batches = [ready[at : at + DESCRIPTORS_MAX] for at in range(0, len(ready), DESCRIPTORS_MAX)] or [[]]
        for local_rank in sorted(self._asking):  # sorted copies them: to send to a worker that has ended calls `lose`
            for number, batch in enumerate(batches, start=1):
                parts, more = tuple(part for part, _ in batch), number < len(batches)
                self._send(local_rank, replace(self._answer, parts=parts, more=more), [file for _, file in batch])
        self._resumed |= self._asking
        self._asking.clear()
        if len(self._resumed) == self._resources.workers and self._restoration is not None:
            self._restoration.ready.close(self._resources.arenas)


def _place(resume: Resume) -> str:
    return "memory" if resume.disk is None else "disk"
