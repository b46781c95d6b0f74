"""The bytes that two agents exchange when one gets a part of kept state from the other. Pure: no socket, no clock.

The holder sends first:

| from | bytes |
|---|---|
| holder | a nonce of 32 bytes |
| reader | the request, with a nonce of its own, and a tag |
| holder | the answer: whether it has the part, the words of its `Commit`, and a tag |
| holder | the part |
| holder | the end: whether the part was sent as it was saved, its CRC, and a tag over the part and these two |

Each tag is an HMAC-SHA256 with the holder's key, which only the coordinator and the nodes of the run know. It covers
both nonces and the request, so recorded messages are useless in another connection. The key is never sent here. Parts
are not encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from enum import IntEnum

from msgspec import Struct

from coordinatord.protocol.kept_state import WantedParts
from workerlib.contract.arena import BYTES_MAX, Commit

NONCE_BYTES = 32
TAG_BYTES = 32
"""The length of a SHA-256."""

_RUN_BYTES = 16
"""The length of the digest that stands for the id of a run, which may be a long text."""

_REQUEST = struct.Struct(f"!{_RUN_BYTES}sIIQB{NONCE_BYTES}s")
_ANSWER = struct.Struct("!B9Q")
"""Whether the holder has the part, and the words of its `Commit`."""
_NO_COMMIT = (0,) * 9
_END = struct.Struct("!BI")

REQUEST_BYTES = _REQUEST.size + TAG_BYTES
ANSWER_BYTES = _ANSWER.size + TAG_BYTES
END_BYTES = _END.size + TAG_BYTES


class Kind(IntEnum):
    """The kind of a part."""

    BIG = 1
    """A shard of the big state, which is saved at a stop or at intervals, in a generation of an arena."""
    SMALL = 2
    """The small state of a rank, which is saved at each step."""


def kinds_of(wanted: WantedParts) -> list[Kind]:
    """Return the kinds of parts that are wanted from each rank."""
    return [kind for kind, is_wanted in ((Kind.BIG, wanted.big), (Kind.SMALL, wanted.small)) if is_wanted]


class PartName(Struct, frozen=True):
    """Identifies a part among all that a node may hold."""

    run: str
    rank: int
    round: int
    step: int
    kind: Kind


class Exchange:
    """One exchange about one part, on either side: makes tags, and checks those of the other side."""

    def __init__(self, key: str, holder_nonce: bytes, request: bytes) -> None:
        self._key = key.encode()
        self._common = holder_nonce + request

    def request_tag(self) -> bytes:
        """Return the tag of the request."""
        return self._tag(b"request").digest()

    def answer(self, commit: Commit | None) -> bytes:
        """Return the bytes of a holder's answer; `commit` is None if the holder does not have the part."""
        packed = _ANSWER.pack(commit is not None, *(_NO_COMMIT if commit is None else commit.words))
        return packed + self._tag(b"answer", packed).digest()

    def read_answer(self, data: bytes) -> Commit | None:
        """Return the commit of the part; None if it is not held. Raises `ValueError` for a false answer."""
        packed, tag = data[: _ANSWER.size], data[_ANSWER.size :]
        _check(tag, self._tag(b"answer", packed).digest())
        held, step, flags, round_number, length, rank, world_size, shard, shards, serial = _ANSWER.unpack(packed)
        if not held:
            return None
        if length > BYTES_MAX:
            raise ValueError(f"a part cannot have {length} bytes")
        if rank >= world_size or shard >= shards:
            raise ValueError(f"a part cannot be of rank {rank} of {world_size}, and shard {shard} of {shards}")
        return Commit(step, round_number, length, rank, world_size, shard, shards, serial, flags)

    def data_tag(self) -> hmac.HMAC:
        """Return the tag of the data, to be updated with the data."""
        return self._tag(b"data")

    @staticmethod
    def end(tag: hmac.HMAC, crc: int, *, whole: bool) -> bytes:
        """Return the end of the data that `tag` was updated with."""
        packed = _END.pack(whole, crc)
        tag.update(packed)
        return packed + tag.digest()

    @staticmethod
    def read_end(tag: hmac.HMAC, data: bytes) -> int | None:
        """Return the CRC of the data; None if the holder found it damaged, or if a worker has overwritten it meanwhile.

        Raises `ValueError` for a wrong tag.
        """
        packed = data[: _END.size]
        tag.update(packed)
        _check(data[_END.size :], tag.digest())
        whole, crc = _END.unpack(packed)
        return crc if whole else None

    def _tag(self, purpose: bytes, data: bytes = b"") -> hmac.HMAC:
        return hmac.new(self._key, purpose + self._common + data, hashlib.sha256)


def pack_request(name: PartName, nonce: bytes) -> bytes:
    """Return the bytes of a request for a part, without their tag."""
    return _REQUEST.pack(_digest(name.run), name.rank, name.round, name.step, name.kind, nonce)


def read_request(packed: bytes, run: str) -> PartName | None:
    """Return the part that is requested; None if it is of another run. Raises `ValueError` for an unknown kind."""
    digest, rank, round_number, step, kind, _ = _REQUEST.unpack(packed)
    return PartName(run, rank, round_number, step, Kind(kind)) if digest == _digest(run) else None


def _check(tag: bytes, expected: bytes) -> None:
    if not hmac.compare_digest(tag, expected):
        raise ValueError("a tag is wrong: another node answers at this address, or the data was changed on the way")


def _digest(run: str) -> bytes:
    return hashlib.sha256(run.encode()).digest()[:_RUN_BYTES]
