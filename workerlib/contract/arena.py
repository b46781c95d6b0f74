"""The arena: shared memory of nodeclient, in which a worker saves its state, so that the state outlives the worker.

nodeclient makes one arena for each local rank, a memfd of a sealed size. The worker writes a step into it without a
message. nodeclient reads which steps are there when it next reports to the coordinator, and *protects* the steps that
the coordinator names: the worker must not overwrite these. There is no lock, since a worker may die while it writes.

An arena begins with a page of 64-bit words in the host's byte order: a header, then `CONTROL_WORDS` for each *place*. A
place has room for one state. The data of the places follow, each at the beginning of a page:

* `GENERATIONS` places for the big state of a step: parameters and the optimizer's state.
* `SMALL_PLACES` places for the small state of a step: what forward changes without the optimizer.

The data of a place are the length of a manifest (8 bytes), the manifest (JSON, see `manifest`), tensors that are
aligned to `ALIGNMENT` bytes, and then values as JSON, up to the length in the control words.

A place is *whole* if its control word `check` is the checksum of the other control words. A writer zeroes `check`, then
writes the data, then the other words, and `check` last. So a writer that dies leaves at most one place that is not
whole. A reader trusts nothing in an arena, and checks all bounds. Standard library only, as nodeclient has no torch.

Another process need not see stores in the order of the program: on aarch64 hardly any order is kept, and on x86 a load
may overtake an earlier store. So there is a `fence` wherever an order counts, and nowhere else:

* A writer has one after it has zeroed `check`, and one before it sets it again. So a process that sees `check` sees the
  data.
* A reader has one between the control words and the data, and one before it looks whether the words are still the same.
  So it has not read data that are older or newer than the words.
* nodeclient protects a step, and then reads whether it is whole. A worker zeroes `check`, and then reads what is
  protected. Each has a fence in between, so at least one of them sees what the other one has done.

A word is aligned, and stored and loaded whole. Words that are seen in part do not fit their checksum.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from threading import Lock

MEMORY_NAME = "coordinatord-kept"
"""The name of the memfd, which /proc shows."""

MAGIC = int.from_bytes(b"kept-st1", "little")
"""The first word of every arena, by which it is told from other memory."""

LAYOUT_VERSION = 1

HEADER_BYTES = 4096
"""The page of the header and of all control words. These take 1 KiB of it."""

GENERATIONS = 3
"""The number of places for the big state: a protected step, the newest step, and one to write. While two steps are
protected and a third one is the newest, most saves find no place, see `oldest_generation`. A fourth place would cost as
much memory as a whole state."""

SMALL_PLACES = 6
"""The number of places for the small state: two protected steps, the last two steps that are done, and two states
within the current step, one of which is whole while the other is written. While a third step is protected, there may be
only one place for the current step: a worker that dies just as it writes there leaves no state of that step."""

ALIGNMENT = 64
"""One cache line, which suffices for every type of tensor."""

PAGE_BYTES = 4096

CONTROL_WORDS = 12
"""The words of a place: step, flags, round, length, rank, world size, shard, shards, serial, check, digest, unused."""

HEADER_WORDS = 16
"""The number of words of the header: magic, layout version, bytes of a generation, bytes of a small place; round, step
and check of each protected step; the rest is unused."""

PENDING = 1
"""The flag of a small state that was written within its step: its buffers and random state are those of the end of the
step, while values such as a scheduler's step number may still change."""

WITH_SMALL = 2
"""The flag of a generation behind whose big state the small state of its step follows."""

CHOSEN = 4
"""The flag of a generation that a `KeptWriter` has written: the script has chosen what is in it. Ranks with the same
shard may differ there, as in a model's buffers."""

MAPPED_BYTES = 8 << 20
"""The bytes that are mapped in one call, which takes a millisecond or two. Meanwhile other threads that map or unmap
memory wait. With smaller calls, threads would contend for the interpreter's lock all the time."""

STEP_MAX = 2**53 - 1

BYTES_MAX = 2**46
"""The most bytes of an arena: 64 TiB, so that no sum of sizes overflows."""

_SALT = 0x6B657074  # "kept": a place of zeros is not whole

