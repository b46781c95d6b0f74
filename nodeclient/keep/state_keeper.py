"""The door of this room: what the node has done about state that its workers keep."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from coordinatord.protocol.fields import COUNTER_MAX, DURATION_S_MAX, MESSAGE_MAX, STEP_MAX
from coordinatord.protocol.kept_state import Holding, Keeper, KeptParts, Restoring, Resume
from coordinatord.protocol.messages import Observed
from coordinatord.protocol.text import clip
from coordinatord.runtime.tasks import Tasks
from nodeclient.core import kept_groups
from nodeclient.core.effects import HaltWorkers, Level, Protect, Restore, SaveKept
from nodeclient.core.events import Event, Keeping, KeptChanged, KeptSaved
from nodeclient.host.devices import Host
from nodeclient.host.memory import memory
from nodeclient.keep.arenas import Arenas, Held, KeepSettings, NoMemoryError, part_of, size_in_words
from nodeclient.keep.digests import Digests, withdraw
from nodeclient.keep.part_messages import Kind, PartName
from nodeclient.keep.part_server import PartServer
from nodeclient.keep.restoration import DamagedError, Restoration, RestoreError
from nodeclient.keep.worker_channel import WorkerChannel
from workerlib.env import KEEP
from workerlib.keep.arena import ArenaError, ArenaSizes
from workerlib.keep.channel_messages import (
    BEFORE_NAMED,
    DESCRIPTORS_MAX,
    NOTHING,
    AskRestore,
    HaltAt,
    Halted,
    Interval,
    Message,
    NotSaved,
    RefusedMemory,
    Reserve,
    Reserved,
    ResumeFrom,
    Saved,
    SaveNow,
)

THREADS = 8
"""How many parts are received or checked at a time."""

Notify = Callable[[Level, str, str], None]
"""Shows the user a line: how much it matters, the text, and what has happened as an identifier."""


@dataclass(slots=True)
class _Round:
    """What this room knows of one round."""

    number: int = 0
    keepers: set[int] = field(default_factory=set)
    """The local ranks of workers that have an arena."""
    reserving: set[int] = field(default_factory=set)
    asking: set[int] = field(default_factory=set)
    """Those that wait for what they resume from."""
    resumed: set[int] = field(default_factory=set)
    """Those that have it."""
    saving: set[int] = field(default_factory=set)
    """Those that were asked to save and have not answered."""
    saved: bool = False
    """Some worker has saved its state when it was asked to."""
    why_not: str = ""
    """Why a worker has not."""
    promised: dict[int, int] = field(default_factory=dict)
    """The step that each worker does not go beyond, once it was asked to stand still."""
    intervals: dict[int, Interval] = field(default_factory=dict)
    answer: ResumeFrom | None = None
    """What the workers resume from, without the parts; None until these are ready."""
    restoration: Restoration | None = None
    getting: asyncio.Task[None] | None = None
    restoring: Restoring = Restoring.NOTHING
    problem: str = ""

    @property
    def trouble(self) -> str:
        """Why parts could not be had, or not yet; empty if all is well."""
        if self.problem or self.restoring is not Restoring.FETCHING or self.restoration is None:
            return self.problem
        return self.restoration.problem

    @property
    def halts_after(self) -> int | None:
        """The step that no worker goes beyond before it is told to; None before all of them have promised one."""
        promised = self.promised
        return max(promised.values()) if promised and promised.keys() >= self.keepers else None


class StateKeeper:
    """Keeps state for the workers of one node, and gives it to those of later rounds, here and on other nodes.

    Must be made in the running loop. Raises `OSError` if there is no port.
    """

    def __init__(
        self,
        settings: KeepSettings,
        node: str,
        workers: int,
        submit: Callable[[Event], None],
        notify: Notify,
        tasks: Tasks,
    ) -> None:
        """Begin with nothing. If the limit is 0, nothing is kept, and no port is needed."""
        self._settings = settings
        self._node = node
        self._workers = workers
        self._submit = submit
        self._notify = notify
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="kept-state")
        self._digests = Digests(self._threads)
        self._tasks = tasks
        self._arenas = Arenas(settings.limit_bytes, lambda: memory(Host()).available)
        self._channel = WorkerChannel(self._hear, self._lose)
        self._key = secrets.token_hex(16)
        self._server = PartServer(self._key, self) if settings.limit_bytes else None
        self.run = ""
        """The run whose state is kept."""
        self._round = _Round()
        self._asked = 0
        """The number of the last request to save."""
        self._save_s: float | None = None
        self._listens = True

    @property
    def offer(self) -> Keeper | None:
        """How other nodes get at what is kept here; None if nothing is."""
        if self._server is None:
            return None
        return Keeper(self._server.port, self._key, self._settings.limit_bytes)

    def close(self) -> None:
        """Drop everything."""
        self._give_up()
        if self._server is not None:
            self._server.close()
        self._channel.close()
        self._arenas.drop()
        self._threads.shutdown(wait=False, cancel_futures=True)

    # What the agent wants

    def carry_out(self, order: Restore | Protect | SaveKept | HaltWorkers) -> None:
        """Do what the agent of this node wants."""
        match order:
            case Restore():
                self._restore(order)
            case Protect(run, steps):
                if run == self.run:
                    self._arenas.protect({(at.round, at.step) for at in steps})
            case SaveKept(planned):
                self._ask(lambda number: SaveNow(number, planned))
            case HaltWorkers(step):
                self._ask(lambda number: HaltAt(number, BEFORE_NAMED if step is None else step))

    def _restore(self, order: Restore) -> None:
        """Get ready what the workers of a round resume from; a first order for another round begins that one."""
        if (order.run, order.round) != (self.run, self._round.number):
            self._give_up()
            self._round = _Round(order.round)
        if order.run != self.run:
            self._arenas.drop()
            self.run, self._save_s = order.run, None
        resume, current = order.resume, self._round
        if resume is None:
            current.answer = NOTHING
            self._answer_all()
        elif resume.complete and current.restoring in {Restoring.NOTHING, Restoring.FETCHING}:
            self._give_up()
            current.restoring, current.problem = Restoring.FETCHING, ""
            current.restoration = Restoration(
                self.run, self._node, self._arenas, self._digests, self._threads, self._settings.patience_s
            )
            current.getting = self._tasks.spawn(self._get(current, current.restoration, resume), name="restore")

    def listen(self, folder: Path, round_number: int) -> dict[str, str]:
        """Let the workers of a round connect; return the variable that says where. Nothing if nothing is kept."""
        if self._server is None:
            return {}
        try:
            return {KEEP: self._channel.listen(folder, self._workers, round_number)}
        except OSError as error:
            if self._listens:
                text = f"no state of workers can be kept: they cannot connect to this node: {error.strerror}"
                self._notify(Level.WARNING, text, "state_not_kept")
            self._listens = False
            return {}

    def _ask(self, question: Callable[[int], SaveNow | HaltAt]) -> None:
        """Have the workers save, now or after a step; `KeptSaved` follows."""
        self._asked += 1
        saving = self._round.keepers & self._channel.connected
        self._round.saving = set(saving)
        for local_rank in saving:
            self._channel.send(local_rank, question(self._asked))
        if not saving:
            self._submit(KeptSaved())

    def note_exit(self, local_rank: int) -> None:
        """Note that a worker has ended."""
        self._lose(local_rank)

    def note_end(self) -> None:
        """Note that all workers of the round have ended: what they kept does not change any more."""
        self._channel.close()
        self._note_digests(Kind.BIG, Kind.SMALL)

    def complete(self, observed: Observed) -> Observed:
        """Return the node's report completed with what is kept, if it is about the same run."""
        if observed.run != self.run:
            return observed
        current = self._round
        here = observed.round == current.number
        parts = kept_groups.merged(self._parts(with_small=not observed.phase.has_workers))
        intervals = current.intervals.values()
        steps = max((interval.steps for interval in intervals), default=0)
        holding = Holding(
            parts=kept_groups.grouped(parts),
            restoring=current.restoring if here else Restoring.NOTHING,
            problem=clip(current.trouble, MESSAGE_MAX) if here else "",
            interval_steps=min(steps, STEP_MAX) or None,
            save_s=None if self._save_s is None else min(self._save_s, DURATION_S_MAX),
            used_bytes=self._arenas.used_bytes,
            skipped=min(sum(interval.skipped for interval in intervals), COUNTER_MAX),
            can_halt=here and len(current.keepers) == self._workers,
            halts_after=current.halts_after if here else None,
        )
        return observed if holding == _NOTHING_HELD else replace(observed, kept=holding)

    # What other agents want

    def find(self, name: PartName) -> Held | None:
        """Return a part of the present run if it is held."""
        return self._arenas.find(name.rank, name.round, name.step, name.kind)

    def note_damage(self, held: Held) -> None:
        """Withdraw a part that is not what was saved."""
        if withdraw(held.place, held.commit):
            commit = held.commit
            text = (
                f"what was kept of rank {commit.rank} at step {commit.step} is not what was saved: its digest does not "
                "match. It is not used; the memory of this host may be bad"
            )
            self._notify(Level.WARNING, text, "state_damaged")
            self._submit(KeptChanged())

    # What workers say

    def _hear(self, local_rank: int, message: Message) -> None:
        current = self._round
        match message:
            case Reserve():
                if local_rank not in current.reserving:
                    current.reserving.add(local_rank)
                    self._tasks.spawn(self._reserve(current, local_rank, message), name="reserve")
            case AskRestore():
                current.asking.add(local_rank)
                self._answer_all()
            case Saved():
                self._save_s = message.seconds
                self._arenas.drop_superseded()
                if not message.asked:  # else all workers are about to end, and `note_end` follows
                    self._note_digests(Kind.BIG)
                current.saved |= message.asked > 0
                self._note_answer(local_rank, message.asked)
            case NotSaved():
                current.why_not = message.why
                self._note_answer(local_rank, message.asked)
            case Halted():
                current.promised[local_rank] = min(message.step, STEP_MAX)
                if current.promised.keys() >= current.keepers:
                    self._submit(KeptChanged())
            case Interval():
                current.intervals[local_rank] = message

    def _lose(self, local_rank: int) -> None:
        current = self._round
        current.keepers.discard(local_rank)
        current.asking.discard(local_rank)
        self._note_answer(local_rank, self._asked)

    def _note_answer(self, local_rank: int, asked: int) -> None:
        saving = self._round.saving
        if asked == self._asked and local_rank in saving:
            saving.remove(local_rank)
            if not saving:
                if self._round.why_not and not self._round.saved:
                    text = f"no worker has saved its state at the end of round {self._round.number}"
                    self._notify(Level.INFO, f"{text}: {self._round.why_not}", "state_not_saved")
                self._submit(KeptSaved())

    async def _reserve(self, current: _Round, local_rank: int, wanted: Reserve) -> None:
        try:
            file = await self._arenas.reserve(local_rank, ArenaSizes.at_least(wanted.generation, wanted.small))
        except (NoMemoryError, ArenaError) as error:
            self._notify(Level.WARNING, f"the state of local rank {local_rank} is not kept: {error}", "state_not_kept")
            self._channel.send(local_rank, RefusedMemory(str(error)))
        else:
            is_first = local_rank not in current.keepers
            current.keepers.add(local_rank)
            if current is self._round:
                self._channel.send(local_rank, Reserved(), [file])
                self._submit(Keeping(self._settings.save_within_s(self._arenas.used_bytes)))
                if is_first and len(current.keepers) == self._workers:
                    self._submit(KeptChanged())  # so that a round that is stopped within its first second loses no step
        finally:
            current.reserving.discard(local_rank)

    # What a round resumes from

    async def _get(self, current: _Round, restoration: Restoration, resume: Resume) -> None:
        began = self._loop.time()
        try:
            await restoration.get(resume)
        except (RestoreError, OSError) as error:
            if isinstance(error, DamagedError):
                self.note_damage(error.held)
                current.problem = str(error)
                await asyncio.sleep(self._settings.patience_s)  # and is cancelled if another holder is named
            current.restoring, current.problem = Restoring.FAILED, str(error)
            text = f"round {current.number} cannot resume at step {resume.step} from memory: {error}"
            self._notify(Level.WARNING, text, "state_not_restored")
            self._submit(KeptChanged())
            return
        current.restoring = Restoring.READY
        current.answer = ResumeFrom(resume.round, resume.step, resume.world_size, ())
        self._notify(
            Level.INFO, _resumed(current.number, resume, restoration, self._loop.time() - began), "state_ready"
        )
        self._answer_all()

    def _answer_all(self) -> None:
        """Give the workers that ask what they resume from, if it is ready."""
        current = self._round
        if current.answer is None:
            return
        ready = [] if current.restoration is None else current.restoration.ready.parts
        batches = [ready[at : at + DESCRIPTORS_MAX] for at in range(0, len(ready), DESCRIPTORS_MAX)] or [[]]
        for local_rank in current.asking:
            for number, batch in enumerate(batches, start=1):
                parts, more = tuple(part for part, _ in batch), number < len(batches)
                self._channel.send(
                    local_rank, replace(current.answer, parts=parts, more=more), [file for _, file in batch]
                )
        current.resumed |= current.asking
        current.asking.clear()
        if len(current.resumed) == self._workers and current.restoration is not None:
            current.restoration.ready.close(self._arenas)

    def _give_up(self) -> None:
        """Stop to get what the present round was to resume from."""
        if self._round.getting is not None:
            self._round.getting.cancel()
        if self._round.restoration is not None:
            self._round.restoration.give_up()

    # What is kept

    def _parts(self, *, with_small: bool) -> Iterable[KeptParts]:
        for held in self._arenas.held():
            protected = self._arenas.is_protected(held.commit)
            if held.kind is Kind.BIG or with_small or protected:
                part = part_of(held, protected=protected)
                if part is not None:
                    yield part

    def _note_digests(self, *kinds: Kind) -> None:
        self._digests.note(held.place for held in self._arenas.held() if held.kind in kinds)


_NOTHING_HELD = Holding(())


def _resumed(number: int, resume: Resume, restoration: Restoration, took_s: float) -> str:
    ready = restoration.ready
    redone = "" if resume.redone is None else f", {resume.redone} steps redone"
    text = f"round {number} resumes at step {resume.step} from memory{redone}"
    if ready.received:
        size = size_in_words(ready.received_bytes)
        return f"{text}: {ready.received} of {len(ready.parts)} parts, {size}, came from other nodes in {took_s:.2g} s"
    return f"{text}: all of it is on this host"
