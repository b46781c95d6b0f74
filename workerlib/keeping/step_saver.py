"""Saves the state of a step: the small state at its end, the big state when that is due or requested.

How much a worker has to save depends on which ranks have the same state (`StepCommits`). Where all are alike, as under
DDP, two workers of a node save the big state, and mostly only when the round breaks: the survivors still have it then.
Where each rank has its own, as with FSDP, a dead rank's is lost unless it was saved before, so each saves at an
interval. `SaveRole` says what a worker saves, and when.

The keeper calls `begin` and `ask_for_memory` before the first step. In each step it calls `on_forward` and `on_change`,
which save a pending small state, and at the end `keep_step`, `compare` and `report_digest`. It calls `save` when
nodeclient requests that, and when training ends. If a save fails, the answer to nodeclient has the reason. If state
cannot be kept, saving ends and training goes on.

All of this runs in the training thread, but for `save` on request, `attach`, `record_comparison` and `expect_disk`,
which the thread that reads from nodeclient calls. `keep_step`, `save`, `attach` and `release` need the whole state, so
the keeper holds its `StateLock` then. Without it, only pending small states are written, under `SmallStateWriter.lock`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from workerlib import progress
from workerlib.contract.arena import PENDING, Arena, Commit
from workerlib.contract.channel_messages import FirstState, Message, NotSaved, Pageable, Saved
from workerlib.contract.env import DIGESTS, WorkerEnvironment
from workerlib.keeping.arena_request import ArenaRequest
from workerlib.keeping.gate import TorchGroups
from workerlib.keeping.generations import GenerationWriter, NotNowError
from workerlib.keeping.intervals import DISK_SHARE, HEARD_S, DigestInterval, SaveInterval
from workerlib.keeping.kept_errors import KeptStateError
from workerlib.keeping.pieces import is_sharded, shard_of
from workerlib.keeping.restoring import RestorePoint
from workerlib.keeping.small_state import SmallSnapshot, SmallStateWriter
from workerlib.keeping.step_numbers import StateEvent, StateStage, StepNumbers
from workerlib.keeping.tensor_digest import digest_of

LOG = logging.getLogger("workerlib.keeping")


class StepCommits:
    """Makes the `Commit` of each step of this rank: it says which shard of the state the rank has.

    Which ranks have the same state follows from sharded tensors. Without any, the states after the first step are
    compared: the stages of a pipeline may have tensors of the same names and sizes, with different contents.
    """

    def __init__(self, environment: WorkerEnvironment, tensors: Iterable[torch.Tensor]) -> None:
        self._environment = environment
        tensors = list(tensors)
        self.shard, self.shards = shard_of(tensors, environment.rank, environment.world_size)
        self.has_sharded = any(map(is_sharded, tensors))
        """Whether there are DTensors, even if this rank has the whole of them: each refers to a process group."""
        self.has_unique_state = environment.world_size == self.shards
        """Whether no other rank has this rank's state."""
        self.knows_replicas = self.has_unique_state or self.has_sharded
        """Whether it is known if other ranks have the same state. Until then, only small states are saved."""
        self.is_comparison_requested = False
        """Whether the coordinator was asked to compare the states of all ranks."""
        self.answered = threading.Event()
        """Set when the answer is there, or not needed any more."""
        if not self.knows_replicas:  # ranks may differ, so no rank may restore what another one saves until then
            self.shard, self.shards = environment.rank, environment.world_size
        self._resumed_step = -1
        """The step that this round resumes from; -1 if there is none."""
        self._resumed_round: int | None = None
        """The round that did this step, if its world size and its number of shards are those of this round."""

    @property
    def shard_of_memory(self) -> tuple[int, int]:
        """The shard to request memory for, and the number of shards: before a comparison, as if all ranks were alike.

        If they are, nodeclient lends the memory of ended workers to living ones with the same shard. If they prove
        different, nodeclient lends none: the result comes to this worker through it.
        """
        return (self.shard, self.shards) if self.knows_replicas else (0, 1)

    @property
    def problem(self) -> str:
        """Why no state can be saved; empty if it can."""
        return "" if self.knows_replicas else "it is not known yet whether all ranks have the same state"

    def record_comparison(self, *, alike: bool) -> None:
        """Record whether all ranks have the same state, or each has its own."""
        self.knows_replicas, self.has_unique_state = True, not alike
        if alike:
            self.shard, self.shards = 0, 1

    def resume(self, point: RestorePoint) -> None:
        """Resume from a step; all ranks resume from the same state, unless each has its own."""
        self._resumed_step = point.step
        if not self.knows_replicas:
            self.record_comparison(alike=not point.is_per_rank)
        if point.shape == (self._environment.world_size, self.shards):
            self._resumed_round = point.round

    def is_from_other_ranks(self, step: int) -> bool:
        """Whether a step was done in a round with other ranks or shards."""
        return step == self._resumed_step and self._resumed_round is None

    def commit_of(self, step: int, flags: int = 0) -> Commit:
        """Return the commit of a step, without its length and serial.

        For the step that this round resumes from, it names the round that did the step: the arena may have that commit.
        """
        environment, round_ = self._environment, self._environment.round
        if step == self._resumed_step and self._resumed_round is not None:
            round_ = self._resumed_round
        place = (environment.rank, environment.world_size, self.shard, self.shards)
        return Commit(step, round_, 0, *place, serial=0, flags=flags)


