"""Keeps the state of this node's workers: carries out the agent's effects, and handles messages of the workers.

This module only connects the others of the package: it knows the round, and hands each effect and each message to the
module that deals with it. Other packages call this module.

Before the node joins, `find_steps_on_disk` is called. In a round the calls come in this order: `carry_out` with the
`Restore` that begins the round, and `claim_disk`; `listen` when the workers are started; `carry_out` with requests to
halt or to save; `record_exit` for each worker; `end_round` and `warn_of_unused_disk`.
Reports (`complete`) and other effects may come at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from coordinatord.protocol.fields import DURATION_S_MAX, RANKS_MAX, SENTENCE_MAX, STEP_MAX
from coordinatord.protocol.kept_state import UNSTEPPED_MAX, Holding, Keeper, PersistReport, Restoring
from coordinatord.protocol.messages import Observed
from coordinatord.protocol.text import clip, unstepped_words
from coordinatord.runtime.tasks import Tasks
from nodeclient.core import effects, notices
from nodeclient.core.effects import Level
from nodeclient.core.events import Event, Keeping, KeptChanged, KeptSaved, Unreached
from nodeclient.core.kept_groups import grouped
from nodeclient.host.capacity import memory
from nodeclient.host.devices import THIS_HOST
from nodeclient.keeping.copier import Copier
from nodeclient.keeping.disk.complaints import Notify
from nodeclient.keeping.disk.known_steps import KnownSteps
from nodeclient.keeping.disk.persist_settings import PersistSettings
from nodeclient.keeping.disk.persister import Persister
from nodeclient.keeping.parts.arena_memory import ArenaMemory
from nodeclient.keeping.parts.arenas import COPIES, COPIES_WITH_DISK, Arenas, named_parts
from nodeclient.keeping.parts.digests import Digests
from nodeclient.keeping.parts.part_messages import Kind
from nodeclient.keeping.parts.part_server import PartServer
from nodeclient.keeping.resources import THREADS, KeepResources, KeepSettings
from nodeclient.keeping.restoration import ResumeAnswers
from nodeclient.keeping.round_memory import MemoryProvider
from nodeclient.keeping.round_workers import RoundWorkers, SaveRequests
from nodeclient.keeping.worker_channel import WorkerChannel
from workerlib.contract.channel_messages import (
    AskRestore,
    Checkpointed,
    Checkpointing,
    Comparison,
    FirstState,
    Halted,
    Interval,
    Message,
    NotSaved,
    Pageable,
    Reserve,
    Saved,
    SaveNow,
    Unkept,
    Unstepped,
)
from workerlib.contract.env import KEEP

UNKEPT_MAX = 8
"""How many things are named, at most, that a script has forgotten to keep. It forgets one or two."""


class StateKeeper:
    """Keeps state for the workers of one node, and sends it to those of later rounds, here and on other nodes.

    Create it in the running loop. Raises `OSError` without a free port.
    """

    def __init__(
        self,
        settings: KeepSettings,
        node: str,
        workers: int,
        *,
        submit: Callable[[Event], None],
        notify: Notify,
        tasks: Tasks,
        persist: PersistSettings | None = None,
    ) -> None:
        """Begin without state. If the limit of memory is 0, nothing is kept, and no port is opened."""
        uses_disk = persist is not None and settings.limit_bytes > 0
        changed = partial(submit, KeptChanged())
        threads = ThreadPoolExecutor(THREADS, thread_name_prefix="kept-state")
        copies = COPIES_WITH_DISK if uses_disk else COPIES
        arenas = Arenas(ArenaMemory(settings.limit_bytes, lambda: memory(THIS_HOST).available), copies)
        self._resources = KeepResources(
            settings,
            node,
            workers,
            arenas=arenas,
            digests=Digests(threads),
            threads=threads,
            tasks=tasks,
            submit=submit,
            notify=notify,
            disk=Persister(persist, arenas, notify, changed, tasks) if persist and uses_disk else None,
        )
        self._channel = WorkerChannel(self._handle, self._lose)
        self._server: PartServer | None = None
        if settings.limit_bytes:
            self._server = PartServer(arenas, self._resources.withdraw_damaged, settings.address)
        self._copier = Copier(self._resources)
        self._round = RoundWorkers()
        self._memory = MemoryProvider(self._resources, self._channel, self._round, self._on_reserved)
        self._answers = ResumeAnswers(self._resources, self._channel.send)
        self._save_s: dict[int, float] = {}
        """How many seconds the last save of each worker took, by local rank."""
        self._disk_unused = uses_disk
        """Whether there is a disk for kept state, no worker keeps state, and the user has not been told so."""
        self._unkept: list[str] = []
        """State that the training of this run depends on, but its workers do not keep."""
        self._told_unstepped = False
        """Whether the user was told of workers that never call `ctx.step`."""
        self._told_unconnected = False
        """Whether the user was warned that workers cannot connect."""

    @property
    def offer(self) -> Keeper | None:
        """How other nodes get kept state from this node, for its `Join`; None if nothing is kept."""
        if self._server is None:
            return None
        settings, disk = self._resources.settings, self._resources.disk
        persist = None if disk is None else disk.settings.offer
        copies = settings.copy_rate > 0
        return Keeper(self._server.port, self._server.key, settings.limit_bytes, persist, takes_copies=copies)

    def persisting(self) -> PersistReport | None:
        """Return the state of the present write to the disk; None without one."""
        return None if self._resources.disk is None else self._resources.disk.report

    async def find_steps_on_disk(self) -> None:
        """Find the steps on the disk, before this node joins: the first round may resume from one."""
        if self._resources.disk is not None:
            await self._resources.disk.steps.start()

    async def claim_disk(self, probe: effects.Probe) -> Unreached | None:
        """Claim the folder of steps for the run of a round; return why the round must not begin; None if it may."""
        disk = self._resources.disk
        obstacle = "" if disk is None else await disk.claim(probe.run)
        return Unreached(probe.run, probe.round, obstacle) if obstacle else None

    def close(self) -> None:
        """Drop all kept state, and stop all work on it."""
        self._answers.cancel()
        self._copier.close()
        if self._resources.disk is not None:
            self._resources.disk.close()
        if self._server is not None:
            self._server.close()
        self._channel.close()
        self._resources.arenas.memory.close()
        self._resources.arenas.drop()
        self._resources.digests.close()
        self._resources.threads.shutdown(wait=False, cancel_futures=True)

    # Effects of the agent

    def carry_out(self, order: effects.KeptOrder) -> None:
        """Carry out an effect of the agent."""
        disk = self._resources.disk
        match order:
            case effects.Restore():
                self._restore(order)
            case effects.Protect(run, steps):
                self._resources.arenas.protect(run, {(at.round, at.step) for at in steps})
            case effects.CopyKept(run, copies):
                self._enter(run)
                self._copier.set_wanted(run, copies)
            case effects.Persist(run, persist_order):
                if disk is not None and run == self._resources.arenas.run:
                    disk.carry_out(run, persist_order)
            case effects.TellAlike(alike):
                self._tell_alike(alike)
            case effects.SaveKept() | effects.HaltWorkers():
                self._ask_to_save(order)

    def _tell_alike(self, alike: bool) -> None:
        """Tell the workers whether all ranks are alike, that is, had the same state after their first step.

        If they are, two workers of each node save the state for all; otherwise each saves its own. The coordinator has
        compared the digests that the workers of all nodes have sent (`FirstState`).
        """
        self._round.alike = alike
        self._channel.send_all(self._round.first_states.keys() & self._channel.connected, Comparison(alike))
        if not alike:
            self._resources.notify(Level.INFO, notices.DIFFERENT_STATES, "different_states")

    def _restore(self, order: effects.Restore) -> None:
        """Get the parts that the workers of a round resume from; the first order of a round begins it."""
        run, number = order.run, order.round
        if (run, number) != (self._resources.arenas.run, self._round.number):
            self._answers.cancel()
            self._memory.close()
            self._round = RoundWorkers(number, saves=SaveRequests(self._round.saves.number))
            self._memory = MemoryProvider(self._resources, self._channel, self._round, self._on_reserved)
            # The new workers lack the unkept state of the old ones: the notice about the resumed step says so.
            unkept = self._unkept if run == self._resources.arenas.run else []
            self._answers = ResumeAnswers(self._resources, self._channel.send, run, number, " and ".join(unkept))
        self._enter(run)
        self._answers.pursue(order.resume)

    def _enter(self, run: str) -> None:
        """Keep the state of this run from now on, and drop the state of another run."""
        if run != self._resources.arenas.run:
            self._copier.set_wanted(run, ())
            self._resources.arenas.enter(run)
            self._save_s, self._unkept = {}, []

    def listen(self, folder: Path, round_number: int) -> dict[str, str]:
        """Accept the workers of a round; return the variable with the socket's path, or none if nothing is kept."""
        if self._server is None:
            return {}
        try:
            return {KEEP: self._channel.listen(folder, self._resources.workers, round_number)}
        except OSError as error:
            if not self._told_unconnected:
                text = f"no state of workers can be kept: they cannot connect to this node: {error.strerror}"
                self._resources.notify(Level.WARNING, text, "state_not_kept")
            self._told_unconnected = True
            return {}

    async def end_round(self) -> None:
        """Close the round, whose workers have all ended, so that their kept state does not change any more.

        Wait until the digests of shared states are known, which the coordinator compares before it forms a round.
        """
        self._channel.close()
        computing = self._resources.compute_digests(Kind.BIG, Kind.SMALL)
        await asyncio.gather(*map(asyncio.wrap_future, computing))

    def warn_of_unused_disk(self, observed: Observed) -> None:
        """Tell the user once that `--persist` is of no use, if the round of this report has trained without it.

        Workers that have neither done a step nor succeeded may have ended before they could keep state.
        """
        trained = observed.ended or any(step is not None for step in observed.steps)
        if self._disk_unused and trained:
            self._resources.notify(Level.WARNING, notices.keeps_nothing(observed.round), "state_not_kept")
            self._disk_unused = False

    def warn_of_unstepped(self, observed: Observed) -> None:
        """Tell the user of workers that never call `ctx.step`, only once: all report it at about the same time."""
        ranks = self._round.still_unstepped(observed.steps)
        if ranks and not self._told_unstepped:
            self._told_unstepped = True
            self._resources.notify(Level.WARNING, unstepped_words(ranks), "state_not_kept")

    def complete(self, observed: Observed) -> Observed:
        """Return the node's report with the kept state of its run, and with the steps on the disk.

        A node that waits for its first round of a run keeps nothing of it yet, but the round may resume from the disk.
        """
        resources = self._resources
        steps = KnownSteps() if resources.disk is None else resources.disk.steps.known
        if observed.run != resources.arenas.run:
            if not (steps.found or steps.unusable):
                return observed
            return replace(observed, kept=Holding((), persisted=steps.found, unusable=steps.unusable))
        current, answers = self._round, self._answers
        is_current = observed.round == current.number
        # Living workers replace their small state at each step.
        parts = named_parts(resources.arenas, resources.digests, with_small=not observed.phase.has_workers)
        holding = Holding(
            parts=grouped(parts),
            restoring=answers.restoring if is_current else Restoring.NOTHING,
            problem=clip(answers.problem, SENTENCE_MAX) if is_current else "",
            interval_steps=current.interval_steps,
            save_s=min(max(self._save_s.values()), DURATION_S_MAX) if self._save_s else None,
            used_bytes=resources.arenas.memory.used_bytes,
            skipped=current.skipped,
            can_halt=is_current and len(current.halting) == resources.workers,
            halts_after=current.halts_after if is_current else None,
            writes_checkpoints=is_current and bool(current.writers),
            checkpointed=current.checkpointed if is_current else None,
            persisted=steps.found,
            unusable=steps.unusable,
            persisting=self.persisting(),
            first_states=current.named_first_states(resources.workers) if is_current else (),
            copy_problem=clip(self._copier.problem, SENTENCE_MAX),
            unkept=clip(" and ".join(self._unkept), SENTENCE_MAX),
            pageable=clip(current.pageable, SENTENCE_MAX),
            unstepped=tuple(current.still_unstepped(observed.steps)[:UNSTEPPED_MAX]) if is_current else (),
        )
        return observed if holding == Holding(()) else replace(observed, kept=holding)

    # Messages of workers

    def _handle(self, local_rank: int, message: Message) -> None:  # noqa: C901, PLR0912 - one plain case a message
        current = self._round
        self._disk_unused &= not isinstance(message, Reserve | AskRestore)
        match message:
            case Reserve():
                self._memory.request(local_rank, message)
            case AskRestore():
                self._answers.ask(local_rank)
            case Saved():
                if message.length:  # else the step was saved before
                    self._save_s[local_rank] = message.seconds
                self._resources.arenas.drop_superseded()
                self._resources.compute_digests(Kind.BIG)
                self._submit_if_answered(all_answered=current.saves.record_save(local_rank, message.asked))
            case NotSaved():
                self._submit_if_answered(all_answered=current.saves.record_refusal(local_rank, message))
            case Interval():
                current.intervals[local_rank] = message
            case FirstState(digest):
                current.first_states[local_rank] = digest % 2**32  # the limit of a `Digest` in reports
                if current.alike is not None:
                    self._channel.send(local_rank, Comparison(current.alike))
                elif current.named_first_states(self._resources.workers):
                    self._resources.submit(KeptChanged())
            case Unkept(what) if what not in self._unkept and len(self._unkept) < UNKEPT_MAX:
                self._unkept.append(what)
                self._resources.notify(Level.WARNING, f"not kept, and lost with its worker: {what}", "state_not_kept")
            case Pageable(why) if not current.pageable:
                current.pageable = why
                text = f"saves from the GPU are slow: their memory is not page-locked: {why}"
                self._resources.notify(Level.WARNING, text, "state_saved_slowly")
            case Unstepped(rank):
                current.unstepped[local_rank] = min(max(rank, 0), RANKS_MAX)
            case Halted(step):  # no answer yet: the worker saves once the coordinator has named the step
                current.promised[local_rank] = min(step, STEP_MAX)
                if current.halts_after is not None:
                    self._resources.submit(KeptChanged())
            case Checkpointing():
                self._add_halting(current, current.checkpointing, local_rank)
            case Checkpointed(step, asked):
                current.last_checkpoints[local_rank] = min(step, STEP_MAX)
                self._submit_if_answered(all_answered=current.saves.record_answer(local_rank, asked))

    def _add_halting(self, current: RoundWorkers, workers: set[int], local_rank: int) -> None:
        """Add a worker to `keepers` or `checkpointing`, and tell the agent how long a save may take."""
        before = len(current.halting)
        workers.add(local_rank)
        within_s = self._resources.settings.save_within_s(self._resources.arenas.memory.used_bytes)
        self._resources.submit(Keeping(within_s, writes_checkpoints=bool(current.checkpointing)))
        if before < len(current.halting) == self._resources.workers:
            # Reported at once, so that a round that is stopped within its first second loses no step.
            self._resources.submit(KeptChanged())

    # Requests to save
    #
    # A worker with memory may end before it has saved, while a living worker without memory has the same shard of the
    # state. Then the living one saves it:
    #
    # 1. The connection of the ending worker is gone. Its answer stays missing, since its memory will be lent (`_lose`).
    # 2. Its process has ended, and so writes no more. Its memory is lent to the living worker (`record_exit`).
    # 3. The living worker has the memory, and is asked to save (`_on_reserved`).

    def _ask_to_save(self, order: effects.SaveKept | effects.HaltWorkers) -> None:
        """Ask the workers to save now or after a step; `KeptSaved` follows."""
        saves, connected = self._round.saves, self._channel.connected
        request = saves.make(order)
        saving = self._round.halting & connected
        if isinstance(order, effects.SaveKept) and not order.planned:
            # A worker that a signal has stopped does not answer. Before a planned end it may be continued in time.
            saving -= self._channel.stopped
        saves.await_answers(saving | self._memory.awaited)
        self._channel.send_all(saving, request)
        if saves.answered:
            self._resources.submit(KeptSaved())

    def _lose(self, local_rank: int) -> None:
        """Record that a worker's connection is gone; called again when its process has ended.

        While its memory is yet to be lent to another worker, an answer is still awaited.
        """
        self._answers.lose(local_rank)
        self._round.lose(local_rank)
        if local_rank not in self._memory.awaited:
            self._submit_if_answered(all_answered=self._round.saves.lose(local_rank))

    def record_exit(self, local_rank: int) -> None:
        """Record that a worker has ended. A living worker may need its memory to save the same state."""
        # Between rounds only parked workers end. If the local rank of one counted as ended, the worker that has it in
        # the next round would get no memory.
        if self._channel.is_open:
            self._memory.end(local_rank)
        self._memory.lend()
        self._lose(local_rank)

    def _on_reserved(self, local_rank: int, lent: bool) -> None:
        """Record that a worker has memory, and repeat the last request to save if the memory is `lent`."""
        self._add_halting(self._round, self._round.keepers, local_rank)
        request = self._round.saves.last
        # Without memory, the borrower has refused the last request, or was not asked. A request to halt after a step
        # (`HaltAt`) is not repeated: the borrower may be past that step.
        if lent and isinstance(request, SaveNow) and self._round.saves.repeat(local_rank):
            self._channel.send(local_rank, request)

    def _submit_if_answered(self, *, all_answered: bool) -> None:
        """Submit `KeptSaved` if all workers that were asked to save have answered, or are gone."""
        if not all_answered:
            return
        saves = self._round.saves
        if saves.why_not and not saves.put_off:  # a save that is put off may still come
            text = f"round {self._round.number} ends with what was saved before: {saves.why_not}"
            self._resources.notify(Level.INFO, text, "state_not_saved")
        self._resources.submit(KeptSaved(saves.put_off))