_MADV_POPULATE_WRITE = 23
"""The value in Linux, which Python has no name for (madvise(2))."""

_LIBC = ctypes.CDLL(None)
"""The C library: calls by ctypes release the interpreter's lock, whereas `mmap.madvise` holds it."""

_CHECK = 9
"""The index of the control word `check`."""

_DIGEST = 10
"""The index of the control word with the digest: a crc32, and 32 bits that say of which commit."""

_FACTORS = range(3, 2 * _CHECK + 3, 2)
"""The factor of each control word in `Commit.check`: odd, so that no bit of a word is lost in the product."""

_WORD_MAX = 2**64 - 1

_PROTECTED = 4
"""The index of the first header word of the protected steps: round, step and check of each; the check is 0 for none."""

PROTECTED_MAX = 3
"""The most protected steps: the newest step that is whole on all ranks, the one that will replace it, and one that is
being written to a disk. With three of them, no generation is free for a save."""

_CRC_BITS = 32
"""The lower bits of the digest's word, for the crc32. The upper ones name the commit, see `_commit_bits`."""


def fence() -> None:
    """Have other processes see this thread's earlier memory accesses before its later ones.

    Python has no fence of its own, so this is a release of a lock and an acquisition after it. Other processes see:

    * no access before the release later than the release,
    * no access after the acquisition earlier than the acquisition,
    * the release before the acquisition.

    Processors keep this order of the instructions that a lock consists of. On x86 a locked instruction is a whole
    fence. On aarch64 a load-acquire stays behind a store-release (`barrier-ordered-before` in the Arm memory model).
    POSIX demands this order of sem_post and sem_trywait, which CPython calls. The lock is a new one, so no call waits,
    even in a forked child.
    """
    lock = Lock()
    lock.acquire()  # only to be released
    lock.release()
    lock.acquire()


def map_pages(memory: memoryview) -> None:
    """Have the kernel map the pages of shared memory, which has to be writable and to begin at the start of a page.

    Otherwise the first write causes a fault at each page, and takes ten times as long as the copy. Linux before 5.14
    has no such call, and nothing is done.
    """
    if not memory:
        return
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for begin in range(0, len(memory), MAPPED_BYTES):
        length = min(MAPPED_BYTES, len(memory) - begin)
        _LIBC.madvise(ctypes.c_void_p(address + begin), ctypes.c_size_t(length), _MADV_POPULATE_WRITE)


class ArenaError(ValueError):
    """This memory is not an arena of this layout; the text says why."""


@dataclass(frozen=True, slots=True)
class ArenaSizes:
    """The bytes of each generation and of each small place; both are multiples of `PAGE_BYTES`."""

    generation: int
    small: int

    @classmethod
    def at_least(cls, generation: int, small: int) -> ArenaSizes:
        """Round sizes up to whole pages. Raises `ArenaError` for sizes out of bounds."""
        if not 0 <= generation <= BYTES_MAX or not 0 <= small <= BYTES_MAX:
            raise ArenaError(f"an arena cannot have places of {generation} and {small} bytes")
        return cls(_whole_pages(generation), _whole_pages(small))

    @property
    def total(self) -> int:
        """The bytes of the whole arena."""
        return HEADER_BYTES + GENERATIONS * self.generation + SMALL_PLACES * self.small

    @property
    def one_of_each(self) -> int:
        """The bytes of the header, one generation and one small place."""
        return HEADER_BYTES + self.generation + self.small

    def has_room_for(self, other: ArenaSizes) -> bool:
        """Whether places of these sizes are at least as large as those of `other`."""
        return self.generation >= other.generation and self.small >= other.small