SAVERS = 2
"""How many workers of each node save big state that all ranks have alike: one of them may be the one that died."""

COMPARED_WITHIN_S = 5.0
"""How long training waits for others' first states: one lease, within which a restarted coordinator is back."""

COMPARED_AFTER = 32
"""How many steps lead to a comparison even if no change was seen: writes to `.data`, and by a collective, are not seen.
A gradient scaler skips fewer steps at first, since it begins at 2**16 and halves that at each."""

_SMALL_IS_LATER = "batches were done since that step, so random numbers and buffers are later ones"


@dataclass(slots=True)
class SaveRole:
    """Which states this worker saves, and when."""

    saves_big: bool
    """Whether it saves big states."""
    saves_small: bool = False
    """Whether it saves the small state of each step. A rank with a state of its own and buffers on a GPU does not: a
    copy of the buffers waits for the GPU. It saves the small state only together with the big one, which suffices,
    since it resumes only from steps whose big state it has saved."""
    saves_at_intervals: bool = False
    """Whether it saves big states at an interval too, because a save when the round breaks may fail or be late. That is
    so for a state of its own or on a GPU (`_update_role`), if ranks meet in collectives while parameters change
    (`on_forward`, `keep_step`), and if steps are written to a disk (`expect_disk`). Once set, it stays set."""


