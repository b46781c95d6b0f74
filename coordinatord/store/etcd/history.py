"""Reads and writes the history of a namespace in etcd, which is a list of commits.

The *head* is a key with the number of the newest commit. Each transaction demands that the leader key is still ours, by
the revision of its creation, the *fence*. A commit also demands that nobody has written the head since our last write,
which rejects a late duplicate of our own request, too. So a sweep, which only deletes, writes the head as well:
otherwise its duplicate could delete later commits.

When it begins to lead, `EtcdStore` reads the history or begins one, then sweeps it, and replaces it if its records are
of an older version. After a commit there is at most one merger, and the next commit waits for its end.

A *generation* is a complete history. A migration to another version of the records writes a new one before it becomes
valid. The key `about` names the valid generation.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence

from msgspec import Struct

from coordinatord.store.etcd.commit_log import CommitLog, Merger, pack, rows_of, unpack
from coordinatord.store.etcd.gateway import Gateway
from coordinatord.store.etcd.keys import About, Head, Keys
from coordinatord.store.etcd.requests import (
    Body,
    EtcdAnswer,
    KeyValue,
    after,
    created_at,
    delete,
    get,
    put,
    txn,
    written_at,
)
from coordinatord.store.interface import LeadershipLostError, NothingStoredError, UnreadableStoreError
from coordinatord.store.migrations import STEPS, Steps
from coordinatord.store.row_codec import Row

VALUE_BYTES_MAX = 1024 * 1024
"""The size limit of a value: with its transaction it is below etcd's default limit of 1.5 MiB."""

PAGE = 16
"""How many values are read at once: 16 MiB if all are as large as possible."""

ROWS_AT_ONCE = 2_000
"""How many rows a value has when a whole history is written: some 30 KB if they are joins of nodes."""

PARTS = b"parts"
"""The stand-in for a value that is stored in parts; it is no packed value. A missing part damages the value."""


class StoredHistory(Struct, frozen=True):
    """A history as it was read."""

    about: About
    rows: tuple[Row, ...]
    size: int
    """The bytes of its values."""