@dataclass(frozen=True, slots=True)
class Commit:
    """What the control words of a whole place say: which step of which rank is in it, and how long its data are."""

    step: int
    round: int
    length: int
    rank: int
    world_size: int
    shard: int
    """The number of the shard of the big state, from 0; all ranks with the same number have the same state."""
    shards: int
    """How many shards the big state has: 1 if every rank has all of it."""
    serial: int
    """A count of the commits in an arena, which tells two commits of the same step apart."""
    flags: int = 0

    @property
    def pending(self) -> bool:
        """Whether this was written within its step; see `PENDING`."""
        return bool(self.flags & PENDING)

    @property
    def has_small(self) -> bool:
        """Whether a generation has the small state of its step as well; see `WITH_SMALL`."""
        return bool(self.flags & WITH_SMALL)

    def is_same_part(self, other: Commit) -> bool:
        """Whether both are of the same rank's state at the same step."""
        return (self.round, self.step, self.rank) == (other.round, other.step, other.rank)

    @property
    def words(self) -> tuple[int, ...]:
        """The control words, up to `check`."""
        fields = (self.step, self.flags, self.round, self.length, self.rank, self.world_size)
        return (*fields, self.shard, self.shards, self.serial)

    @property
    def check(self) -> int:
        """The checksum of the other words; never 0, which marks a place that is not whole."""
        check = _SALT
        for number, (word, factor) in enumerate(zip(self.words, _FACTORS, strict=True)):
            # Each word has its own factor and number, so that equal words do not cancel, and swapped words are noticed.
            check ^= (word * factor + number) & _WORD_MAX
        return check or _SALT


class Place:
    """One place of an arena, with the big or small state of a step if it is whole."""

    def __init__(self, control: memoryview, data: memoryview) -> None:
        """Use this memory, with words in `control` and bytes in `data`."""
        self._control = control
        self._words = control[: _CHECK + 1]
        self.data = data
        self._last_read: tuple[bytes, Commit | None] = (b"", None)
        """The words that were read last, and their commit: a writer reads all places at each step."""

    def invalidate(self) -> None:
        """Mark the place as not whole, before its data are overwritten."""
        self._control[_CHECK] = 0
        fence()

    def revalidate(self, commit: Commit) -> None:
        """Undo `invalidate` before any of the data are overwritten; `commit` is what the place had."""
        self._control[_CHECK] = commit.check

    def commit(self, commit: Commit) -> None:
        """Mark the place as whole, once all of its data are written."""
        fence()
        for number, word in enumerate(commit.words):
            self._control[number] = word
        self._control[_CHECK] = commit.check

    def read(self) -> Commit | None:
        """Return the commit of the place; None if it is not whole."""
        words = self._words.tobytes()
        if words != self._last_read[0]:
            fence()
            self._last_read = words, self._parse(words)
        return self._last_read[1]

    def still_has(self, commit: Commit) -> bool:
        """Whether the data that were just read are those of this commit."""
        fence()
        return self.read() == commit

    def _parse(self, raw: bytes) -> Commit | None:
        step, flags, round_, length, rank, world_size, shard, shards, serial, check = memoryview(raw).cast("Q")
        commit = Commit(step, round_, length, rank, world_size, shard, shards, serial, flags)
        in_bounds = step <= STEP_MAX and length <= len(self.data) and rank < world_size and shard < shards
        return commit if check == commit.check and in_bounds else None

    def digest(self, commit: Commit) -> int | None:
        """Return the crc32 that nodeclient has stored for the data of this commit; None if it has stored none."""
        word: int = self._control[_DIGEST]
        return word & (2**_CRC_BITS - 1) if word >> _CRC_BITS == _commit_bits(commit) else None

    def store_digest(self, commit: Commit, crc: int) -> None:
        """Store the crc32 of the first `commit.length` bytes. Only nodeclient calls this."""
        self._control[_DIGEST] = _commit_bits(commit) << _CRC_BITS | crc