class StepSaver:
    """Writes steps of one round into the arena of this worker, as `SaveRole` says.

    The keeper calls it at each event of training, and when nodeclient requests a save.
    """

    def __init__(
        self,
        environment: WorkerEnvironment,
        generations: GenerationWriter,
        small: SmallStateWriter,
        report: Callable[[Message], None],
    ) -> None:
        """Begin without memory; `report` sends a message to nodeclient, if that is still there."""
        self._generations = generations
        self._small = small
        self._report = report
        self.numbers = StepNumbers()
        self.commits = StepCommits(environment, [tensor for _, tensor in generations.tensors()])
        self.memory = ArenaRequest(report)
        self.role = SaveRole(saves_big=environment.worker < SAVERS)
        self._update_role()
        self.interval = SaveInterval()
        if environment.group_world_size > 1:
            self.interval.raise_pause(HEARD_S)
        self._digests = DigestInterval()
        self._makes_digests = os.environ.get(DIGESTS) != "0"
        self._begun_before_change: int | None = None
        """How many collectives had begun before parameters could change in this step: with an optimizer, at its first
        step (`on_change`), and without one at the end of the step before (`keep_step`). None if that is not known."""
        self._newest: int | None = None
        """The step whose big state was saved last in this round; None if none was."""

    def _update_role(self) -> None:
        self.memory.shard = self.commits.shard_of_memory
        self.role.saves_small = not (self.has_unique_state and self._small.on_device)
        self.role.saves_big |= self.has_unique_state
        self.role.saves_at_intervals |= self.has_unique_state or self._generations.on_device

    @property
    def has_unique_state(self) -> bool:
        """Whether no other rank has this rank's state."""
        return self.commits.has_unique_state

    @property
    def last_step(self) -> int:
        """The last step that can be saved; -1 if there is none."""
        return self.numbers.last_step

    @property
    def has_saved_last(self) -> bool:
        """Whether the big state of the last step is saved."""
        return self._newest == self.last_step

    @property
    def is_whole_between_steps(self) -> bool:
        """Whether any thread that holds the lock between two steps can save the last one.

        The small state of that step has to be saved already. With a state of its own, a rank also needs an optimizer
        that calls hooks, since only these tell when the next step begins.
        """
        return self.role.saves_small and (not self.has_unique_state or self.numbers.has_optimizer)

    # The beginning and the end

    def begin(self, point: RestorePoint) -> None:
        """Begin with the present state, which is that of `point` if there is a step to resume from."""
        if point.step >= 0:
            self.numbers.resume(point.step)
            self.commits.resume(point)
            self._update_role()
        self._generations.record_step()

    def ask_for_memory(self, restored: Mapping[str, Any]) -> None:
        """Request memory before the first step, and wait for it: this rank may die after its part in that step."""
        self._check_sizes(self._small.first_snapshot(restored), at_once=True)
        self.memory.await_answer()

    def attach(self, arena: Arena, *, lent: bool) -> None:
        """Use an arena from now on, and write the small state that waits for it.

        A `lent` arena is that of an ended worker with the same shard. It comes if no living worker of the node has
        memory for that shard, so this one now saves the big state, and only that: the small states in the arena are
        those of the ended rank. It answers no request of this worker, so `ArenaRequest.finish` is not called.
        """
        with self._small.lock:
            self._generations.attach(arena, lambda why: self._report(Pageable(why)))
            if lent:
                self.role.saves_big = True
                self.memory.arena = arena
                return
            self._small.attach(arena)
            waiting = self.memory.receive(arena)
            if waiting is not None and waiting.step == self.last_step >= 0:
                commit = self.commits.commit_of(waiting.step)
                if self._small.find(commit) is None:
                    self._small.write(waiting.state, commit)
        self.memory.finish()

    def compare(self) -> None:
        """Have the state after the first step compared with those of the other ranks, and wait for the answer.

        This does nothing before training has probably changed the state: until then, ranks that will differ may still
        be alike. A gradient scaler, for example, often leaves out the first steps.
        """
        commits, is_kept = self.commits, self.numbers.stage is not StateStage.UNKEPT
        if not is_kept or commits.knows_replicas or commits.is_comparison_requested or not self._is_trained:
            return
        commits.is_comparison_requested = True
        if (digest := self._digest(self._generations.tensors)) is not None:
            self._report(FirstState(digest))
            commits.answered.wait(COMPARED_WITHIN_S)

    def record_comparison(self, *, alike: bool) -> None:
        """Record whether all ranks have the same state; if not, this rank saves its own at an interval."""
        if not self.commits.knows_replicas:
            self.commits.record_comparison(alike=alike)
            self._update_role()
        self.commits.answered.set()

    def report_digest(self) -> None:
        """Report a digest of the state after the last step if one is due, and if other ranks should have the same."""
        if not self._makes_digests or self.has_unique_state or not self.commits.knows_replicas or self.numbers.problem:
            return
        is_due = self._digests.is_due(self.last_step, time.monotonic()) and not self._generations.has_unequal_inputs
        if is_due and (digest := self._digest(self._generations.replicas)) is not None:
            progress.report_digest(self.last_step, self.commits.shard, digest)

    def _digest(self, tensors: Callable[[], list[tuple[str, torch.Tensor]]]) -> int | None:
        """Return a digest of tensors; None if that cannot be made, and then this worker keeps nothing more."""
        try:
            taken_s = self._generations.stopwatch()
            digest = digest_of(tensors())
            self._digests.record(self.last_step, taken_s(), time.monotonic())
        except (KeptStateError, RuntimeError) as error:  # state that cannot be kept, or a layout without bits to read
            self._stop_keeping(str(error))
            return None
        return digest

    def expect_disk(self, every_s: float) -> None:
        """Save at intervals also if all ranks are alike: nodeclient writes a step to a disk every `every_s` seconds."""
        if not self.has_unique_state:
            self.role.saves_at_intervals = True
            self.interval.raise_pause(DISK_SHARE * every_s)

    def accept_last_changes(self) -> None:
        """Count what the script has changed since the last step, in tensors of kept dicts and lists, as part of it.

        Training is over, so no later step has these changes. If the script has also changed values or lists there,
        nothing is saved: the small state of the step has the former values, which do not fit these tensors.
        """
        with suppress(KeptStateError):  # the save says why
            if self._small.has_last_contents():
                self._generations.record_unhooked()

    def release(self) -> None:
        """Record that the script may change the state from now on, unobserved.

        State that other ranks have too may still be saved after that. Its small state was saved at the end of the step,
        and `_obstacle` finds out whether the rest has changed since.
        """
        if self.has_unique_state:
            self.numbers.apply(StateEvent.TORN)

    # Events of training

    def has_trained(self) -> bool:
        """Whether training without hooks has changed the state since the last step; False once hooks are called."""
        return not self.numbers.has_optimizer and self._generations.has_trained()

    def on_forward(self, *, with_gradients: bool, in_step: bool) -> None:
        """Save the small state after a forward, as pending: from now on this rank may contribute to the step.

        The other ranks may then complete the step without this rank, so its own state of the step must be saved before.
        The keeper sets no hook for this where this rank has unique state, since nobody completes a step without it.

        A forward without gradients, such as an evaluation, contributes nothing, yet it may change the random state. So
        a pending state is saved again then. Once an optimizer has begun its step (`in_step`) it is not: within an
        evaluation after that, the random state is not one to go on with.
        """
        # Parameters may have changed in this step already, in a closure or by another optimizer. Then the state is that
        # of no step. If a rank dies now, the others hang in the collectives of this forward, and cannot save such a
        # state when the round breaks. So all ranks need a step that was saved before, at an interval.
        self.role.saves_at_intervals |= in_step or self._generations.has_changed()
        renews_pending = self._small.is_pending and not in_step
        if with_gradients or renews_pending:
            self._write_pending(at_optimizer=False)

    def on_change(self) -> None:
        """Save the small state of the step as pending, before its parameters change."""
        if not self.numbers.is_changing:
            self._begun_before_change = TorchGroups().begun_count()
            self.role.saves_at_intervals |= self._generations.has_changed()  # as in `on_forward`
        if not self.has_unique_state:  # otherwise nobody completes the step without this rank
            self._write_pending(at_optimizer=True)

    def _write_pending(self, *, at_optimizer: bool) -> None:
        if self.memory.arena is None or self.numbers.stage is StateStage.UNKEPT:
            return
        try:
            snapshot = self._small.pending_snapshot(at_optimizer=at_optimizer)
        except KeptStateError:
            return  # the end of the step reports it
        self._small.write(snapshot, self.commits.commit_of(self.numbers.next_step, PENDING))

    def keep_step(self) -> bool:
        """Save the small state of a step, and the big one if it is due; return False if the step does not count.

        A step does not count if the round broke while the GPU waited for collectives of the step: see `gate`.
        """
        if self.numbers.stage is StateStage.UNKEPT:
            return True
        try:
            if not self._generations.record_step():
                self.numbers.apply(StateEvent.TORN)
                return False
            # A rank that dies while others wait for it in a collective of the optimizer leaves them with a state that
            # is not whole, as in `on_forward`. Before training has changed anything, the state is always whole.
            if not self.role.saves_at_intervals:
                self.role.saves_at_intervals = self._is_trained and self._collectives_began()
            if not self.numbers.has_optimizer:
                self._begun_before_change = TorchGroups().begun_count()
            if self.role.saves_small:
                snapshot = self._small.snapshot()
                fits = self._write_small(snapshot)
                # While memory is awaited, `_check_sizes` puts this snapshot in the place of the one that waits for it.
                at_once = not fits or self.memory.awaited or self._generations.has_changed_size()
                self._check_sizes(snapshot, at_once=at_once)
            if self.role.saves_at_intervals and self.role.saves_big:
                self._save_if_due()
        except KeptStateError as error:  # training goes on without kept state
            self._stop_keeping(str(error))
        return True

    @property
    def _sees_changes(self) -> bool:
        """Whether a change of the state by training was seen: by an optimizer's hook, or in a sample of tensors."""
        return self.numbers.has_optimizer or self._generations.is_trained

    @property
    def _is_trained(self) -> bool:
        """Whether a step has probably changed the state: that was seen, or many steps were done."""
        return self._sees_changes or self.numbers.count >= COMPARED_AFTER

    def _collectives_began(self) -> bool:
        """Whether collectives have begun since parameters could first change in this step; False if not known."""
        return self._begun_before_change is not None and self._begun_before_change != TorchGroups().begun_count()

    def _stop_keeping(self, problem: str) -> None:
        """Keep nothing any more, and report why."""
        self.numbers.stop_keeping(problem)
        self.memory.refuse(problem)
        self._report(NotSaved(problem))

    def _save_if_due(self) -> None:
        interval, arena = self.interval, self.memory.arena
        is_due = interval.end_step(self.last_step, time.monotonic())
        if arena is not None and is_due and not self._generations.is_preparing:
            answer = self.save(0, last=False)
            if isinstance(answer, NotSaved):
                interval.record_skip()
            elif answer.length:  # 0 if the step was saved before, which took no time
                interval.record_save(answer.seconds)
            self._report(answer)
            if (news := interval.news()) is not None:
                self._report(news)
        elif not self.role.saves_small and self._is_check_due:  # otherwise `keep_step` has checked the sizes
            self._check_sizes(self._small.snapshot(), at_once=True)
        interval.begin_step(self.last_step, time.monotonic())

    # Saving

    def save(self, asked: int, *, last: bool, gpu_within_s: float | None = None) -> Saved | NotSaved:
        """Save the last step; `asked` is the number of the request or 0, and `last` marks the last save of a round.

        The GPU has `gpu_within_s` to come to the end of the step; None for as long as it takes, if no peer has failed.
        If the small state is not saved at each step, it is read now; then only the training thread calls this.
        """
        # The small state is saved already, or the state is torn, and the answer only says if the step was saved.
        if self.role.saves_small or self.numbers.stage is StateStage.TORN:
            return self._save_big(asked, last, gpu_within_s)
        if why := self._obstacle() or (_SMALL_IS_LATER if self.numbers.is_accumulating else ""):
            return NotSaved(why, asked)
        try:
            snapshot = self._small.snapshot()
        except KeptStateError as error:  # a value has become one that cannot be kept
            return NotSaved(str(error), asked)
        self._write_small(snapshot)
        answer = self._save_big(asked, last, gpu_within_s)
        try:
            self._check_sizes(snapshot, at_once=not isinstance(answer, Saved))
        except KeptStateError as error:
            return answer if isinstance(answer, Saved) else NotSaved(str(error), asked)
        return answer

    def _write_small(self, snapshot: SmallSnapshot) -> bool:
        """Write the small state of the last step; return False if there is no room for it."""
        return self._small.write(snapshot, self.commits.commit_of(self.last_step))

    def _save_big(self, asked: int, last: bool, gpu_within_s: float | None) -> Saved | NotSaved:
        """Save the big state of the last step, with the small state that was written at its end."""
        commit = self.commits.commit_of(self.last_step)
        if self.has_saved_last or self._generations.has(commit):
            return Saved(self.last_step, 0.0, 0, asked)
        if why := self._obstacle():
            return NotSaved(why, asked)
        began_at = time.monotonic()
        try:
            small, stride, watch = self._small.find(commit), self.interval.stride, self.role.saves_small
            length = self._generations.write(
                commit, small, stride=stride, last=last, gpu_within_s=gpu_within_s, watch=watch
            )
        except (NotNowError, KeptStateError, RuntimeError) as error:  # RuntimeError: a GPU that no longer answers
            return NotSaved(str(error), asked)
        self._newest = self.last_step
        return Saved(self.last_step, time.monotonic() - began_at, length, asked)

    def _obstacle(self) -> str:
        """Return why the last step cannot be saved; empty if it can."""
        if why := self.numbers.problem or self.commits.problem:
            return why
        if not self.role.saves_big:
            return "other workers of this node save the same state"
        if why := self.memory.obstacle():
            return why
        if self.commits.is_from_other_ranks(self.last_step):
            return "no step was done since this round began, and the step that it resumed from is kept"
        if not self.role.saves_small:  # then the training thread saves, and is between two steps
            return ""
        # Another thread may save when an optimizer without hooks has begun the next step. Changed tensors show that. If
        # not even changes of tensors are seen, a new collective shows it: it may have written part of its result.
        changed = self._generations.has_changed() or (not self._sees_changes and self._collectives_began())
        return "tensors have changed since the last step was done" if changed else ""

    @property
    def _is_check_due(self) -> bool:
        """Whether this step is the first one, the second, the fourth, the eighth, and so on."""
        return not self.numbers.count & (self.numbers.count - 1)

    def _check_sizes(self, snapshot: SmallSnapshot, *, at_once: bool) -> None:
        """Request memory at the first step, and check at some steps, or `at_once`, whether it still suffices."""
        if not (at_once or self._is_check_due):
            return
        small = self._small.bytes_needed(snapshot)
        # Most optimizers make their state in the first step, and its size is not known before.
        big = self._generations.bytes_needed(small) if self.role.saves_big and self.last_step >= 0 else 0
        self.memory.want(big, small, self.last_step, snapshot)