class History:
    """The commits of one namespace."""

    def __init__(self, gateway: Gateway, keys: Keys, fence: int = 0, steps: Steps = STEPS) -> None:
        """Begin without reading. `fence` is the revision of our leader key's creation, for writes only.

        The number of migration `steps` is the version of records.
        """
        self._gateway = gateway
        self._keys = keys
        self._fence = fence
        self._version = len(steps)
        self.log = CommitLog()
        """The values in the namespace."""
        self._head = Head(0, "")
        """The newest commit that we know."""
        self._head_revision = 0
        """The revision of the last known write of the head."""
        self.about = About("", self._version, 0)
        """The valid generation; its number is 0 while none is there."""
        self.revision = 0
        """The revision of the cluster after the last commit, by which `EtcdStore` knows what to compact."""

    async def read(self) -> StoredHistory:
        """Read the whole history. Raises `NothingStoredError`, `UnreadableStoreError` and other `StoreError`."""
        head = await self._gateway.read(self._keys.head)
        self._head, self._head_revision = (Head(0, ""), 0) if head is None else (Head.unpack(head), head.mod_revision)
        about = await self._gateway.read(self._keys.about)
        if about is None:
            raise NothingStoredError(f"no coordinatord has kept state below {self._keys.prefix}/")
        self.about = About.unpack(about)
        if self.about.version > self._version:
            raise UnreadableStoreError(
                f"a newer release of coordinatord has written version {self.about.version}, this one knows up to"
                f" {self._version}: install that release here too"
            )
        stored, parts = await self._read_commits(self._keys.commits(self.about.generation))
        self.log = CommitLog()
        values = []
        for number, content in stored.items():
            value = b"".join(parts.get(number, [])) if content == PARTS else content
            found = unpack(value, number)
            values.append(found)
            self.log.add(number, len(value), [row[0] for row in found.rows], found.dropped)
        return StoredHistory(self.about, tuple(rows_of(values)), self.log.size)

    async def _read_commits(self, prefix: bytes) -> tuple[dict[int, bytes], dict[int, list[bytes]]]:
        """Return the values of commits by number, and the parts of those that are stored in parts, in order."""
        stored: dict[int, bytes] = {}
        parts: dict[int, list[bytes]] = {}
        async for pair in self._gateway.all_below(prefix, PAGE):
            name, _, part = pair.key.removeprefix(prefix).partition(b"/")
            if part:
                parts.setdefault(_number_in(name), []).append(pair.value)
            else:
                stored[_number_in(name)] = pair.value
        return stored, parts

    async def begin(self) -> None:
        """Begin an empty history. Raises `LeadershipLostError`, and `StoreError`."""
        await self.sweep()  # an earlier attempt to begin may have been interrupted
        await self._begin_generation(About(secrets.token_hex(4), self._version, 1), commits=0)

    async def sweep(self) -> None:
        """Delete other generations, and parts of a commit that was not finished: the parts are written first.

        Raises `LeadershipLostError`, and `StoreError`.
        """
        ours = self._keys.commits(self.about.generation)
        all_commits = f"{self._keys.prefix}/commits/".encode()
        unfinished = delete(self._keys.commit(self.about.generation, self._head.number + 1), after(ours))
        others = [delete(all_commits, ours), delete(after(ours), after(all_commits))]
        await self._write_head(self._head, [unfinished, *others])

    async def check_commits(self) -> None:
        """Check that etcd has lost no commit. Raises `LeadershipLostError`, and `StoreError`."""
        known = self._head  # a commit may change it meanwhile
        _check_not_older(await self._gateway.read(self._keys.head), known)

    async def commit(self, rows: Sequence[Row], dropped: Sequence[int]) -> None:
        """Make a commit durable, all or nothing. Raises `LeadershipLostError`, and `StoreError`.

        After a `StoreError` the commit may be durable or not; call this again with the same rows.
        """
        number, value = self._head.number + 1, pack(rows, dropped)
        ops = await self._stage(self.about.generation, number, value)
        await self._write_head(Head(number, _digest(value)), ops)
        self.log.add(number, len(value), [row[0] for row in rows], dropped)

    async def merge(self, merger: Merger, rows: Sequence[Row]) -> None:
        """Replace several values by one, unless that is too large. Raises `LeadershipLostError`, and `StoreError`.

        After a `StoreError` they may be replaced or not, and no row is lost. A late duplicate of the request does no
        harm: before the next commit it writes the same value again, and after that its demand fails.
        """
        value = pack(rows, merger.dropped)
        if len(value) > VALUE_BYTES_MAX:
            self.log.drop_merger()
            return
        first, last = (self._keys.commit(self.about.generation, number) for number in (merger.first, merger.last))
        # The parts of a value follow its key. So the first range has those of all values but the last one.
        ops = [delete(first, last), delete(last + b"/", after(last + b"/")), put(last, value)]
        await self._write([self._same_head], ops)
        self.log.merge(merger, len(value))

    async def replace(self, rows: Sequence[Row], identity: str) -> None:
        """Write a whole history as a new generation, which becomes valid once complete. Raises `StoreError`."""
        await self.sweep()  # an earlier attempt may have been interrupted
        about = About(identity, self._version, self.about.generation + 1)
        self.log = CommitLog()
        pieces = [rows[begin : begin + ROWS_AT_ONCE] for begin in range(0, len(rows), ROWS_AT_ONCE)]
        for number, piece in enumerate(pieces, 1):
            value = pack(piece, ())
            await self._write([self._same_head], await self._stage(about.generation, number, value))
            self.log.add(number, len(value), [row[0] for row in piece], ())
        await self._begin_generation(about, commits=len(pieces))
        await self.sweep()  # deletes the old generation

    async def _begin_generation(self, about: About, commits: int) -> None:
        """Make a generation with so many commits the valid one. Raises `LeadershipLostError`, and `StoreError`."""
        new = about.packed()  # its identity or its number is new, so its digest belongs to this attempt
        await self._write_head(Head(commits, _digest(new)), [put(self._keys.about, new)])
        self.about = about

    async def _stage(self, generation: int, number: int, value: bytes) -> list[Body]:
        """Return the operations that store a value. If it is too large for one key, write its parts first.

        No part is written if the head has changed. That is no error here: the caller runs the operations under the same
        demand, and finds out why it fails. An earlier attempt of the same commit may have been durable.
        """
        key = self._keys.commit(generation, number)
        if len(value) <= VALUE_BYTES_MAX:
            return [put(key, value)]
        pieces = [value[begin : begin + VALUE_BYTES_MAX] for begin in range(0, len(value), VALUE_BYTES_MAX)]
        for place, piece in enumerate(pieces):
            await self._try([self._same_head], [put(self._keys.part(generation, number, place), piece)], [])
        return [put(key, PARTS)]

    @property
    def _same_head(self) -> Body:
        """The demand that nothing was committed since our last write."""
        return written_at(self._keys.head, self._head_revision)

    async def _write_head(self, head: Head, ops: list[Body]) -> None:
        """Write the head and run `ops` in one transaction. If an earlier attempt has done so, only record it.

        Raises `LeadershipLostError`, and `StoreError`.
        """
        ours = head.packed()
        answer = await self._try([self._same_head], [put(self._keys.head, ours), *ops], [get(self._keys.head)])
        if answer.succeeded:
            self._head_revision = self.revision = answer.header.revision
        else:
            found = answer.results[1].first  # results[0] has the leader key
            if found is None or found.value != ours:
                _check_not_older(found, self._head)
                raise LeadershipLostError("an earlier commit of this coordinator came late: it reads everything anew")
            self._head_revision = self.revision = found.mod_revision
        self._head = head

    async def _write(self, demands: list[Body], ops: list[Body]) -> None:
        """Run `ops`, which do not write the head, as the leader.

        Raises `LeadershipLostError`, also if a demand does not hold, and `StoreError`.
        """
        answer = await self._try(demands, ops, [])
        if not answer.succeeded:
            raise LeadershipLostError("another process has written to this store: this one reads everything anew")

    async def _try(self, demands: list[Body], ops: list[Body], otherwise: list[Body]) -> EtcdAnswer:
        """Run `ops` as the leader, or `otherwise` if a demand fails. Raises `LeadershipLostError`, `StoreError`."""
        lead = get(self._keys.leader, keys_only=True)
        fenced = [created_at(self._keys.leader, self._fence), *demands]
        answer = await self._gateway.call("/v3/kv/txn", txn(fenced, ops, [lead, *otherwise]))
        if not answer.succeeded:
            leader = answer.results[0].first
            if leader is None or leader.create_revision != self._fence:
                raise LeadershipLostError("another coordinator leads: nothing of this one is kept any more")
        return answer


def _digest(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()


def _check_not_older(found: KeyValue | None, known: Head) -> None:
    """Check that the head in etcd is not older than the known one. Raises `LeadershipLostError`."""
    number = 0 if found is None else Head.unpack(found).number
    if number < known.number:
        text = (
            f"etcd was set back, as to a snapshot: its newest commit is {number}, and {known.number} was there before"
        )
        raise LeadershipLostError(f"{text}: this coordinator reads everything anew")


def _number_in(name: bytes) -> int:
    try:
        return int(name)
    except ValueError as error:
        raise UnreadableStoreError(f"key {name!r} is none of coordinatord's: remove it") from error