class Arena:
    """An arena that is mapped into this process."""

    def __init__(self, memory: memoryview) -> None:
        """Use this memory. Raises `ArenaError` if it is not an arena."""
        if len(memory) < HEADER_BYTES:
            raise ArenaError(f"an arena has at least {HEADER_BYTES} bytes, and this has {len(memory)}")
        self._memory = memory
        self._words = memory[:HEADER_BYTES].cast("Q")
        magic, version, generation, small = self._words[:4]
        if (magic, version) != (MAGIC, LAYOUT_VERSION):
            raise ArenaError("this memory is no arena of kept state, or one of another release")
        self.sizes = ArenaSizes.at_least(generation, small)
        if self.sizes.total != len(memory):
            raise ArenaError(f"an arena of {self.sizes.total} bytes has {len(memory)}")
        places: list[Place] = []
        begin, control = HEADER_BYTES, HEADER_WORDS
        for size in [generation] * GENERATIONS + [small] * SMALL_PLACES:
            places.append(Place(self._words[control : control + CONTROL_WORDS], memory[begin : begin + size]))
            begin, control = begin + size, control + CONTROL_WORDS
        self.generations: Sequence[Place] = places[:GENERATIONS]
        self.smalls: Sequence[Place] = places[GENERATIONS:]
        self._protections = range(_PROTECTED, _PROTECTED + 3 * PROTECTED_MAX, 3)

    @classmethod
    def create(cls, file: int, sizes: ArenaSizes) -> Arena:
        """Return the new arena in a file of zeros that has `sizes.total` bytes. Raises `OSError`."""
        memory = memoryview(mmap.mmap(file, sizes.total))
        words = memory[:HEADER_BYTES].cast("Q")
        words[1], words[2], words[3] = LAYOUT_VERSION, sizes.generation, sizes.small
        words[0] = MAGIC
        return cls(memory)

    @classmethod
    def attach(cls, file: int, *, writable: bool) -> Arena:
        """Return the arena in a file. Raises `ArenaError`, and `OSError` if it cannot be mapped."""
        size = os.fstat(file).st_size
        if not HEADER_BYTES <= size <= BYTES_MAX:
            raise ArenaError(f"a file of {size} bytes is no arena")
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        return cls(memoryview(mmap.mmap(file, size, access=access)))

    @property
    def protected(self) -> frozenset[tuple[int, int]]:
        """The round and step of each generation that must not be overwritten."""
        return frozenset(filter(None, map(self._protected_at, self._protections)))

    def protect(self, steps: Collection[tuple[int, int]]) -> None:
        """Protect these rounds and steps, at most `PROTECTED_MAX`, and no others.

        Only nodeclient calls this. A step that stays protected is never unprotected in between.
        """
        unchanged = self.protected & {*steps}
        new = sorted({*steps} - unchanged)
        for at in self._protections:
            if self._protected_at(at) not in unchanged:
                self._words[at + 2] = 0
                if new:
                    round_, step = new.pop()
                    self._words[at], self._words[at + 1] = round_, step
                    self._words[at + 2] = _protection_check(round_, step)
        fence()

    def _protected_at(self, at: int) -> tuple[int, int] | None:
        """Return the round and step of the protection at a word; None if its words do not belong together."""
        round_, step, check = self._words[at : at + 3]
        return (round_, step) if check == _protection_check(round_, step) else None

    def touch(self, generations: int = GENERATIONS) -> None:
        """Map the pages of the first generations, as `map_pages` does. This blocks, so call it in a thread."""
        map_pages(self._memory[HEADER_BYTES : HEADER_BYTES + generations * self.sizes.generation])

    def begin_generation(self, step: int, stride: int = 1, *, last: bool = False) -> Place | None:
        """Mark the generation that a save of `step` overwrites as not whole, and return it; None if none may be.

        For `stride`, and `last`, which marks the last save of a round, see `oldest_generation`.
        """
        return self._begin(lambda protected: oldest_generation(self.generations, protected, step, stride, last=last))

    def begin_small(self) -> Place | None:
        """Mark a small place as not whole, and return it to be overwritten; None if none may be."""
        return self._begin(lambda protected: oldest_small(self.smalls, protected))

    def _begin(self, choose: Callable[[Collection[tuple[int, int]]], Place | None]) -> Place | None:
        while True:
            protected = self.protected
            place = choose(protected)
            if place is None:
                return None
            commit = place.read()
            place.invalidate()
            # nodeclient may have protected the step since `protected` was read.
            if commit is None or (commit.round, commit.step) not in self.protected - protected:
                return place
            place.revalidate(commit)

    def newest_serial(self) -> int:
        """Return the highest serial of a whole place; 0 if there is none."""
        commits = [place.read() for place in (*self.generations, *self.smalls)]
        return max((commit.serial for commit in commits if commit is not None), default=0)


