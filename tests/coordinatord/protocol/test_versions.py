"""Versions of the protocol: one recorded as it was then is still read and written, to the byte.

Each `version_N.json` was written by the code of that version: each message's fields with their bounds, and frames.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgpack
import pytest

from coordinatord.protocol.codec import TYPES, VersionError, decode, encode
from coordinatord.protocol.log_messages import LogChunk, LogPlace
from coordinatord.protocol.messages import PROTOCOL_VERSION, Join, Observed, Phase, RefusalCode, Refused
from coordinatord.protocol.schema import SchemaError
from coordinatord.protocol.versions import ADDED, SUPPORTED, Later, has_message, has_phase, later_than
from coordinatord.protocol.worker_ends import Killed
from tests.support.builders import a_join, an_observed
from tests.support.messages import as_map, inner_of

RECORDED: dict[int, dict[str, Any]] = {
    version: json.loads(Path(__file__).with_name(f"version_{version}.json").read_text(encoding="utf-8"))
    for version in SUPPORTED
    if version != PROTOCOL_VERSION
}

FRAMES = [
    pytest.param(version, bytes.fromhex(frame), id=f"{version}-{name}")
    for version, recorded in RECORDED.items()
    for name, frame in recorded["frames"].items()
]

KILLED = Killed((0, 1), 2, 30.0)


def described(annotation: Any, later: Later) -> str:
    """Return a text about what a field may hold."""
    inner = inner_of(annotation)
    if inner is not annotation:
        return f"nothing or {described(inner, later)}"
    if get_origin(annotation) is Annotated:
        kind, bound = get_args(annotation)
        bounds = f"{bound.least:.0f} to {bound.most:.0f}"
        several = get_origin(kind) is tuple
        return f"{bounds} of: {described(get_args(kind)[0], later)}" if several else f"{kind.__name__} {bounds}"
    if issubclass(annotation, StrEnum):
        return " ".join(sorted(set(annotation) - later.get(annotation, frozenset())))
    return str(annotation.__name__)


def classes_in(kind: type[Any], later: Later) -> Iterator[type[Any]]:
    """Iterate over a message's class and those of its fields, less the later ones."""
    yield kind
    for name, annotation in get_type_hints(kind).items():
        inner = inner_of(annotation)
        for part in (inner, *get_args(inner)):
            known = name not in later.get(kind, frozenset())
            if known and dataclasses.is_dataclass(part) and isinstance(part, type):
                yield from classes_in(part, later)


def as_now(version: int) -> dict[str, dict[str, str]]:
    """Return the fields of each message of a version."""
    later = later_than(version)
    messages = [message for message in TYPES.values() if has_message(version, message)]
    kinds = {kind for message in messages for kind in classes_in(message, later)}
    return {
        kind.__name__: {
            name: described(annotation, later)
            for name, annotation in get_type_hints(kind, include_extras=True).items()
            if name not in later.get(kind, frozenset())
        }
        for kind in kinds
    }


@pytest.mark.parametrize("version", RECORDED)
def test_a_version_is_what_it_was(version: int) -> None:
    """A later field needs a row in `ADDED`, a default, and a higher PROTOCOL_VERSION."""
    assert as_now(version) == RECORDED[version]["shape"]


@pytest.mark.parametrize(("version", "frame"), FRAMES)
def test_a_frame_of_a_version_is_read_and_written_as_it_was_then(version: int, frame: bytes) -> None:
    message: Any = decode(frame, *TYPES.values(), version=version)
    assert encode(message, version) == frame


def test_the_present_version_and_the_two_before_it_are_supported() -> None:
    assert SUPPORTED == (PROTOCOL_VERSION, PROTOCOL_VERSION - 1, PROTOCOL_VERSION - 2)


def test_each_field_that_came_later_is_one_and_need_not_be_given() -> None:
    for added in ADDED:
        assert added.version <= PROTOCOL_VERSION
        if issubclass(added.message, StrEnum):
            assert added.field in list(added.message), "a session of an older version must not have it: see `has_phase`"
            continue
        (field,) = [field for field in dataclasses.fields(added.message) if field.name == added.field]
        assert field.default is not dataclasses.MISSING, f"{added.field} has no default that means: not known"


def test_what_an_older_version_has_not_is_not_said_in_it_and_not_known_from_it() -> None:
    join = a_join(version=4, release="1.2.3", observed=an_observed(killed=KILLED))
    body = msgpack.unpackb(encode(join, 4))
    assert "release" not in body
    assert "killed" not in body["observed"]
    heard = decode(encode(join, 4), Join)
    assert heard == dataclasses.replace(join, release="", observed=an_observed())
    assert decode(encode(an_observed(killed=KILLED), 5), Observed, version=5).killed == KILLED


@pytest.mark.parametrize(
    ("version", "claimed", "error"),
    [
        (4, "later", "join has unknown fields: 'age_s', 'awaits_own', 'command', 'keeper', 'release'"),
        (6, "earlier", "join lacks release"),
    ],
)
def test_a_version_is_read_strictly(version: int, claimed: str, error: str) -> None:
    body = {"type": "join", **as_map(a_join(version=version))}
    if claimed == "earlier":
        del body["release"]
    del body["observed"]["killed"]
    with pytest.raises(SchemaError, match=error):
        decode(msgpack.packb(body), Join)


def test_a_node_that_prepares_has_no_place_in_a_version_that_knows_no_such_phase() -> None:
    assert [phase for phase in Phase if not has_phase(4, phase)] == [Phase.PREPARING]
    assert all(has_phase(5, phase) for phase in Phase)
    preparing = an_observed(phase=Phase.PREPARING)
    assert decode(encode(preparing, 5), Observed, version=5) == preparing
    with pytest.raises(SchemaError, match=r"observed.phase must be one of idle, starting, .*, not 'preparing'"):
        decode(encode(preparing, 4), Observed, version=4)


@pytest.mark.parametrize("version", [SUPPORTED[-1] - 1, PROTOCOL_VERSION + 1])
def test_versions_further_off_are_refused_with_the_versions_of_both_sides(version: int) -> None:
    body = {"type": "join", **as_map(a_join()), "version": version}
    with pytest.raises(VersionError) as caught:
        decode(msgpack.packb(body), Join)
    supported = f"{SUPPORTED[0]}, {SUPPORTED[1]} and {SUPPORTED[2]}"
    assert str(caught.value) == (
        f"the coordinator supports protocol versions {supported}, this node {version}:"
        " install the same release on all hosts"
    )


def test_a_message_that_came_later_is_none_in_an_older_version() -> None:
    chunk = LogChunk(1, b"x", LogPlace(5, 1), more=False, gap=False, problem="")
    assert decode(encode(chunk), Observed, LogChunk) == chunk
    with pytest.raises(SchemaError, match="expected a message of type observed, not 'log_chunk'"):
        decode(encode(chunk), Observed, LogChunk, version=4)


def test_a_refusal_is_the_same_in_all_versions() -> None:
    refused = Refused(RefusalCode.VERSION, "no", retry=False)
    assert {encode(refused, version) for version in SUPPORTED} == {encode(refused)}
    assert [field.name for field in dataclasses.fields(Refused)] == ["code", "message", "retry"]
