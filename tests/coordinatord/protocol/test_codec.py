"""Every legal message comes through as it is; anything else is refused with an error that names what is wrong."""

import copy
import math
import tracemalloc
from enum import StrEnum
from typing import Annotated, Any, get_args, get_origin

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from coordinatord.protocol.codec import decode, encode
from coordinatord.protocol.messages import FRAME_BYTES_MAX, PROTOCOL_VERSION, Desired, Goal, Join, Observed, Refused
from coordinatord.protocol.schema import SchemaError
from tests.support.builders import a_desired, a_join, an_assignment, an_observed
from tests.support.field_hints import field_hints
from tests.support.messages import MESSAGES, WIDEST, as_map, fields_of, inner_of, largest, messages

SHORT = 64
"""Characters of a text that is short."""


def shortened(value: Any) -> Any:
    """Return a body whose texts are short and whose lists have one item at most.

    Its fields are judged alike, and each sample is read often.
    """
    if isinstance(value, dict):
        return {name: shortened(inner) for name, inner in value.items()}
    if isinstance(value, str) and value.startswith(WIDEST):
        return value[:SHORT]
    return [shortened(inner) for inner in value[:1]] if isinstance(value, list) else value


def sample_of(message: Any) -> dict[str, Any]:
    """Return the body of a message, with its type."""
    return {"type": type(message).__name__, **shortened(as_map(message))}


SAMPLES: dict[type[Any], dict[str, Any]] = {kind: sample_of(largest(kind)) for kind in MESSAGES}
"""A legal body of each message in which no field is None, but for the assignment of `Desired`."""
SAMPLES[Join]["version"] = PROTOCOL_VERSION

RUNNING = sample_of(largest(Desired, Goal.RUN))
"""The same with an assignment in place of an outcome."""

BODIES: list[tuple[type[Any], dict[str, Any]]] = [*SAMPLES.items(), (Desired, RUNNING)]

FIELDS: list[tuple[type[Any], dict[str, Any], tuple[str, ...], str, Any]] = [
    (kind, sample, keys, path, annotation)
    for kind, sample in BODIES
    for keys, path, annotation in fields_of(kind, kind.__name__)
    if path != "Join.version" and (sample is RUNNING) == (keys[0] == "assignment")
]


def changed(sample: dict[str, Any], keys: tuple[str, ...], value: object) -> bytes:
    body = copy.deepcopy(sample)
    place = body
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    return bytes(msgpack.packb(body))


def wrong_values(annotation: Any) -> list[object]:
    """Return values that a field must not have."""
    optional = annotation is not inner_of(annotation)
    annotation = inner_of(annotation)
    wrong: list[object] = [b"bytes", [1], {"a": 1}, {}] + ([] if optional else [None])
    if get_origin(annotation) is not Annotated:
        if annotation is bool:
            return [*wrong, 0, 1, "true"]
        if isinstance(annotation, type) and issubclass(annotation, StrEnum):
            return [*wrong, "", "nonsense", 1, True]
        return [*wrong, "text", 1, True]  # a message
    kind, bound = get_args(annotation)
    if get_origin(kind) is tuple:
        nothing = [] if optional else [None]
        return [b"bytes", {"a": 1}, {}, *nothing, 1, True, "text", [0] * (bound.max_length + 1)]
    if kind in {bytes, str}:
        texts = ["x" * (bound.max_length + 1), "x\0", *([""] if bound.min_length else [])]
        return ["text", 1, None, b"x" * (bound.max_length + 1)] if kind is bytes else [*wrong, 1, True, *texts]
    wrong += ["1", True, False, bound.ge - 1, bound.le + 1, math.nan, math.inf, -math.inf]
    return wrong if kind is float else [*wrong, bound.le + 0.5]


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_message_comes_back_as_it_was(kind: type[Any]) -> None:
    @settings(max_examples=10)
    @given(messages(kind))
    def comes_back(message: Any) -> None:
        if isinstance(message, Join):
            message = structs.replace(message, version=PROTOCOL_VERSION)
        decoded = decode(encode(message), kind)
        assert decoded == message
        assert type(decoded) is kind

    comes_back()