def oldest_generation(
    places: Sequence[Place], protected: Collection[tuple[int, int]], step: int, stride: int = 1, *, last: bool = False
) -> Place | None:
    """Return the generation that a save of `step` may overwrite; None if all are needed.

    It is one that is not whole, or else one of the oldest round: the step that can be halved the fewest times, and of
    several such steps the oldest. Each rank saves at the multiples of its own interval, which is a power of two. So
    this step is the least likely one to be there on all ranks. If numbers of steps are `stride` apart, the first one
    from a multiple on is saved, and it counts as that multiple.

    If all others are protected, it is the newest one, but only for the `last` save of a round, or for a step that can
    be halved more often. Otherwise each rank could keep another newest step until a protection ends, which may take
    minutes while a step is written to a disk, and none of these steps would be whole. With this rule, all ranks come to
    save the same step, which can be halved more often than any of these. The more often it can be halved, the longer it
    stays, so that all nodes can report and protect it.
    """
    commits = [place.read() for place in places]
    newest = max(((commit.round, commit.step) for commit in commits if commit is not None), default=None)
    needed = {newest, *protected}
    is_full = all(commit is not None and (commit.round, commit.step) in needed for commit in commits)
    if is_full and newest is not None and (last or power_of_two(step, stride) > power_of_two(newest[1], stride)):
        needed = {*protected}
    free: list[tuple[tuple[int, int, int], int]] = []
    """The worth of each generation that is not needed, and its number; the one of the least worth is overwritten."""
    for number, commit in enumerate(commits):
        if commit is None:
            free.append(((-1, 0, 0), number))
        elif (commit.round, commit.step) not in needed:
            free.append(((commit.round, power_of_two(commit.step, stride), commit.step), number))
    return places[min(free)[1]] if free else None


def power_of_two(step: int, stride: int = 1) -> int:
    """Return the largest power of two that divides a step, or a number between it and the step `stride` before it."""
    before = step - stride
    return 1 << (step ^ before).bit_length() - 1 if before >= 0 else STEP_MAX  # every power divides step 0


def oldest_small(places: Sequence[Place], protected: Collection[tuple[int, int]]) -> Place | None:
    """Return the oldest small place that may be overwritten; None if all are needed.

    Needed are the last two steps that were done, and each protected step: its end, or its last pending state.
    """
    commits: list[Commit] = []
    for place in places:
        if (commit := place.read()) is None:
            return place
        commits.append(commit)
    needed = set(sorted([commit.serial for commit in commits if not commit.pending])[-2:])
    pending_first = sorted(commits, key=lambda commit: (not commit.pending, commit.serial))
    wanted = (commit for commit in pending_first if (commit.round, commit.step) in protected)
    # Of several commits of a rank's step, the dict keeps the last one: the state at the end of the step if it is there.
    # The step that a round resumes from keeps the number of the round that did it, and may be there for two ranks: the
    # one that this worker had in that round, and the present one.
    needed.update({(commit.rank, commit.round, commit.step): commit.serial for commit in wanted}.values())
    free = [(commit.serial, number) for number, commit in enumerate(commits) if commit.serial not in needed]
    return places[min(free)[1]] if free else None


def _protection_check(round_: int, step: int) -> int:
    """Return the check of a protected step. The step is shifted, so that an equal round does not cancel it."""
    return _SALT ^ round_ ^ (step << 1)


def _commit_bits(commit: Commit) -> int:
    """Return 32 bits of a commit's check, by which a digest names its commit; never 0, so that no word of 0 fits."""
    return (commit.check ^ commit.check >> _CRC_BITS) & (2**_CRC_BITS - 1) or 1


def _whole_pages(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES


_LIMITS = {
    errno.EFBIG: "ulimit -f limits it",  # for the kernel this memory is a file
    errno.ENOMEM: "ulimit -v or the host's memory limits it",
    errno.EMFILE: "ulimit -n limits it",
}


def refusal_text(error: OSError) -> str:
    """Return why the system refused memory for kept state, with the limit if that is known."""
    limit = _LIMITS.get(error.errno or 0)
    text = error.strerror or str(error)
    return text if limit is None else f"{text}; {limit}"
