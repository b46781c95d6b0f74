"""Keeps the state of scripts that call `torch.distributed.checkpoint`, by a StorageWriter and a StorageReader.

    dcp.save(state, storage_writer=workerlib.KeptWriter(step))

    reader = workerlib.KeptReader()
    if reader.step >= 0:
        dcp.load(state, storage_reader=reader)

A writer saves all state of this rank into the memory of its node, from where the next round loads it. In torch's global
plan, only one rank saves state that several have, and its node may be lost. So a writer goes by the rank's own plan. A
save that lacks memory is left out with a warning, and training goes on. torch pickles each value that is not a tensor;
a pickle may have only types that torch trusts, numpy's, and a few of Python's.
"""

from __future__ import annotations

import codecs
import hashlib
import io
import logging
import os
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta, timezone
from functools import cache
from itertools import count
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import create_default_local_save_plan
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from workerlib import progress, responder
from workerlib.contract.arena import CHOSEN, WITH_SMALL, Arena, Commit, refusal_text
from workerlib.contract.channel_messages import (
    Interval,
    Message,
    NotSaved,
    RefusedMemory,
    Reserve,
    Reserved,
    Saved,
    SaveNow,
)
from workerlib.contract.env import KEEP, WorkerEnvironment
from workerlib.contract.manifest import BYTES_MARK, Piece, lay_out
from workerlib.keeping import checkpoints, restoring
from workerlib.keeping.arena_request import SLACK
from workerlib.keeping.generations import read_generation, small_offset
from workerlib.keeping.keep_channel import connect_if_offered
from workerlib.keeping.kept_errors import KeptStateError
from workerlib.keeping.pieces import SavedTensors, narrow, views_of
from workerlib.keeping.planned_end import PlannedEnd
from workerlib.keeping.small_state import copy_tensors

LOG = logging.getLogger("workerlib.keeping")

_NO_SMALL_STATE = b'{"values":{},"random":{}}'
"""The small state of a save. It is empty, since the script gives torch all of its state as big state, and is there
because a generation of `ctx.keep` has one, and both are read alike."""

WITHIN_S = 60.0
"""How long a save waits for its memory. Much new memory takes seconds, and the script may not save again for long."""

_USED_BY = "KeptReader or KeptWriter"

_SAVES = count(1)
"""Numbers the saves of this process."""