@pytest.mark.parametrize("sample", [*SAMPLES.values(), RUNNING], ids=[*(kind.__name__ for kind in SAMPLES), "Run"])
def test_the_samples_of_this_file_are_legal(sample: dict[str, Any]) -> None:
    kind = {kind.__name__: kind for kind in MESSAGES}[sample["type"]]
    assert as_map(decode(msgpack.packb(sample), kind)) == {key: sample[key] for key in sample if key != "type"}


@pytest.mark.parametrize(("kind", "sample", "keys", "path", "annotation"), FIELDS, ids=[path for *_, path, _ in FIELDS])
def test_a_wrong_value_is_refused_by_the_name_of_its_field(
    kind: type[Any], sample: dict[str, Any], keys: tuple[str, ...], path: str, annotation: Any
) -> None:
    for value in wrong_values(annotation):
        with pytest.raises(SchemaError) as caught:
            decode(changed(sample, keys, value), kind)
        assert str(caught.value).startswith(f"{path}: "), value
        assert len(str(caught.value)) < 500


def test_a_missing_field_has_its_default_or_is_named() -> None:
    for kind, sample, keys, path, _ in FIELDS:
        body = copy.deepcopy(sample)
        place, owner = body, kind
        for key in keys[:-1]:
            place, owner = place[key], inner_of(field_hints(owner)[key])
        del place[keys[-1]]
        (field,) = [field for field in structs.fields(owner) if field.name == keys[-1]]
        parent, _, name = path.rpartition(".")
        if not field.required:
            decode(msgpack.packb(body), kind)
            continue
        with pytest.raises(SchemaError, match=rf"^{parent}: missing field `{name}`$"):
            decode(msgpack.packb(body), kind)


@pytest.mark.parametrize("names", [["colour"], [""], [b"version"], ["x" * 5000], [f"field-{n}" for n in range(500)]])
def test_an_unknown_field_is_refused_without_being_repeated_at_length(names: list[str | bytes]) -> None:
    with pytest.raises(SchemaError, match=r"^Observed: ") as caught:
        decode(msgpack.packb({"type": "Observed"} | dict.fromkeys(names, 1) | as_map(an_observed())), Observed)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("version", [True, "one", None, [1], "x" * 9000])
def test_a_version_of_the_wrong_type_is_refused_by_its_name(version: object) -> None:
    with pytest.raises(SchemaError, match=r"^Join\.version: expected a whole number"):
        decode(msgpack.packb({"type": "Join", **as_map(a_join()), "version": version}), Join)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"type": "Observed"}, ".type: Invalid value 'Observed'"),
        ({"type": "x" * 5000}, ".type: Invalid value 'xxx"),
        ({"type": 7}, ".type: expected text, not a whole number"),
        ({"type": ["Desired"]}, ".type: expected text, not a list"),
        ({"type": {"a": "x" * 5000}}, ".type: expected text, not an object"),
        ({}, ": missing field `type`"),
    ],
)
def test_a_message_of_another_type_is_refused(body: dict[str, Any], error: str) -> None:
    with pytest.raises(SchemaError, match=r"^Desired or Refused") as caught:
        decode(msgpack.packb(body), Desired, Refused)
    assert str(caught.value).startswith(f"Desired or Refused{error}")
    assert len(str(caught.value)) < 300


NO_MESSAGE = {
    "empty": b"",
    "cut short": encode(an_observed())[:-1],
    "trailing bytes": encode(an_observed()) + b"\x00",
    "two messages": encode(an_observed()) * 2,
    "a number": b"\x01",
    "an array": msgpack.packb([1, 2]),
    "nothing": msgpack.packb(None),
    "an extension type": msgpack.packb(msgpack.ExtType(5, b"data")),
    "an empty extension type": msgpack.packb(msgpack.ExtType(5, b"")),
    "a timestamp": msgpack.packb({"type": msgpack.Timestamp(1, 0)}),
    "a number as a key": msgpack.packb({1: 2}),
    "a list as a key": b"\x81\x91\x01\x02",
    "bad UTF-8": b"\x81\xa4type\xa2\xff\xfe",
    "nested too deep": b"\x81\xa4type" + b"\x91" * 5000 + b"\x00",
    "nested too deep in an unknown field": b"\x81\xa1q" + b"\x91" * 5000 + b"\x00",
    "a map that claims to be huge": b"\xdf\xff\xff\xff\xff",
    "a text that claims to be huge": b"\xdb\xff\xff\xff\xff",
    "the reserved byte": b"\xc1",
    "too large": b"\x00" * (FRAME_BYTES_MAX + 1),
}


