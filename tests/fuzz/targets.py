"""All targets, each with inputs that lead deep into it: a fuzzer begins with these, and a test plays them."""

import json
import random
import ssl
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import asdict

from coordinatord.protocol.access_token import BEARER, AccessToken
from coordinatord.protocol.codec import encode
from coordinatord.runtime.websocket.frames import BINARY, CLOSE, CONTINUATION, PING, framed
from coordinatord.runtime.websocket.handshake import accepted, answer_to, headers_of, request_for
from coordinatord.security.identity import own_identity
from nodeclient.keeping.disk.step_folder import Contents, Manifest, Note, PartFile, StepName, file_name
from nodeclient.keeping.disk.tensor_file import LENGTH_BYTES, describe
from nodeclient.keeping.parts.part_messages import Exchange, Kind, PartName, pack_request
from tests.fuzz.access_targets import PIN, SECRETS, certificate, header, token
from tests.fuzz.agent_target import agent
from tests.fuzz.byte_targets import frames, handshake, message
from tests.fuzz.coordinator_target import coordinator
from tests.fuzz.node_targets import RUN, disk, part, worker
from tests.support.messages import MESSAGES, largest
from tests.support.raw_websocket import KEY, MASK
from workerlib.contract.arena import Commit
from workerlib.contract.channel_messages import (
    CODEC,
    AskRestore,
    Checkpointed,
    Checkpointing,
    Halted,
    Hello,
    Interval,
    NotSaved,
    Reserve,
    Saved,
)
from workerlib.contract.manifest import Piece, lay_out

SEEDS = 64
"""The number of sequences that are drawn for a machine: nothing shorter than a whole life leads deep into one."""

SEQUENCE_BYTES = 1_800
"""The length of such a sequence: some thirty messages."""


@dataclass(frozen=True, slots=True)
class Target:
    """Something that takes inputs from others."""

    play: Callable[[bytes], int | None]
    """Plays one input; raises if a property does not hold. Returns how many events it had, if it is a sequence."""
    seeds: Callable[[], Iterable[bytes]]
    most: int
    """The length of an input in bytes."""


def _frames() -> Iterator[bytes]:
    for mask, first in ((MASK, b"\1"), (b"", b"\0")):
        pieces = bytes((BINARY,)) + framed(BINARY, b"abc", mask)[1:] + framed(CONTINUATION, b"d", mask)
        for sent in (
            framed(BINARY, b"x" * 200, mask),
            framed(PING, b"?", mask),
            framed(CLOSE, b"\x03\xe8", mask),
            pieces,
        ):
            yield first + b"\0\1\2\3" + sent


def _handshakes() -> Iterator[bytes]:
    head = request_for("host:1", "/", KEY, {"Authorization": "Bearer x"}).partition(b"\r\n")[2]
    headers = headers_of(head)
    assert headers is not None
    yield b"\0" + head
    yield b"\1" + answer_to(headers)
    yield b"\1HTTP/1.1 101 x\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: " + accepted(KEY).encode()


def _messages() -> Iterator[bytes]:
    for kind in MESSAGES:
        yield b"\0\0" + encode(largest(kind))


def _tokens() -> Iterator[bytes]:
    tokens = [AccessToken(PIN, role, secret).text for role, secret in SECRETS.items()]
    yield from (text.encode() for text in (*tokens, "# about\n\n" + "\n".join(tokens)))


def _headers() -> Iterator[bytes]:
    for wanted in range(3):
        yield from (bytes((wanted, known, 0)) for known in range(4))
    yield from (b"\0\0\0" + f"{BEARER}{AccessToken(PIN, *secret).text}".encode() for secret in SECRETS.items())


def _certificates() -> Iterator[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        own = ssl.PEM_cert_to_DER_cert(own_identity(Path(folder)).certificate.read_text())
    yield own
    # With the algorithm's length replaced by an end, and a part cut off.
    at = own.index(b"\x30\x0a\x06\x08")
    yield own[: at + 1] + b"\x80" + own[at + 2 :]
    yield own[: len(own) // 2]


def _workers() -> Iterator[bytes]:
    said = (
        Hello(0, 1),
        Reserve(4096, 4096, 0, 1),
        AskRestore(),
        Halted(3, 1),
        Saved(3, 0.5, 4096, 1),
        NotSaved("why", 1),
        Interval(4, 0.1, 0),
        Checkpointing(),
        Checkpointed(3, 1),
    )
    yield from (b"\0" + CODEC.encode(report) for report in said)
    yield b"\1" + json.dumps({"local_rank": 0, "signal": 61}).encode()
    collective = {"group": "default_pg", "enqueued": 9, "completed": 8, "operation": "gloo:all_reduce"}
    collective |= {"sizes": [[8, 3], []], "types": ["Float", "Int"]}
    threads = [{"name": "MainThread", "frames": [["/home/me/train.py", 41, "main"]] * 3}]
    yield b"\2" + json.dumps({"threads": threads, "collectives": [collective]}).encode()
    yield b'\3Current thread 0x00007f0e4c6d2740 (most recent call first):\n  File "/home/me/train.py", line 4 in main\n'


def _disks() -> Iterator[bytes]:
    layout = lay_out([Piece("a", "float32", (4, 2), (0, 0), (2, 2), 16), Piece("b", "complex64", (1,), (0,), (1,), 8)])
    yield b"\0\x18" + describe(layout).header[LENGTH_BYTES:]
    yield b"\1" + layout.manifest.ljust(layout.end, b"\0")
    of = StepName("r-1", 1, 4, 1, 1)
    shard = PartFile(file_name(Contents.SHARD, 0, 0), Contents.SHARD, 0, 0, 24, 1)
    small = PartFile(file_name(Contents.SMALL, 0, 0), Contents.SMALL, 0, 0, 4096, 1)
    for file in (Manifest(1, 1, of, (shard, small)), Note(of, shard)):
        yield b"\2" + json.dumps(file, default=asdict).encode()


def _parts() -> Iterator[bytes]:
    request = pack_request(PartName(RUN, 0, 1, 7, Kind.BIG), b"r" * 32)
    exchange = Exchange("k" * 32, b"n" * 32, request)
    yield b"n" * 32 + b"\1" + request + exchange.answer(Commit(7, 1, 4096, 0, 1, 0, 1, 1))
    yield b"n" * 32 + b"\0" + request + exchange.answer(None)


def _sequences() -> Iterator[bytes]:
    chance = random.Random(0)  # noqa: S311 - the same ones each time
    for _ in range(SEEDS):
        yield chance.randbytes(SEQUENCE_BYTES)


TARGETS = {
    "frames": Target(frames, _frames, 4_096),
    "handshake": Target(handshake, _handshakes, 2_048),
    "message": Target(message, _messages, 4_096),
    "token": Target(token, _tokens, 512),
    "header": Target(header, _headers, 512),
    "certificate": Target(certificate, _certificates, 1_024),
    "worker": Target(worker, _workers, 4_096),
    "disk": Target(disk, _disks, 4_096),
    "part": Target(part, _parts, 512),
    "coordinator": Target(coordinator, _sequences, 2 * SEQUENCE_BYTES),
    "agent": Target(agent, _sequences, 2 * SEQUENCE_BYTES),
}