class _StorageConnection:
    """The connection of this process to nodeclient, which a writer and a reader share."""

    def __init__(self) -> None:
        """Connect, and wait until the state that the round resumes from is on this host. Raises `KeptStateError`."""
        responder.begin()
        self.environment = WorkerEnvironment.from_environ(os.environ)
        self.point: restoring.RestorePoint | None = restoring.RestorePoint(round=0, step=-1, parts=())
        """The state that the round resumes from, with step -1 if there is none. None from the first save on, so that
        its memory becomes free."""
        self.arena: Arena | None = None
        self.skipped = 0
        """How many saves were left out since no place was free."""
        self._refusal = ""
        """Why no memory is requested any more; empty as long as a request may succeed."""
        self._answered = threading.Event()
        """Cleared while a request for memory has no answer. Meanwhile saves neither request memory nor wait for it. It
        may stay cleared after a refusal, since no request follows one."""
        self._answered.set()
        self._warned: set[str] = set()
        """The reasons for which a save was left out with a warning."""
        self.last_step = -1
        """The step of the last save; -1 before the first one."""
        self._offered = -1
        """The step that was last to be saved, and may have been left out; -1 before the first one."""
        if KEEP in os.environ:  # otherwise there is no connection to share
            checkpoints.check_unused(_USED_BY)
        self._channel = connect_if_offered(self.environment)
        if self._channel is None:
            self._refusal = "this launcher offers no memory for it"
            return
        try:
            self.point = restoring.request_state(self._channel)
        except KeptStateError:
            self._channel.close()
            raise
        planned_end = PlannedEnd(self._channel)
        planned_end.listen(self._on_message, self._end_requests)
        checkpoints.connect(planned_end, _USED_BY)  # `should_checkpoint` goes by this connection too

    def stride_to(self, step: int) -> int:
        """Return how far this step is from the one that was to be saved before, for `Arena.begin_generation`."""
        before, self._offered = self._offered, step
        return step - before if 0 <= before < step else 1

    def is_new_step(self, step: int, length: int) -> bool:
        """Whether this step is higher than all before; warn if not, unless a planned end repeats the last step."""
        is_repeated_end = step == self.last_step and checkpoints.is_last()
        if step <= self.last_step and not is_repeated_end:
            self.warn("its step is not higher than that of an earlier save, which has to have all of the state", length)
        return step > self.last_step

    def reserve(self, length: int, shard: int, shards: int) -> Arena | None:
        """Return an arena for generations of `length` bytes; warn and return None if there is none."""
        if not self._has_room(length) and self._answered.is_set():
            # `_end_requests` sets the refusal and then the event. After this line, either the refusal is seen here, or
            # the event is set later and ends the wait.
            self._answered.clear()
            if not self._refusal:
                self.report(Reserve(generation=length + length // SLACK, small=0, shard=shard, shards=shards))
                self._answered.wait(WITHIN_S)
        if self._has_room(length):
            return self.arena
        self.warn(self._refusal or "its memory is not there yet", length)
        return None

    def _has_room(self, length: int) -> bool:
        return self.arena is not None and self.arena.sizes.generation >= length

    def skip_save(self, length: int) -> None:
        """Leave a save out, since all places hold steps that are still needed."""
        self.skipped += 1
        self.report(Interval(0, 0.0, self.skipped))  # only the skipped saves count: there is no interval
        self.warn("all places hold steps that are still copied or written: save less often", length)

    def warn(self, reason: str, length: int) -> None:
        """Warn that a save is left out, once for each reason."""
        if reason not in self._warned:
            self._warned.add(reason)
            LOG.warning("a checkpoint of %s bytes is not kept, and training goes on: %s", f"{length:,}", reason)

    def report(self, message: Message) -> None:
        """Send a message to nodeclient, if there is a connection."""
        if self._channel is not None:
            self._channel.report(message)

    def _end_requests(self) -> None:
        self._refusal = self._refusal or "the connection to nodeclient has ended"
        self._answered.set()

    def _on_message(self, message: Message, files: list[int]) -> None:
        match message:
            case Reserved(lent=False):  # a lent one is for `ctx.keep`, and answers no request
                try:
                    self.arena = Arena.attach(files[0], writable=True)
                except OSError as error:
                    self._refusal = refusal_text(error)
                self._answered.set()
            case RefusedMemory(why):
                self._refusal = why
                self._answered.set()
            case SaveNow():
                self.report(NotSaved("the script saves at steps of its own choice", message.number))
        for file in files:
            os.close(file)


@cache  # one process has one connection
def _open_connection() -> _StorageConnection:
    return _StorageConnection()


@dataclass(frozen=True, slots=True)
class PlanShard:
    """The shard that one rank has of a save; ranks whose plans have the same items have the same shard.

    A rank does not know the plans of other ranks, and torch's global plan leaves each shared item to only one rank. So
    each rank adds a digest to its plan, and the rank that gets all plans numbers the shards. torch may leave out plans
    that have not changed. Then each rank counts as having a shard of its own. That is always correct. If a host is lost
    then, however, no rank of another host can replace its state.
    """

    save: int
    """The number of the save: the answer to an earlier save, which has another number, is not used."""
    digest: bytes
    """A hash of the names and pieces in the rank's own plan."""
    shard: int = 0
    shards: int = 0
    """How many shards there are; 0 if they are not numbered."""


def _has_items(plan: SavePlan) -> bool:
    """Whether a plan came with its items: with plan caching, torch leaves out an unchanged one from 2.7 on."""
    return getattr(plan, "usable", True)


def own_shard(save: int, items: Iterable[WriteItem]) -> PlanShard:
    """Return the shard of a rank by the items of its own plan, without a number."""
    names = sorted((item.index.fqn, tuple(item.index.offset or ())) for item in items)
    return PlanShard(save, hashlib.blake2b(repr(names).encode(), digest_size=16).digest())


def number_shards(plans: list[SavePlan]) -> list[SavePlan]:
    """Return the plans of all ranks with the numbers of their shards; without numbers if any plan is left out."""
    found = [plan.storage_data for plan in plans if _has_items(plan) and isinstance(plan.storage_data, PlanShard)]
    if len(found) < len(plans):
        return [replace(plan, storage_data=None) for plan in plans]
    numbers = {digest: shard for shard, digest in enumerate(dict.fromkeys(each.digest for each in found))}
    return [
        replace(plan, storage_data=replace(each, shard=numbers[each.digest], shards=len(numbers)))
        for plan, each in zip(plans, found, strict=True)
    ]


class _WithoutNames:
    """A storage whose checkpoints have no names: the step identifies them."""

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Do nothing: there is nothing to prepare."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether this is a checkpoint's name: any is."""
        del checkpoint_id
        return True


class KeptWriter(_WithoutNames, StorageWriter):
    """Saves a state dict into the memory of this node, as the state of a step; all ranks give the same step.

    torch calls `prepare_local_plan` on each rank, `prepare_global_plan` on one rank, with the plans of all, and then
    `write_data` on each rank, with the global plan. By then, a shared item is in the plan of only one rank. So a rank
    saves the items of its own plan, and takes only its `PlanShard` from the global one.
    """

    def __init__(self, step: int) -> None:
        """Take a step that is higher than those of earlier saves. Raises `ValueError` if it is no step."""
        self._step = progress.whole_step(step)
        self._save = 0
        """The number of the present save."""
        self._own_plan = SavePlan([])
        """The plan of this rank for the present save."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Do nothing: no rank prepares anything of its own."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Record the plan of this rank, and add a description of its items."""
        self._own_plan, self._save = plan, next(_SAVES)
        return replace(plan, storage_data=own_shard(self._save, plan.items)) if _has_items(plan) else plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Return the plans of all ranks with the numbers of their shards."""
        return number_shards(plans)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Save all state of this rank. Raises `KeptStateError` for state that cannot be kept."""
        contents = [self._content(item, planner) for item in self._items(planner)]
        self._save_contents(_open_connection(), plan, contents)
        written: Future[list[WriteResult]] = Future()
        written.set_result([WriteResult(item.index, 0, None) for item in plan.items])
        return written

    def _save_contents(
        self, connection: _StorageConnection, plan: SavePlan, contents: list[tuple[Piece, torch.Tensor]]
    ) -> None:
        """Write the contents into a generation of the arena, or leave this save out with a warning."""
        connection.point = None
        layout = lay_out(piece for piece, _ in contents)
        small = lay_out(()).manifest + _NO_SMALL_STATE
        begin = small_offset(layout)
        length = begin + len(small)
        rank, world_size = connection.environment.rank, connection.environment.world_size
        shard, shards = self._shard_in(plan, contents, rank, world_size)
        stride = connection.stride_to(self._step)
        if not connection.is_new_step(self._step, length):
            return
        if (arena := connection.reserve(length, shard, shards)) is None:
            return
        began_at = time.monotonic()
        place = arena.begin_generation(self._step, stride, last=checkpoints.is_last())
        if place is None:
            connection.skip_save(length)
            return
        place.data[: len(layout.manifest)] = layout.manifest
        copy_tensors(views_of(layout, place.data), [tensor for _, tensor in contents])
        place.data[begin:length] = small
        place.commit(
            Commit(
                step=self._step,
                round=connection.environment.round,
                length=length,
                rank=rank,
                world_size=world_size,
                shard=shard,
                shards=shards,
                serial=arena.newest_serial() + 1,
                flags=WITH_SMALL | CHOSEN,
            )
        )
        connection.last_step = self._step
        connection.report(Saved(self._step, time.monotonic() - began_at, length))

    def _items(self, planner: Any) -> list[WriteItem]:
        """Return the items of this rank's own plan. Raises `KeptStateError`."""
        if _has_items(self._own_plan):
            return self._own_plan.items
        # torch has left out the items, as they are those of an earlier save. This writer may not have seen that save,
        # so they are made anew.
        try:
            return create_default_local_save_plan(planner.state_dict, planner.is_coordinator).items
        except AttributeError:
            raise KeptStateError(
                f"{type(planner).__name__} leaves out plans that have not changed, and does not say what is in them: "
                "give dcp.save a planner without enable_plan_caching"
            ) from None

    def _shard_in(
        self, plan: SavePlan, contents: list[tuple[Piece, torch.Tensor]], rank: int, world_size: int
    ) -> tuple[int, int]:
        """Return the number of this rank's shard, and how many shards there are; each rank has its own if unknown."""
        found = plan.storage_data
        if not isinstance(found, PlanShard) or found.save != self._save or not found.shards:
            return rank, world_size
        if found.shards == 1 and any(piece.sizes != piece.whole for piece, _ in contents):
            return rank, world_size  # a save without the process group: each rank was given only its own plan
        return found.shard, found.shards

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Do nothing: each part describes itself."""

    @staticmethod
    def _content(item: Any, planner: SavePlanner) -> tuple[Piece, torch.Tensor]:
        data: Any = planner.resolve_data(item)
        if item.type == WriteItemType.BYTE_IO:
            _check_pickle(item.index.fqn, data.getvalue())
            raw = torch.frombuffer(bytearray(data.getvalue()), dtype=torch.uint8)
            size = (raw.numel(),)
            return Piece(item.index.fqn + BYTES_MARK, "uint8", size, (0,), size, raw.numel()), raw
        chunk, tensor = item.tensor_data.chunk, data.detach()
        dtype = str(tensor.dtype).removeprefix("torch.")
        shapes = tuple(item.tensor_data.size), tuple(chunk.offsets), tuple(chunk.sizes)
        return Piece(item.index.fqn, dtype, *shapes, tensor.numel() * tensor.element_size()), tensor


class KeptReader(_WithoutNames, StorageReader):
    """Loads a state dict from kept state."""

    def __init__(self) -> None:
        """Wait until all parts are on this host. Raises `KeptStateError`, also if a writer has saved in this round."""
        point = _open_connection().point
        if point is None:
            raise KeptStateError("KeptReader came after a save of this round: make one reader, before the first save")
        self.step = point.step
        """The step that is kept; -1 if there is none."""
        self._saved = SavedTensors()
        for part, place, commit in point.generations:
            if part.big:
                layout, data, _ = read_generation(place, commit)
                self._saved.add(layout, data)

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Return the metadata of the kept state, out of all parts. Raises `KeptStateError` if no step is kept."""
        if self.step < 0:
            raise KeptStateError("no step is kept, so there is nothing to load: load only if the reader's step is >= 0")
        known: dict[str, Any] = {}
        for name in self._saved.names:
            if name.endswith(BYTES_MARK):
                known[name.removesuffix(BYTES_MARK)] = BytesStorageMetadata()
            else:
                known[name] = self._saved.metadata(name)
        return Metadata(known)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Do nothing: all parts are at hand."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fill the tensors and values of the plan."""
        for item in plan.items:
            name = item.storage_index.fqn
            if item.type == LoadItemType.BYTE_IO:
                pickled = bytes(self._saved.data(name + BYTES_MARK).numpy())
                _check_pickle(name, pickled)
                planner.load_bytes(item, io.BytesIO(pickled))
                continue
            source = self._saved.data(name, item.storage_index.offset)
            target = planner.resolve_tensor(item).detach()
            target.copy_(narrow(source, item.storage_offsets, item.lengths))
            planner.commit_tensor(item, target)
        read: Future[None] = Future()
        read.set_result(None)
        return read


def _check_pickle(name: str, pickled: bytes) -> None:
    """Raise `KeptStateError` for a pickle that could run code: torch's planner would load it unchecked."""
    _trust_common_types()
    try:
        torch.load(io.BytesIO(pickled), weights_only=True, map_location="cpu")
    except Exception as error:  # torch does not document its errors, and the bytes may be anything
        raise KeptStateError(
            f"{name} is no plain value, and bytes that others may have written could run code: keep numbers, texts, "
            "lists and dicts of them, or name its class to torch.serialization.add_safe_globals"
        ) from error


@cache
def _trust_common_types() -> None:
    """Have torch trust common types in a pickle, in this process: those in states of samplers and schedulers.

    A pickle of only these types runs no code of its author.
    """
    plain: list[Any] = [list, dict, set, frozenset, int, float, str, date, datetime, timedelta, timezone]
    plain.append(codecs.encode)  # brings bytes back; torch 2.4 does not trust it by itself
    if (numpy := sys.modules.get("numpy")) is not None:
        kinds = getattr(numpy, "dtypes", None)
        plain += [numpy.ndarray, numpy.dtype, *(getattr(kinds, name) for name in getattr(kinds, "__all__", ()))]
        # numpy's functions that rebuild an array, and a number
        plain += [value.__reduce__()[0] for value in (numpy.zeros(1), numpy.float64(0))]
    torch.serialization.add_safe_globals(plain)