@pytest.mark.parametrize("frame", NO_MESSAGE.values(), ids=NO_MESSAGE)
def test_a_frame_that_holds_no_message_is_refused(frame: bytes) -> None:
    with pytest.raises(SchemaError, match=r"^(the frame|Observed)") as caught:
        decode(frame, Observed)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("head", [b"\x81\xa4type", b"\x82\xa4type\xa4Join\xa7version"], ids=["type", "version"])
@pytest.mark.parametrize("depth", [100, 1_000, 1_023, 1_024])
def test_what_is_nested_too_deeply_for_python_is_refused_as_any_other_value(head: bytes, depth: int) -> None:
    with pytest.raises(SchemaError) as caught:
        decode(head + b"\x91" * depth + b"\x00", Join)
    assert len(str(caught.value)) < 200


def test_an_extension_type_within_a_field_is_refused_by_the_name_of_the_field() -> None:
    body = {"type": "Observed", **as_map(an_observed()), "port": msgpack.ExtType(5, b"")}
    with pytest.raises(SchemaError, match=r"^Observed\.port: "):
        decode(msgpack.packb(body), Observed)


def test_frames_that_are_refused_leave_nothing_in_memory() -> None:
    # msgpack before 1.2.3 kept the value of a key that is no text.
    frame = b"\x82\xa4type\xa4Join\x01" + msgpack.packb("x" * (FRAME_BYTES_MAX // 2))
    tracemalloc.start()
    try:
        sizes = []
        for _ in range(20):
            with pytest.raises(SchemaError):
                decode(frame, Join)
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[-1] - sizes[0] < len(frame)


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_a_schema_error(frame: bytes) -> None:
    with pytest.raises(SchemaError) as caught:
        decode(frame, Join, Observed)
    assert str(caught.value).isprintable()


@given(st.integers(0, len(encode(a_join())) - 1), st.integers(0, 255))
def test_a_damaged_message_is_refused_or_still_legal(place: int, byte: int) -> None:
    frame = bytearray(encode(a_join()))
    frame[place] = byte
    try:
        message = decode(bytes(frame), Join)
    except SchemaError:
        return
    assert decode(encode(message), Join) == message


def test_only_the_whole_message_has_a_type() -> None:
    body = msgpack.unpackb(encode(a_join()))
    assert (body["type"], body["observed"].get("type")) == ("Join", None)


def test_a_whole_number_of_seconds_is_legal() -> None:
    assert decode(encode(a_desired(Goal.WAIT, wait_s=5)), Desired).wait_s == 5


@pytest.mark.parametrize(
    ("goal", "part"),
    [
        (Goal.RUN, {"assignment": None}),
        (Goal.WAIT, {"assignment": as_map(an_assignment())}),
        (Goal.EXIT, {"outcome": None}),
    ],
)
def test_a_goal_comes_with_what_belongs_to_it_and_nothing_else(goal: Goal, part: dict[str, Any]) -> None:
    (name,) = part
    with pytest.raises(SchemaError, match=f"{name} belongs to"):
        decode(msgpack.packb({"type": "Desired", **as_map(a_desired(goal)), **part}), Desired)


def test_an_empty_range_of_nodes_is_refused() -> None:
    body = {"type": "Join", **as_map(a_join())}
    body["spec"] |= {"nodes_min": 4, "nodes_max": 2}
    with pytest.raises(SchemaError, match="nodes_min is 4, more than nodes_max, 2"):
        decode(msgpack.packb(body), Join)
