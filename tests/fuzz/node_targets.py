"""What a node takes apart of its workers, of other nodes and of the disk. Each target takes one input."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from coordinatord.protocol.codec import decode, encode
from coordinatord.protocol.schema import SchemaError, check
from coordinatord.protocol.stack_messages import StackOrigin, Stacks, WorkerStacks, pack_stacks, unpack_stacks
from nodeclient.diagnosis.stack_text import MalformedAnswerError, read_answer, read_dump, read_hello
from nodeclient.keeping.disk import step_folder
from nodeclient.keeping.disk.step_folder import Manifest, Note, UnusableError
from nodeclient.keeping.disk.tensor_file import TensorFileError, read_header
from nodeclient.keeping.parts.part_messages import ANSWER_BYTES, REQUEST_BYTES, TAG_BYTES, Exchange, read_request
from tests.fuzz.byte_targets import check_brief
from tests.fuzz.choices import Choices
from workerlib.contract.arena import ALIGNMENT, BYTES_MAX
from workerlib.contract.channel_messages import CODEC
from workerlib.contract.manifest import Layout, ManifestError, read_layout
from workerlib.contract.packets import ChannelError
from workerlib.contract.round_messages import ROUND_CODEC

KEY = "k" * 32

RUN = "r-1"


def worker(data: bytes) -> None:
    """Read what a worker says of its state, its rounds and where it stands: what comes of it can be sent on."""
    choices = Choices(data)
    of_state, of_rounds = partial(_message, CODEC), partial(_message, ROUND_CODEC)
    kinds: tuple[Callable[[bytes], None], ...] = (of_state, _first_of_stacks, _of_its_stacks, _by_a_signal, of_rounds)
    choices.of(kinds)(choices.rest())


def _message(codec: Any, packet: bytes) -> None:
    try:
        found = codec.decode(packet)
    except ChannelError as error:
        check_brief(error)
    else:
        assert codec.decode(codec.encode(found)) == found


def _first_of_stacks(packet: bytes) -> None:
    try:
        found = read_hello(packet)
    except MalformedAnswerError as error:
        check_brief(error)
    else:
        assert {*map(type, found)} == {int}


def _of_its_stacks(packet: bytes) -> None:
    try:
        answer = read_answer(packet, "/home/me")
    except MalformedAnswerError as error:
        check_brief(error)
    else:
        stacks, counts = pack_stacks(answer.threads), (1, 2, answer.network_bytes, answer.members, answer.places)
        _send(
            WorkerStacks(0, StackOrigin.WORKER, stacks, "", "", 0.0, answer.collective, "", *counts, answer.stands_at)
        )


def _by_a_signal(dump: bytes) -> None:
    answer = read_dump(dump.decode(errors="replace"), "/home/me")
    stacks, stands_at = pack_stacks(answer.threads), answer.stands_at
    _send(WorkerStacks(0, StackOrigin.SIGNAL, stacks, "", "", 0.0, None, "", stands_at=stands_at))


def _send(found: WorkerStacks) -> None:
    again = decode(encode(Stacks(1, (found,), "")), Stacks).workers[0]
    assert again == found
    for name, frames in unpack_stacks(again.stacks):
        assert all(text.isprintable() for text in (name, *frames))


def disk(data: bytes) -> None:
    """Read what lies on the disk of kept state, or in the memory of another node: nothing reaches beyond its bytes."""
    choices = Choices(data)
    read = choices.of((_header, _layout, _manifest))
    read(choices)


def _header(choices: Choices) -> None:
    length = choices.number(1)
    try:
        found = read_header(choices.rest(), length)
    except TensorFileError as error:
        check_brief(error)
        return
    assert sum(span.length for span in found.spans) == length
    assert all(span.in_memory + span.length <= found.layout.end for span in found.spans)
    assert found.layout.end <= len(found.layout.manifest) + length + ALIGNMENT * len(found.layout.pieces)
    _check_layout(found.layout)


def _layout(choices: Choices) -> None:
    place = choices.rest()
    try:
        found = read_layout(memoryview(place))
    except ManifestError as error:
        check_brief(error)
        return
    assert found.end <= len(place)
    _check_layout(found)


def _check_layout(found: Layout) -> None:
    numbers = [*found.begins, found.end, *(piece.length for piece in found.pieces)]
    assert all(type(number) is int for number in numbers)
    assert all(begin >= len(found.manifest) for begin in found.begins)


def _manifest(choices: Choices) -> None:
    text = choices.rest()
    kind: Any
    for kind in (Manifest, Note):
        try:
            found = check(json.loads(text), kind, "manifest.json")
            files = getattr(found, "files", None) or (found.file,)
            step_folder._check_whole(found.of, files)
        except (SchemaError, ValueError, RecursionError, UnusableError) as error:
            check_brief(error)
        else:
            assert not any("/" in file.name or file.name.startswith(".") for file in files)


def part(data: bytes) -> None:
    """Read both halves of the exchange of a part: a tag that is false ends it, and a right one brings a real place."""
    choices = Choices(data)
    nonce, right = choices.take(32), choices.one_in(2)
    packed = choices.take(REQUEST_BYTES - TAG_BYTES).ljust(REQUEST_BYTES - TAG_BYTES, b"\0")
    exchange = Exchange(KEY, nonce, packed)
    try:
        name = read_request(packed, RUN)
    except ValueError as error:
        check_brief(error)
    else:
        assert name is None or name.run == RUN
    answer = choices.take(ANSWER_BYTES - TAG_BYTES).ljust(ANSWER_BYTES - TAG_BYTES, b"\0")
    right_tag = exchange._tag(b"answer", answer).digest()
    tag = right_tag if right else choices.take(TAG_BYTES)
    try:
        commit = exchange.read_answer(answer + tag)
    except ValueError as error:
        check_brief(error)
    else:
        assert tag == right_tag
        if commit is not None:
            assert 0 <= commit.length <= BYTES_MAX
            assert commit.rank < commit.world_size
            assert commit.shard < commit.shards
